"""The loops. Each is handed what it needs, reads no Settings and imports no other service."""
