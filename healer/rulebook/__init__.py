"""`rules/` as one checked value: a module for each kind of file; `ruleset` loads and cross-checks all."""
