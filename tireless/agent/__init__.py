"""One attempt: workspace, guard, process, protocol. Imports no store and no forge; output goes to a callback."""
