"""Publishes for NVIDIA's Resiliency Extension that an allocation unit must not be used again.

    srun ... python -m healer_steps.segment DIR ft_launcher --ft-segment-health-check-dir DIR ... train.py

It becomes the command, and leaves a small process beside it that ends with it. Once healer has taken this
node out of service, and Slurm shows that, the process writes `DIR/segment_health_check.JOB.TASK`, the
artifact of NVRx's segment health check: process 0 of the array task then stays away from the next rendezvous,
and a spare task takes its place. The artifact goes when healer calls the node healthy again.

Only tasks of a job array are units of their own. In any other job the unit is the whole job, so nothing is
published there. Where anything is unknown nothing is published either: NVRx takes a missing file as healthy.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from typing import Mapping

from healer_steps import _verdict
from healer_steps._slurm import contradicted, say

#: The files are looked at so often.
LOOK_S = 1.0
_BYTES = 65536


class Publisher:
    """Keeps the artifact of one allocation unit as this node's verdict asks. Several nodes may share a unit:
    each removes only what it wrote itself, and writes again what another one removed."""

    def __init__(self, folder: str, environ: Mapping[str, str]) -> None:
        self._environ, self._names = environ, _verdict.names_of(environ)
        self._verdict_file = environ.get("HEALER_VERDICT_FILE") or _verdict.FILE
        #: A requeued task has the same path: what an earlier life wrote is not of these nodes.
        self._life = environ.get("SLURM_RESTART_COUNT", "0")
        unit = "%s.%s" % (environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID"))
        self.path = os.path.join(folder, "segment_health_check." + unit)
        self._said = ""

    def begin(self) -> None:
        """Removes what an earlier life of the task has left. Before NVRx looks. Raises OSError."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        found = self._published()
        if found is not None and found.get("life") != self._life:
            os.unlink(self.path)

    def look(self) -> None:
        """Never raises."""
        try:
            verdict = _verdict.known(self._verdict_file, self._names)
            found = self._published()
            if verdict is None:
                return
            if verdict.state == "leave":
                if found is None or found.get("life") != self._life:
                    self._publish(verdict)
            elif found is not None and found.get("node") in self._names:
                os.unlink(self.path)
                self._say("%s is healthy again: this allocation unit may be used" % verdict.node)
        except Exception as error:
            self._say("the segment health artifact: %s: %s" % (type(error).__name__, error))

    def _publish(self, verdict: _verdict.Verdict) -> None:
        why = contradicted(self._environ, verdict.node)
        if why:
            self._say("healer has taken this node out of service, and nothing is published: %s" % why)
            return
        text = json.dumps(
            {
                "node": verdict.node,
                "incident": verdict.incident,
                "reason": verdict.reason,
                "life": self._life,
                "by": "healer",
            }
        )
        ready = "%s.%s.%d" % (self.path, verdict.node, os.getpid())
        try:
            with open(ready, "x", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(ready, self.path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(ready)
        self._say("%s is out of service (%s): %s" % (verdict.node, verdict.reason, self.path))

    def _published(self) -> dict[str, object] | None:
        """What the artifact says; {} where it is not ours to read, None where it is missing or empty."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(_BYTES)
        except FileNotFoundError:
            return None
        try:
            found = json.loads(data)
        except ValueError:
            return {} if data else None
        return found if isinstance(found, dict) else {}

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)


def watch(publisher: Publisher, ends: int) -> None:
    """Looks until the other end of the pipe is closed: the command, and what inherited it, has ended."""
    while not select.select([ends], [], [], LOOK_S)[0]:
        publisher.look()


def leave_watcher(publisher: Publisher) -> None:
    """Starts the process beside the command. The command is not its parent: no `wait` there finds it."""
    ends, held = os.pipe()
    child = os.fork()
    if child:
        os.close(ends)
        os.waitpid(child, 0)
        os.set_inheritable(held, True)
        return
    try:
        if os.fork() == 0:
            os.close(held)
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            watch(publisher, ends)
    finally:
        os._exit(0)


def main(argv: list[str]) -> int:
    if len(argv) < 2 or not os.path.isabs(argv[0]):
        say("usage: python -m healer_steps.segment DIR COMMAND...; DIR is absolute, on shared storage")
        return 2
    if os.environ.get("SLURM_ARRAY_JOB_ID") and os.environ.get("SLURM_ARRAY_TASK_ID"):
        try:
            publisher = Publisher(argv[0], os.environ)
            publisher.begin()
            leave_watcher(publisher)
        except OSError as error:
            say("no segment health artifact: %s" % error)
    else:
        say("no task of a job array: no segment health artifact, as it would exclude the whole job")
    try:
        os.execvp(argv[1], argv[1:])  # noqa: S606 - the user's own command
    except OSError as error:
        say("%s: %s" % (argv[1], error.strerror))
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
