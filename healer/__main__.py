"""`python -m healer` is the command `healer`."""

from healer.cli import main

main()
