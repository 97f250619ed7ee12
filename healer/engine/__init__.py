"""All that decides: `walk` from signals to decisions, `drive` a run to its end, `permission` for a step."""
