"""Does nothing: what a site without any automation pays."""

import sys

for _ in sys.stdin:
    pass
