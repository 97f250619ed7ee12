"""Entry points: `walk` turns signals into runs, `command` applies people's commands, `drive` executes a run,
`tell` sends messages."""
