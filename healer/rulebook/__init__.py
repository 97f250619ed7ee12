"""`rules/` as one checked value, with its cases."""
