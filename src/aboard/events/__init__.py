"""The tfevents format: bytes to numbers and back, wherever the bytes come from."""
