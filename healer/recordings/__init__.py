"""Recordings: what healer heard, written for `healer replay`, and read again."""
