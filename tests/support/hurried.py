"""`healer up` as it is, but for its isolation forest: that looks every 5 s and is sure after 20 s.

    python -m tests.support.hurried DATA_DIR PORT

By itself it looks every 30 s and is sure after 5 minutes: too long for a test that runs each day.
"""

import os
import sys
from datetime import timedelta

from healer.bootstrap.tree_parts import preload
from healer.commands import cli
from healer.detection import forest
from healer.embedded.tree import Calls, Part, Tree, healer_parts
from healer.settings import load

LOOK_S = 5.0
HOLD = timedelta(seconds=20)


def detector() -> None:
    forest.SAMPLE_S, forest.HOLD = LOOK_S, HOLD
    cli.main(["detector"])


def main() -> None:
    data_dir, port = sys.argv[1:]
    settings = load(dict(os.environ), data_dir=data_dir, listen=f"127.0.0.1:{port}")
    hurried = Part("detector", detector)
    tree = [hurried if part.name == hurried.name else part for part in healer_parts(settings, cli.main)]
    calls = Calls(say=lambda text: print(text, flush=True), load=preload)
    Tree(settings, os.environ, tree, calls).run()


if __name__ == "__main__":
    main()
