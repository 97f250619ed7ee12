"""A site command: one of a fixed list, started once under its key, with its exit status read back.

0: done. 1: no. Any other status, a time-out or a missing answer asks a person, because the effect is unknown.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.model import DEVICE_MARK, Column, CommandSeen, Component, Incident, Part, StepEvent
from healer.ports.node_exec import CommandFailed
from healer.text import Said, joined, name_some, quoted, said_by, say

_COUNTERS_AGAIN_S = 15.0
STILL_S = 600
#: Longest `still_s`: samples are kept for an hour.
STILL_MOST_S = 3000
#: Older values are stale: three missed samples of the slowest usual cadence (60 s).
STALE = timedelta(seconds=180)
#: Parts of the names of error counters; counters of traffic, waits and pauses are no errors.
_ERRORS = (
    "error", "crc", "ecc", "replay", "recovery", "down", "integrity", "physical", "malformed",
    "uncorrectable",
)  # fmt: skip

#: (when it arrived, value), oldest first.
Points = Sequence[tuple[datetime, float]]


class Link(msgspec.Struct, frozen=True):
    """`subject`: the node, or `@` and the device, with the counters of the link; `parts`: the link's ends
    there."""

    subject: str
    parts: tuple[Part, ...]


def link_of(incident: Incident) -> Link | None:
    """The port or NVLink that the incident is about; for a whole switch the ports in its evidence."""
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


def link_counters(ctx: Context) -> Result:
    """Whether the link's error counters have stopped, since the beginning of this check.

    No: they still count when the step's time is over. If that is unknown then, a person is asked.
    """
    if ctx.incident is None or (link := link_of(ctx.incident)) is None:
        return Failed(say("actions.link_not_named"), final=True)
    if ctx.tools.readings is None:
        return Failed(say("actions.link_no_readings"), final=True)
    still = timedelta(seconds=min(int(ctx.step.input.get("still_s", STILL_S)), STILL_MOST_S))
    now = ctx.tools.now()
    counters = ctx.tools.readings.counters(link.subject, ctx.began_at)
    of_link = {
        column: points
        for column, points in counters.items()
        if column.part in link.parts and counts_errors(column.signal)
    }
    answers = {column: is_unchanged(points, now, still) for column, points in of_link.items()}
    names = [part.port or say("actions.link_of_gpu", gpu=part.gpu, link=part.link) for part in link.parts]
    where = joined([link.subject.removeprefix(DEVICE_MARK), name_some(names, 3)], "space")
    over = (now - ctx.began_at).total_seconds() >= ctx.step.timeout_s
    if answers and all(answers.values()):
        text = say("actions.link_still", where=where, n=len(answers), seconds=still.total_seconds())
        return Done(text, {"passed": True, "counters": sorted(column.signal for column in answers)})
    moving = sorted({column.signal for column, answer in answers.items() if answer is False})
    if moving:
        figures = ", ".join(f"{name} {_last(of_link, name)}" for name in moving[:4])
        text = say("actions.link_errors", where=where, figures=figures)
        return Done(text, {"passed": False, "counters": moving}) if over else _again(text)
    if not answers:
        text = say("actions.link_no_counters", where=where, time=f"{ctx.began_at:%H:%M:%S}")
    else:
        text = say("actions.link_not_known_yet", where=where, n=len(answers))
    if over:
        return Failed(say("actions.link_look_yourself", text=text), final=True)
    return _again(text)


def _again(text: Said) -> Again:
    return Again(text, _COUNTERS_AGAIN_S)


def _last(counters: Mapping[Column, Points], signal: str) -> str:
    return f"{max(points[-1][1] for column, points in counters.items() if column.signal == signal):.0f}"


_RUNNING_AGAIN_S = 2.0
_WHERE = "place"
#: Placeholders in a command's words.
PLACES = ("cluster", "node", "device", "port", "incident", "run", "argument")
_PLACE = re.compile(r"\{([^{}]*)\}")
#: No blank, no quote, no leading dash: a value from a signal can be neither an option nor two words.
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
            raise MissingValue(say("actions.command_value_missing", name=name))
        if not _VALUE.fullmatch(value) or ".." in value:
            raise MissingValue(say("actions.command_value_unusable", name=name, value=value))
        return value

    return tuple(_PLACE.sub(value_for, word) for word in argv)


def placeholder_values(ctx: Context) -> dict[str, str]:
    """Placeholder -> value. The port is the one named by the incident, at the node or its switch."""
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
        return Failed(say("actions.command_none_here", name=name), final=True)
    seen = ctx.tools.commands.look(ctx.key)
    if seen.state != "never":
        return _result_of(ctx, seen)
    try:
        begun = any(place != ctx.tools.commands.place() for place in _places(ctx))
    except CommandFailed as error:
        return _not_run(name, error)
    if begun:
        # A worker on another machine started it, or its record is lost: a restart might do it twice.
        return Failed(say("actions.command_elsewhere", name=name), final=True)
    return None


def _places(ctx: Context) -> list[str | None]:
    """For each entry since the step was granted, the place where the command was going to be started; None
    for an entry of a started command."""
    return [line.data.get(_WHERE) for line in ctx.lines if line.event is StepEvent.waiting]


def _by_hand(ctx: Context, name: str) -> Result:
    """Without a site command, a person does what the step's `by_hand` says; their retry confirms it."""
    what = ctx.step.input.get("by_hand")
    if not what:
        return Failed(say("actions.command_missing", name=name), final=True)
    text = say("actions.command_by_hand", name=name, what=quoted(str(what)))
    entries = [entry for entry in ctx.log if entry.step == ctx.part]
    for question, answer in pairwise(entries):
        if question.text == text and answer.event is StepEvent.retry:
            done = say("actions.command_done_by_hand", name=name, text=answer.text)
            return Done(done, {"passed": True, "by_hand": True})
    return Failed(text, final=True)


def _do(ctx: Context) -> Result | None:
    command = ctx.tools.known_commands[_name(ctx)]
    assert ctx.tools.commands is not None  # the probe has looked
    try:
        argv = fill_words(command.argv, placeholder_values(ctx))
        if not _places(ctx):
            # Logged before the start: a worker on another machine cannot see what happened to it.
            text = say("actions.command_not_begun", name=command.name)
            return Again(text, 0, data={_WHERE: ctx.tools.commands.place()})
    except (MissingValue, CommandFailed) as error:
        return _not_run(command.name, error)
    ctx.fence()
    try:
        ctx.tools.commands.start(ctx.key, argv, command.timeout_s)
    except CommandFailed as error:
        return _not_run(command.name, error)
    return None


def _not_run(name: str, error: MissingValue | CommandFailed) -> Failed:
    return Failed(say("actions.command_not_run", name=name, error=said_by(error)), final=True)


def _verify(ctx: Context) -> Result:
    assert ctx.tools.commands is not None
    return _result_of(ctx, ctx.tools.commands.look(ctx.key))


def _result_of(ctx: Context, seen: CommandSeen) -> Result:
    name = _name(ctx)
    if seen.state == "running":
        return Again(say("actions.command_running", name=name), _RUNNING_AGAIN_S)
    if seen.state == "never":  # its runner was too slow, and ended before it
        return Failed(say("actions.command_not_begun", name=name))
    if seen.state == "ended" and seen.code in (0, 1):
        data = {"passed": seen.code == 0, "code": seen.code, "output": seen.output}
        text = say("actions.command_did_it" if seen.code == 0 else "actions.command_says_no", name=name)
        return Done(_with_output(text, seen), data)
    how = _with_output(say(f"actions.command_how_{seen.state}", name=name, code=seen.code), seen)
    return Failed(say("actions.command_unclear", how=how), final=True)


def _with_output(text: Said, seen: CommandSeen) -> Said:
    output = " ".join(seen.output.split())[-300:]
    return say("actions.command_output", text=text, output=output) if output else text


SITE_COMMAND = Action(probe=_probe, do=_do, verify=_verify)
