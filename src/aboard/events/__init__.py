"""The tfevents format: bytes to numbers and back, whatever the bytes come from."""
