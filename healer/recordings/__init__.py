"""What healer saw, kept for `healer replay`."""
