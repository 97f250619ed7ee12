#!/opt/healer/.venv/bin/python
import sys

from healer.commands.cli import main

sys.exit(main())
