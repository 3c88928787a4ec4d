"""Pure decisions: no I/O, no clock, no randomness, no logging; imports nothing of ours but redact and errors."""
