"""Entry points: `walk` signals to runs, `command` by people, `drive` a run, `tell` people."""
