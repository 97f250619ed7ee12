"""A command of the site: one of a closed list, started once under its key, its exit status read back.

0: it did. 1: it says no. Anything else, a time-out and no answer ask a person: nobody knows what was done.
"""

import re
from collections.abc import Mapping
from itertools import pairwise

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.links import port_of
from healer.model import CommandSeen, StepEvent
from healer.ports.site_commands import CommandFailed

LOOK_AGAIN_S = 2.0
#: What may stand in a command's words, and what it is replaced by.
PLACES = ("cluster", "node", "device", "port", "incident", "run", "argument")
_PLACE = re.compile(r"\{([^{}]*)\}")
#: No blank, no quote, no leading dash: what was told by a signal is never an option, nor two words.
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


class NotFilled(Exception):
    """A place of the command's words has nothing to stand in it. One sentence."""


def places_in(word: str) -> list[str]:
    return _PLACE.findall(word)


def filled(argv: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """The words with what stands in their places. Raises NotFilled; nothing is ever left out or quoted."""

    def one(found: re.Match[str]) -> str:
        name, value = found.group(1), values.get(found.group(1), "")
        if not value:
            raise NotFilled(f"it needs {{{name}}}, and nobody told one")
        if not _VALUE.fullmatch(value) or ".." in value:
            raise NotFilled(f"it needs {{{name}}}, and {value!r} is no plain word")
        return value

    return tuple(_PLACE.sub(one, word) for word in argv)


def values_of(ctx: Context) -> dict[str, str]:
    """By place. The port is the one that the incident names, at the node or at its switch."""
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
    command = ctx.known_commands.get(name)
    if command is None:
        return _by_hand(ctx, name)
    if ctx.commands is None:
        return Failed(text=f"healer starts no commands here: {name} was not run.", final=True)
    seen = ctx.commands.look(ctx.key)
    if seen.state != "never":
        return _told(ctx, seen)
    if ctx.asked:
        # Another machine's worker started it, or its record is gone: to start it again might do it twice.
        text = f"{name} was started, and this machine knows nothing of it. See what it did, then Try again."
        return Failed(text=text, final=True)
    return None


def _by_hand(ctx: Context, name: str) -> Result:
    """What the site has no command for a person does, where the step says what; their word lets it go on."""
    what = ctx.step.input.get("by_hand")
    text = f"The site has no command {name} (rules/commands.yaml)"
    if not what:
        return Failed(text=f"{text}: nothing was done.", final=True)
    text = f"{text}. By hand: {what}. Then Try again: the run goes on from there."
    own = [one for one in ctx.log if one.step == ctx.part]
    for question, answer in pairwise(own):
        if question.text == text and answer.event is StepEvent.retry:
            return Done(text=f"{name} by hand: {answer.text}", data={"passed": True, "by_hand": True})
    return Failed(text=text, final=True)


def _do(ctx: Context) -> Result | None:
    command = ctx.known_commands[_name(ctx)]
    assert ctx.commands is not None  # the probe has looked
    try:
        argv = filled(command.argv, values_of(ctx))
    except NotFilled as error:
        return Failed(text=f"{command.name} was not run: {error}.", final=True)
    ctx.fence()
    try:
        ctx.commands.start(ctx.key, argv, command.timeout_s)
    except CommandFailed as error:
        return Failed(text=f"{command.name} was not run: {error}.", final=True)
    return None


def _verify(ctx: Context) -> Result:
    assert ctx.commands is not None
    return _told(ctx, ctx.commands.look(ctx.key))


def _told(ctx: Context, seen: CommandSeen) -> Result:
    name = _name(ctx)
    if seen.state == "running":
        return Again(text=f"{name} is running", after_s=LOOK_AGAIN_S)
    if seen.state == "never":  # its runner was too slow, and ended before it
        return Failed(text=f"{name} did not begin.")
    said = f": {' '.join(seen.output.split())[-300:]}" if seen.output.strip() else ""
    if seen.state == "ended" and seen.code in (0, 1):
        data = {"passed": seen.code == 0, "code": seen.code, "output": seen.output}
        return Done(text=f"{name} {'did it' if seen.code == 0 else 'says no'}{said}", data=data)
    how = {
        "ended": f"ended with {seen.code}",
        "timed_out": "did not end in time and was killed",
        "lost": "was cut short",
    }[seen.state]
    text = f"{name} {how}{said}. Nobody knows what it did: look, then Try again runs it once more."
    return Failed(text=text, final=True)


SITE_COMMAND = Action(probe=_probe, do=_do, verify=_verify)
