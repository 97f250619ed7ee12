"""A site command: one of a closed list, started once under its key, its exit status read back.

0: done. 1: no. Any other status, a time-out and no answer ask a person, as the effect is unknown.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.model import DEVICE_MARK, Column, CommandSeen, Component, Incident, Part, StepEvent
from healer.ports.node_exec import CommandFailed

_COUNTERS_AGAIN_S = 15.0
STILL_S = 600
#: Longest `still_s`: samples are kept for an hour.
STILL_MOST_S = 3000
#: Older values are stale: three missed samples of the slowest usual cadence (60 s).
STALE = timedelta(seconds=180)
#: Parts of the names of error counters; traffic, waits and pauses are no errors.
_ERRORS = (
    "error", "crc", "ecc", "replay", "recovery", "down", "integrity", "physical", "malformed",
    "uncorrectable",
)  # fmt: skip

#: (when it arrived, value), oldest first.
Points = Sequence[tuple[datetime, float]]


class Link(msgspec.Struct, frozen=True):
    """`subject`: the node, or `@` and the device, with the counters of the link; `parts`: its ends there."""

    subject: str
    parts: tuple[Part, ...]


def link_of(incident: Incident) -> Link | None:
    """The port or NVLink that the incident is about; for a whole switch the ports of its evidence."""
    root = incident.root
    at = [root, *(evidence.component for evidence in incident.evidence if _same(evidence.component, root))]
    parts = tuple(dict.fromkeys(part for component in at if (part := _part(component)) is not None))
    subject = root.node or (f"{DEVICE_MARK}{root.device}" if root.device else "")
    return Link(subject, parts) if subject and parts else None


def port_of(incident: Incident) -> str | None:
    """The port's name; None unless the incident names exactly one."""
    found = link_of(incident)
    ports = {part.port for part in found.parts} if found is not None else set()
    return ports.pop() if len(ports) == 1 else None


def _same(component: Component, root: Component) -> bool:
    if root.node:
        return component.node == root.node
    return component.device is not None and component.device == root.device


def _part(where: Component) -> Part | None:
    if where.link is not None:
        return Part(gpu=where.gpu, link=where.link)
    name = where.nic or (where.part if where.device and not where.node else None)
    return Part(port=name) if name else None


def counts_errors(signal: str) -> bool:
    return signal.endswith("_total") and any(word in signal for word in _ERRORS)


def is_unchanged(points: Points, now: datetime, still: timedelta) -> bool | None:
    """Whether the counter has not changed for `still`; None: not known yet. A reset is a change."""
    if not points or now - points[-1][0] > STALE:
        return None
    last = points[-1][1]
    changed = next((at for at, value in reversed(points) if value != last), None)
    since = points[0][0] if changed is None else next(at for at, _ in points if at > changed)
    if points[-1][0] - since >= still:
        return True
    return None if changed is None else False


def _check(ctx: Context) -> Result:
    """Whether the link's error counters have stopped, from the beginning of this check.

    No: they still count when the step's time is over. Unknown then: a person is asked.
    """
    if ctx.incident is None or (link := link_of(ctx.incident)) is None:
        return Failed(text="The run's incident names no link, so no counter can be looked at.", final=True)
    if ctx.tools.readings is None:
        return Failed(text="healer reads no counters here.", final=True)
    still = timedelta(seconds=min(int(ctx.step.input.get("still_s", STILL_S)), STILL_MOST_S))
    now = ctx.tools.now()
    counters = ctx.tools.readings.counters(link.subject, ctx.began_at)
    of_link = {
        column: points
        for column, points in counters.items()
        if column.part in link.parts and counts_errors(column.signal)
    }
    answers = {column: is_unchanged(points, now, still) for column, points in of_link.items()}
    where = f"{link.subject.removeprefix(DEVICE_MARK)} {_named(link.parts)}"
    over = (now - ctx.began_at).total_seconds() >= ctx.step.timeout_s
    if answers and all(answers.values()):
        text = f"{where}: {len(answers)} error counters stood still for {still.total_seconds():.0f} s"
        return Done(text=text, data={"passed": True, "counters": sorted(column.signal for column in answers)})
    moving = sorted({column.signal for column, answer in answers.items() if answer is False})
    if moving:
        text = f"{where}: errors go on ({', '.join(f'{name} {_last(of_link, name)}' for name in moving[:4])})"
        return Done(text=text, data={"passed": False, "counters": moving}) if over else _again(text)
    if not answers:
        text = f"Nobody tells error counters of {where} since {ctx.began_at:%H:%M:%S} UTC"
    else:
        text = f"{where}: whether its {len(answers)} error counters stand still is not known yet"
    return Failed(text=f"{text}. Look at the link yourself.", final=True) if over else _again(text)


def _again(text: str) -> Again:
    return Again(text=text, after_s=_COUNTERS_AGAIN_S)


def _named(parts: Sequence[Part]) -> str:
    names = [part.port or f"GPU {part.gpu} link {part.link}" for part in parts]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _last(counters: Mapping[Column, Points], signal: str) -> str:
    return f"{max(points[-1][1] for column, points in counters.items() if column.signal == signal):.0f}"


LINK_COUNTERS = Action(verify=_check, effect=False)


_RUNNING_AGAIN_S = 2.0
#: Placeholders in a command's words.
PLACES = ("cluster", "node", "device", "port", "incident", "run", "argument")
_PLACE = re.compile(r"\{([^{}]*)\}")
#: No blank, no quote, no leading dash: a value from a signal is never an option, nor two words.
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


class MissingValue(Exception):
    """A placeholder of the command has no usable value; the text is a sentence."""


def word_placeholders(word: str) -> list[str]:
    return _PLACE.findall(word)


def fill_words(argv: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """The words with their placeholders filled. Raises MissingValue; nothing is left out or quoted."""

    def value_for(found: re.Match[str]) -> str:
        name, value = found.group(1), values.get(found.group(1), "")
        if not value:
            raise MissingValue(f"it needs {{{name}}}, and nobody told one")
        if not _VALUE.fullmatch(value) or ".." in value:
            raise MissingValue(f"it needs {{{name}}}, and {value!r} is no plain word")
        return value

    return tuple(_PLACE.sub(value_for, word) for word in argv)


def placeholder_values(ctx: Context) -> dict[str, str]:
    """Placeholder -> value. The port is the one that the incident names, at the node or its switch."""
    root = ctx.incident.root if ctx.incident is not None else None
    port = port_of(ctx.incident) if ctx.incident is not None else None
    found = {
        "cluster": ctx.run.cluster,
        "node": ctx.run.node,
        "device": root and (root.device or root.switch),
        "port": port,
        "incident": ctx.run.incident,
        "run": ctx.run.id,
        "argument": str(ctx.step.input.get("argument", "")),
    }
    return {name: value for name, value in found.items() if value}


def _name(ctx: Context) -> str:
    return str(ctx.step.input["command"])


def _probe(ctx: Context) -> Result | None:
    name = _name(ctx)
    command = ctx.tools.known_commands.get(name)
    if command is None:
        return _by_hand(ctx, name)
    if ctx.tools.commands is None:
        return Failed(text=f"healer starts no commands here: {name} was not run.", final=True)
    seen = ctx.tools.commands.look(ctx.key)
    if seen.state != "never":
        return _result_of(ctx, seen)
    if ctx.asked:
        # A worker on another machine started it, or its record is lost: a restart might do it twice.
        text = f"{name} was started, and this machine knows nothing of it. See what it did, then Try again."
        return Failed(text=text, final=True)
    return None


def _by_hand(ctx: Context, name: str) -> Result:
    """Without a command of the site a person does what the step's `by_hand` says; their retry confirms it."""
    what = ctx.step.input.get("by_hand")
    text = f"The site has no command {name} (rules/commands.yaml)"
    if not what:
        return Failed(text=f"{text}: nothing was done.", final=True)
    text = f"{text}. By hand: {what}. Then Try again: the run goes on from there."
    entries = [entry for entry in ctx.log if entry.step == ctx.part]
    for question, answer in pairwise(entries):
        if question.text == text and answer.event is StepEvent.retry:
            return Done(text=f"{name} by hand: {answer.text}", data={"passed": True, "by_hand": True})
    return Failed(text=text, final=True)


def _do(ctx: Context) -> Result | None:
    command = ctx.tools.known_commands[_name(ctx)]
    assert ctx.tools.commands is not None  # the probe has looked
    try:
        argv = fill_words(command.argv, placeholder_values(ctx))
    except MissingValue as error:
        return Failed(text=f"{command.name} was not run: {error}.", final=True)
    ctx.fence()
    try:
        ctx.tools.commands.start(ctx.key, argv, command.timeout_s)
    except CommandFailed as error:
        return Failed(text=f"{command.name} was not run: {error}.", final=True)
    return None


def _verify(ctx: Context) -> Result:
    assert ctx.tools.commands is not None
    return _result_of(ctx, ctx.tools.commands.look(ctx.key))


def _result_of(ctx: Context, seen: CommandSeen) -> Result:
    name = _name(ctx)
    if seen.state == "running":
        return Again(text=f"{name} is running", after_s=_RUNNING_AGAIN_S)
    if seen.state == "never":  # its runner was too slow, and ended before it
        return Failed(text=f"{name} did not begin.")
    output = f": {' '.join(seen.output.split())[-300:]}" if seen.output.strip() else ""
    if seen.state == "ended" and seen.code in (0, 1):
        data = {"passed": seen.code == 0, "code": seen.code, "output": seen.output}
        return Done(text=f"{name} {'did it' if seen.code == 0 else 'says no'}{output}", data=data)
    how = {
        "ended": f"ended with {seen.code}",
        "timed_out": "did not end in time and was killed",
        "lost": "was cut short",
    }[seen.state]
    text = f"{name} {how}{output}. Nobody knows what it did: look, then Try again runs it once more."
    return Failed(text=text, final=True)


SITE_COMMAND = Action(probe=_probe, do=_do, verify=_verify)
