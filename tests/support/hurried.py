"""`healer up` as it is, but for waits of the detector that are too long for a test that runs each day.

    python -m tests.support.hurried WHAT… DATA_DIR PORT

WHAT is one or more of `HURRIED`; the detector waits for everything else as long as it does by itself.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from types import ModuleType

from healer.bootstrap.tree_parts import preload
from healer.commands import cli
from healer.embedded.tree import Calls, Tree, healer_parts
from healer.settings import load

#: By what is hurried: module and constant, and the value used instead.
HURRIED: dict[str, dict[str, timedelta | float]] = {
    # It looks every 30 s, and is sure after 5 minutes. A model is made of a day at least, and each day.
    "forest": {
        "detection.forest:SAMPLE_S": 5.0,
        "detection.forest:HOLD": timedelta(seconds=20),
        "bootstrap.models:LOOK_S": 1.0,
        "bootstrap.models:CHECK": timedelta(seconds=2),
        "bootstrap.models:FIRST_AFTER": timedelta(hours=1),
    },
    # Silent after 30 s, judged alone after 60 s, and not while a neighbour came back within 5 minutes. Slurm
    # must know of it first (`slurm.SLURMD_TIMEOUT_S`).
    "silence": {
        "observations.node_picture:SILENCE_AFTER": timedelta(seconds=5),
        "detection.silence:SILENCE_AFTER": timedelta(seconds=5),
        "detection.silence:ALONE_AFTER": timedelta(seconds=10),
        "detection.silence:JUST_BACK": timedelta(seconds=6),
        "incidents.lifecycle:JUST_BACK": timedelta(seconds=6),
    },
    # 3 minutes after the fault.
    "plans": {"decisions.decide:PLANS_AFTER": timedelta(seconds=2)},
    # A day after the last sign of what was left to a ticket.
    "tickets": {"incidents.lifecycle:TICKET_QUIET": timedelta(seconds=8)},
    # Lines within 3 minutes are one event.
    "events": {"observations.fault_history:GAP": timedelta(seconds=2)},
    # A port is down for 4 minutes, and not while the node boots.
    "ports": {
        "detection.reported:STAYS_DOWN": timedelta(seconds=4),
        "detection.reported:AFTER_BOOT": timedelta(0),
    },
    # 30 minutes after planned work.
    "proof": {
        "incidents.lifecycle:PROOF": timedelta(seconds=20),
    },
}


def waits(what: Sequence[str]) -> Iterator[tuple[ModuleType, str, timedelta | float]]:
    """The constants that are hurried: module, name, and the value used instead."""
    for where, value in (wait for each in what for wait in HURRIED[each].items()):
        module, _, name = where.partition(":")
        yield import_module(f"healer.{module}"), name, value


def detector(what: Sequence[str]) -> None:
    for module, name, value in waits(what):
        setattr(module, name, value)
    cli.main(["detector"])


def main() -> None:
    *what, data_dir, port = sys.argv[1:]
    settings = load(dict(os.environ), data_dir=data_dir, listen=f"127.0.0.1:{port}")
    tree = [
        replace(part, run=partial(detector, what)) if part.name == "detector" else part
        for part in healer_parts(settings, cli.main)
    ]
    calls = Calls(say=lambda text: print(text, flush=True), load=partial(preload, settings))
    Tree(settings, os.environ, tree, calls).run()


if __name__ == "__main__":
    main()
