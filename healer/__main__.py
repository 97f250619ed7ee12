"""`python -m healer` is the command `healer`."""

from healer.commands.cli import main

main()
