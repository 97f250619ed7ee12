"""From bytes to observations: the forms, not the meaning."""
