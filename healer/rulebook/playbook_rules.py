"""Reads and checks `rules/playbooks/*.yaml` (steps, conditions, inputs, and playbooks within playbooks; their
JSON schema, for editors), `rules/commands.yaml`, and `rules/validation/depths.yaml` (which tests each depth
runs). Formats: docs/rules.md, docs/playbooks.md."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec

from healer.actions import CHECKS, VERBS, WAITS
from healer.actions.site_command import PLACES, word_placeholders
from healer.incidents.certainty import CONCLUDED
from healer.model import (
    FIT,
    REMEDY_LADDER,
    REMOVING_VERBS,
    Input,
    InputType,
    Playbook,
    Sense,
    SiteCommand,
    Step,
    Validation,
    Verb,
)
from healer.model.vocabulary import did_you_mean
from healer.playbooks.advance import (
    AGREED,
    HIT,
    JOB_LISTS,
    LONGEST_S,
    RESERVED,
    InputInvalid,
    placeholders,
    read_value,
    sole_placeholder,
)
from healer.playbooks.conditions import ConditionError, Literal, StepOutcome, leaf_error, leaves, parse
from healer.playbooks.within import InlineError, inline_playbook
from healer.rulebook.rule_checks import check_runbook
from healer.rulebook.source import Source, Where
from healer.text import joined, said_by, say

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
#: The `input` fields of a step: name, type, whether required.
INPUTS: dict[str, dict[str, tuple[type, bool]]] = {
    "still_slow": {"senses": (int, False)},
    "jobs_left": {"run_on_s": (int, False)},
    "time": {"lasts_s": (int, True)},
    "job_end_or_checkpoint": {"limit_s": (int, False)},
    "link_counters": {"still_s": (int, False)},
    "told_out": {"still_s": (int, True)},
    "lifted": {"lasts_s": (int, False)},
    "history": {"days": (int, False)},
    "spare_inside": {"limit_s": (int, True)},
    Verb.drain: {"adopt": (bool, False), "also_adopt": (bool, False)},
    Verb.release: {"hold": (bool, False), "begin": (bool, False)},
    Verb.diagnose: {"script": (str, False), "depth": (str, False), "limit_s": (int, False)},
    Verb.sweep: {"depth": (str, True), "limit_s": (int, False)},
    Verb.bisect: {"depth": (str, True), "nodes": (str, False)},
    Verb.reset_gpu: {"which": (str, False)},
    Verb.restart_service: {"service": (str, True)},
    Verb.site_command: {"command": (str, True), "argument": (str, False), "by_hand": (str, False)},
}
_TYPES: dict[InputType, type] = {InputType.bool: bool, InputType.int: int, InputType.duration: int}
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]{0,99}")
#: Values that go to a node or a command, or name a file: only from a fixed list.
_CLOSED = ("service", "script", "depth", "which", "command", "argument")


#: No moment of a run is further ahead, or back.
_MOST = {name: LONGEST_S for name in ("lasts_s", "limit_s", "still_s", "run_on_s")} | {"days": 365}


def _wanted(kind: type) -> str:
    if kind is str:
        return say("rulebook.kind_text")
    return say("rulebook.kind_whole_number") if kind is int else say("rulebook.kind_true_or_false")


def check_spec(at: Where, name: str, spec: Input) -> None:
    if not _NAME.fullmatch(name):
        at.problem(say("rulebook.inputs_small_letters_digits", name=name))
    if (spec.type is InputType.choice) != bool(spec.choices):
        text = (
            say("rulebook.needs_choices")
            if spec.type is InputType.choice
            else say("rulebook.choices_no_choice")
        )
        at.problem(say("rulebook.inputs_text", name=name, text=text))
    if spec.required and spec.default is not None:
        at.at("required").problem(say("rulebook.inputs_default_so_never", name=name))
    if spec.default is not None and not (spec.type is InputType.choice and not spec.choices):
        try:
            read_value(name, spec, spec.default)
        except InputInvalid as error:
            at.at("default").problem(say("rulebook.field", field="inputs", text=said_by(error)))


def check_input(at: Where, step: Step, playbook: Playbook) -> None:
    word = step.do or step.check or step.wait or ""
    if word not in {*VERBS, *CHECKS, *WAITS}:
        return  # already reported
    inputs = INPUTS.get(word, {})
    for name, value in step.input.items():
        given = at.at("input", name)
        if name not in inputs:
            hint = did_you_mean(name, list(inputs)) or (
                say("rulebook.reads", inputs=", ".join(inputs)) if inputs else ""
            )
            given.problem(say("rulebook.input_does_not_read", word=word, name=name), hint)
        elif placeholders(value):
            _check_places(given, name, value, inputs[name], playbook)
        elif type(value) is not inputs[name][0]:
            given.problem(say("rulebook.input_kind", name=name, wanted=_wanted(inputs[name][0])))
        else:
            _check_value(given, name, value)
    for name, (_, needed) in inputs.items():
        if needed and name not in step.input:
            at.problem(say("rulebook.step_needs_input", id=step.id, word=word, name=name))


def _check_value(at: Where, name: str, value: Any) -> None:
    most = len(Sense) - len(CONCLUDED)  # a conclusion counts as no second sense
    if name == "service" and not _SERVICE.fullmatch(value):
        at.problem(say("rulebook.input_no_name_service", value=value))
    elif name == "which":
        check_word(at, "which", value, ("gpu", "all"))
    elif name == "senses" and not 1 <= value <= most:
        at.problem(say("rulebook.input_senses_lies_between", most=most))
    elif name in ("lasts_s", "limit_s", "still_s", "days") and value <= 0:
        at.problem(say("rulebook.input_more_than", name=name))
    elif name in _MOST and value > _MOST[name]:
        text = say("rulebook.field", field=name, text=say("rulebook.above_at_most", most=_MOST[name]))
        at.problem(say("rulebook.field", field="input", text=text))


def _check_places(at: Where, name: str, value: Any, reads: tuple[type, bool], playbook: Playbook) -> None:
    """`{input.x}` in a step's input: the playbook has it, of a type that the step reads."""
    wanted, needed = reads
    for place in placeholders(value):
        spec = playbook.inputs.get(place)
        if spec is None:
            at.problem(
                say("rulebook.input_playbook_no_input", place=place), did_you_mean(place, playbook.inputs)
            )
            return
        given = _TYPES.get(spec.type, str)
        if wanted is not str and (sole_placeholder(value) is None or given is not wanted):
            at.problem(
                say(
                    "rulebook.input_kind_of_place",
                    name=name,
                    wanted=_wanted(wanted),
                    place=place,
                    type=spec.type,
                )
            )
        elif needed and not spec.required and spec.default is None:
            at.problem(
                say("rulebook.input_needed_may_missing", name=name, place=place), say("rulebook.give_default")
            )
        elif name in _CLOSED:
            if spec.type is not InputType.choice or sole_placeholder(value) is None:
                text = say("rulebook.input_takes_an_input", name=name)
                at.problem(text, say("rulebook.list_what_may"))
            for choice in spec.choices:
                _check_value(at, name, choice)


def check_word(at: Where, name: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        at.problem(
            say("rulebook.there_no", name=name, word=word),
            did_you_mean(word, words) or say("rulebook.one_of", words=", ".join(words)),
        )


#: Playbooks that people and the API may start by these names at any time.
ALWAYS = ("drain", "resume", "requeue")
KINDS = ("do", "check", "wait", "use")
_STEP_ID = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_TARGETS = ("node", "job")
_LEVELS = (1, 2)
#: They answer yes or no; every other step either works or asks a person.
_VERDICTS = frozenset({
    "fabric_state", "hung", "jobs_left", "link_counters", "memory_health", "power_state", Verb.bisect,
    Verb.diagnose, Verb.reset_gpu, Verb.site_command, Verb.sweep,
})  # fmt: skip
#: They may end the run where nothing needs to be done: a node that is out already would stay so.
_BEFORE_REMOVING = frozenset({
    "still_silent", "still_slow", "job_end_or_checkpoint", "job_end", "reached", "checkpoint", "lifted",
    "spare_ready", "hung", "stacks",
})  # fmt: skip
#: Checks that change nothing of the run: only these may be added to a verb's own.
STEP_CHECKS = ("fabric_state", "node_answers")
#: One that only a verb's look has: it says that there is nothing to do.
PROBES = (*STEP_CHECKS, "job_works")
#: Fields of a step that are words out of a list which the model does not hold.
_WORDS = {
    "do": VERBS,
    "check": CHECKS,
    "wait": WAITS,
    "probe": PROBES,
    "verify": STEP_CHECKS,
    "undo": ("keep",),
    "for_each": JOB_LISTS,
}
#: They work on a job: the run's own, or each of a list. All others, unless in the next set, work on the node.
_OF_JOB = frozenset(
    {
        Verb.shrink,
        Verb.requeue,
        Verb.revive,
        Verb.release,
        Verb.bisect,
        "hung",
        "stacks",
        "checkpoint",
        "job_runs",
    }
)
_OF_EITHER = frozenset({Verb.ticket, Verb.notify, "time", "approval"})
#: Ends by a person or by itself, never at a limit.
_ENDLESS = frozenset({"repair", "approval", "time", "told_out", "lifted"})


def read_playbooks(
    sources: Sequence[Source], scripts: Mapping[str, str], validation: Validation = Validation()
) -> dict[str, Playbook]:
    """All playbooks by name, with those that they use put in their place. Problems go to their sources."""
    found: dict[str, tuple[Source, Playbook]] = {}
    for source in sources:
        playbook = None if source.is_broken else source.convert((), source.data, Playbook)
        if playbook is None:
            continue
        stem = source.name.rpartition("/")[2].removesuffix(".yaml")
        if playbook.name != stem:
            source.at("name").problem(say("rulebook.playbook_in_file", name=playbook.name))
        found[playbook.name] = (source, playbook)
    books = {name: playbook for name, (_, playbook) in found.items()}
    whole: dict[str, Playbook] = {}
    for name, (source, playbook) in found.items():
        before = len(source.problems)
        _check_head(source, playbook)
        for index, step in enumerate(playbook.steps):
            _check_step(source.at("steps", index), step, playbook, scripts)
            _check_depth(source.at("steps", index), step, playbook, validation)
            if step.use is not None:
                _check_use(source.at("steps", index), step, playbook, books)
        if len(source.problems) > before:
            whole[name] = playbook
            if all(step.use is None for step in playbook.steps):
                _check_order(source, playbook, range(len(playbook.steps)))
            continue
        try:
            flat = inline_playbook(playbook, books)
        except InlineError as error:
            source.at("steps", error.index).problem(said_by(error), error.hint)
            whole[name] = playbook
            continue
        _check_order(source, flat.playbook, flat.origin)
        whole[name] = flat.playbook
    return whole


def required_inputs(playbook: Playbook) -> list[str]:
    """Inputs without which it cannot begin."""
    return [name for name, spec in playbook.inputs.items() if spec.required and spec.default is None]


def _check_head(source: Source, playbook: Playbook) -> None:
    check_word(source.at("target"), "target", playbook.target, _TARGETS)
    if playbook.level not in _LEVELS:
        source.at().wrong("level", say("rulebook.responders_may_start_or"))
    check_runbook(source.at(), playbook.runbook)
    if not playbook.steps:
        source.at().wrong("steps", say("rulebook.list_empty"))
    for name, spec in playbook.inputs.items():
        check_spec(source.at("inputs", name), name, spec)
    seen: set[str] = set()
    for index, step in enumerate(playbook.steps):
        if step.id in seen:
            source.at("steps", index, "id").problem(say("rulebook.step_twice", id=step.id))
        seen.add(step.id)


# --- one step ---


def _check_step(at: Where, step: Step, playbook: Playbook, scripts: Mapping[str, str]) -> None:
    if not _STEP_ID.fullmatch(step.id):
        at.wrong("id", say("rulebook.small_letters_digits", id=step.id))
    if step.id in RESERVED:
        at.wrong("id", say("rulebook.word_run_s_log", id=step.id), say("rulebook.take_another"))
    kinds = [name for name in KINDS if getattr(step, name) is not None]
    if len(kinds) != 1:
        text = (
            say("rulebook.has_parts", kinds=joined(kinds, "and"))
            if kinds
            else say("rulebook.none_do_check_wait")
        )
        at.problem(say("rulebook.step", id=step.id, text=text), say("rulebook.step_exactly_one_do"))
    for kind, words in _WORDS.items():
        if (word := getattr(step, kind)) is not None:
            check_word(at.at(kind), kind, word, list(map(str, words)))
    for name in ("probe", "verify", "undo"):
        if getattr(step, name) is not None and step.do is None:
            at.at(name).problem(say("rulebook.step_does_nothing_that", name=name, id=step.id))
    _check_bounds(at, step)
    _check_target(at, step, playbook)
    if step.use is None:
        check_input(at, step, playbook)
    script = step.input.get("script")
    if isinstance(script, str) and not placeholders(script) and script not in scripts:
        hint = did_you_mean(script, list(scripts)) or say("rulebook.file_rules_validation_name")
        at.at("input", "script").problem(say("rulebook.there_no_script", name=script), hint)


def _check_depth(at: Where, step: Step, playbook: Playbook, validation: Validation) -> None:
    """Each depth that may be meant is there, and its job may come to its end. A step has one of the two."""
    given = step.input.get("depth")
    if step.do not in {Verb.bisect, Verb.diagnose, Verb.sweep} or not isinstance(given, str):
        return
    place = sole_placeholder(given)
    spec = playbook.inputs.get(place) if place is not None else None
    named = spec.choices if spec is not None else () if place is not None else (given,)
    for name in named:
        if name != FIT and name not in validation.depths:
            hint = did_you_mean(name, [*validation.depths, FIT]) or say(
                "rulebook.depth_rules_validation_depths"
            )
            at.at("input", "depth").problem(say("rulebook.there_no_depth", name=name), hint)
    meant = {*named, *(validation.fits.values() if FIT in named else ())}
    limits = [validation.depths[name].limit_s for name in meant & validation.depths.keys()]
    longest_s = max(limits, default=0)
    if step.timeout_s < longest_s and "limit_s" not in step.input:
        at.wrong(
            "timeout_s",
            say("rulebook.its_tests_may_take", longest_s=longest_s),
            say("rulebook.at_least_that"),
        )
    if "script" in step.input:
        at.at("input", "depth").problem(
            say("rulebook.step_depth_script", id=step.id), say("rulebook.take_one")
        )


def _check_target(at: Where, step: Step, playbook: Playbook) -> None:
    word = step.do or step.check or step.wait
    if word in _OF_EITHER or word not in {*VERBS, *CHECKS, *WAITS}:
        return  # of a word that does not exist nothing more is known
    if playbook.target == "job" and word not in _OF_JOB:
        at.problem(say("rulebook.step_for_node_this", id=step.id, word=word))
    elif playbook.target == "node" and word in _OF_JOB and step.for_each is None:
        text = say("rulebook.step_for_job_this", id=step.id, word=word)
        at.problem(text, say("rulebook.for_each_jobs_hit"))


def _check_bounds(at: Where, step: Step) -> None:
    check = at.check
    for name in ("timeout_s", "back_off_max_s", "wait_s"):
        check(name, (getattr(step, name) or 0) <= LONGEST_S, say("rulebook.s_at_most", most=LONGEST_S))
    check("timeout_s", step.timeout_s > 0, say("rulebook.more_than"))
    check("retries", step.retries >= 0, say("rulebook.must_not_negative"))
    check("back_off_s", step.back_off_s > 0, say("rulebook.more_than"))
    check("back_off_max_s", step.back_off_max_s >= step.back_off_s, say("rulebook.at_least_back_off"))
    if step.wait_s is not None:
        check("wait_s", step.wait_s > 0, say("rulebook.more_than"))
        bounded = bool(step.wait) and step.wait not in _ENDLESS
        check("wait_s", bounded, say("rulebook.only_wait_for_moment"))


# --- playbooks within playbooks ---


def _check_use(at: Where, step: Step, playbook: Playbook, books: Mapping[str, Playbook]) -> None:
    used = books.get(step.use or "")
    if used is None:
        hint = did_you_mean(step.use or "", books) or say("rulebook.one_of", words=", ".join(sorted(books)))
        at.wrong("use", say("rulebook.there_no_playbook", name=step.use), hint)
        return
    if used.target != playbook.target:
        at.wrong(
            "use",
            say("rulebook.for_this_one_for", name=used.name, target=used.target, target2=playbook.target),
        )
    if used.level > playbook.level:
        text = say("rulebook.only_an_operator_may", name=used.name)
        at.wrong("use", text, f"level: {used.level}")
    if step.for_each is not None:
        at.wrong("for_each", say("rulebook.playbook_within_another_one"))
    for name, value in step.input.items():
        _check_given(at.at("input", name), name, value, used, playbook)
    for name in required_inputs(used):
        if name not in step.input:
            at.problem(say("rulebook.step_needs_input", id=step.id, word=used.name, name=name))


def _check_given(at: Where, name: str, value: Any, used: Playbook, playbook: Playbook) -> None:
    spec = used.inputs.get(name)
    if spec is None:
        at.problem(
            say("rulebook.input_no_input", playbook=used.name, input=name), did_you_mean(name, used.inputs)
        )
    elif (place := sole_placeholder(value)) is not None:
        outer = playbook.inputs.get(place)
        same = outer is not None and (outer.type, outer.choices) == (spec.type, spec.choices)
        if outer is None:
            at.problem(say("rulebook.input_playbook_no_input", place=place))
        elif not same:
            at.problem(
                say("rulebook.input_not_accepted", place=place, playbook=used.name, input=name),
                str(spec.type),
            )
        elif name in required_inputs(used) and not outer.required and outer.default is None:
            at.problem(
                say("rulebook.input_needed_may_missing", name=name, place=place), say("rulebook.give_default")
            )
    else:
        try:
            read_value(name, spec, value)
        except InputInvalid as error:
            at.problem(say("rulebook.field", field="input", text=said_by(error)))


# --- the whole in its order ---


def _check_order(source: Source, playbook: Playbook, origin: Sequence[int]) -> None:
    """What rests on the steps before. `origin`: by step, the entry of this file that it comes from."""
    seen: dict[str, Step] = {}
    for index, step in zip(origin, playbook.steps, strict=True):
        at = source.at("steps", index)
        if step.when is not None:
            _check_when(at.at("when"), step.when, seen, playbook)
        removed = any(earlier.do in REMOVING_VERBS for earlier in seen.values())
        word = step.check or step.wait
        if removed and word in _BEFORE_REMOVING:
            text = say("rulebook.may_end_run_stand", word=word)
            at.problem(text)
        listed = any(earlier.check == HIT for earlier in seen.values())
        if step.for_each in JOB_LISTS and step.for_each != AGREED and not listed:
            text = say("rulebook.for_each_without_list", name=step.for_each)
            at.at("for_each").problem(text, say("rulebook.for_each_without_list_hint"))
        seen[step.id] = step


def _check_when(at: Where, when: str, before: dict[str, Step], playbook: Playbook) -> None:
    try:
        condition = parse(when)
    except ConditionError as error:
        at.problem(
            say("rulebook.field", field="when", text=said_by(error)), say("rulebook.such_as_test_failed")
        )
        return
    for leaf in leaves(condition):
        if isinstance(leaf, StepOutcome):
            _check_ended(at, leaf, before, playbook)
        elif not isinstance(leaf, Literal) and (text := leaf_error(leaf, playbook.inputs)):
            at.problem(say("rulebook.field", field="when", text=text))


def _check_ended(at: Where, leaf: StepOutcome, before: dict[str, Step], playbook: Playbook) -> None:
    step = before.get(leaf.step)
    if step is None:
        later = any(other.id == leaf.step for other in playbook.steps)
        text = (
            say("rulebook.step_comes_later", step=leaf.step)
            if later
            else say("rulebook.there_no_step", step=leaf.step)
        )
        at.problem(
            say("rulebook.field", field="when", text=text),
            did_you_mean(leaf.step, list(before)) or say("rulebook.name_an_earlier_step"),
        )
    elif step.for_each is not None:
        at.problem(say("rulebook.when_step_made_parts", step=leaf.step))
    elif leaf.word == "failed" and not step.may_fail and (step.check or step.do) not in _VERDICTS:
        hint = say("rulebook.only_step_with_may", kinds=joined(sorted(map(str, _VERDICTS)), "and"))
        at.problem(say("rulebook.when_step_never_fails", step=leaf.step), hint)


def playbook_schema() -> dict[str, Any]:
    """JSON Schema 2020-12. What rests on more than one place of a file (an earlier step, an input, a script)
    is checked at load alone (`healer rules check`)."""
    (top,), parts = msgspec.json.schema_components([Playbook], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "properties" in part:
            part["additionalProperties"] = False
    step = parts["Step"]
    for name, words in _WORDS.items():
        step["properties"][name] = {"enum": [*sorted(str(word) for word in words), None]}
    step["oneOf"] = [{"required": [kind]} for kind in KINDS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "$defs": dict(sorted(parts.items())),
    }


# --- commands of the site, and the tests of each depth

_COMMAND_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
#: What would read its words as a program of its own.
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh", "csh", "fish", "env", "xargs", "eval", "sudo"})
_TIMEOUT_MOST_S = 24 * 3600


def read_commands(source: Source) -> dict[str, SiteCommand]:
    """By name. What is wrong goes to the source's problems."""
    found: dict[str, SiteCommand] = {}
    for at, command in source.entries(SiteCommand, unique=True):
        check, name = at.check, command.name
        named = _COMMAND_NAME.fullmatch(name) is not None
        check("name", named, say("rulebook.name_characters", name=name))
        at.check_above_0("timeout_s", command.timeout_s, _TIMEOUT_MOST_S)
        _check_argv(at, command)
        found[command.name] = command
    return found


def _check_argv(at: Where, command: SiteCommand) -> None:
    if not command.argv:
        at.wrong("argv", say("rulebook.list_empty"))
        return
    program = command.argv[0]
    if not program.startswith("/") or word_placeholders(program):
        at.at("argv", 0).problem(say("rulebook.argv_program_s_whole", program=program))
    if PurePosixPath(program).name in _SHELLS:
        text = say("rulebook.argv_starts_whatever_given", name=PurePosixPath(program).name)
        at.at("argv", 0).problem(text, say("rulebook.put_into_script_site"))
    for number, word in enumerate(command.argv):
        if "\0" in word or "\n" in word:
            at.at("argv", number).problem(say("rulebook.argv_word_one_line"))
        for place in word_placeholders(word):
            if place not in PLACES:
                hint = did_you_mean(place, PLACES) or say("rulebook.one_of", words=", ".join(PLACES))
                at.at("argv", number).problem(say("rulebook.argv_nothing_known_by", place=place), hint)


def check_uses(
    sources: Sequence[Source], playbooks: Mapping[str, Playbook], commands: Mapping[str, SiteCommand]
) -> None:
    """A command that takes capacity comes after a drain, and a step waits as long as its command may take.

    One that is not on the site's list is no fault: its step asks a person.
    """
    for source in sources:
        playbook = playbooks.get(source.name.rpartition("/")[2].removesuffix(".yaml"))
        if playbook is None or any(step.use for step in playbook.steps):
            continue  # its problem is already reported
        written = source.data.get("steps") if isinstance(source.data, dict) else None
        as_written = isinstance(written, list) and len(written) == len(playbook.steps)
        drained = False
        for index, step in enumerate(playbook.steps):
            drained = drained or step.do is Verb.drain
            if step.do is not Verb.site_command:
                continue
            for command in (commands[name] for name in _named(step, playbook) if name in commands):
                at = source.at("steps", index) if as_written else source.at("steps")  # from another file
                _check_command_use(at, step, command, drained=drained)


def _check_command_use(at: Where, step: Step, command: SiteCommand, *, drained: bool) -> None:
    if command.takes_capacity and not drained:
        text = say("rulebook.step_takes_capacity_no", id=step.id, name=command.name)
        at.problem(text, say("rulebook.let_gate_judge_do"))
    if step.timeout_s < command.timeout_s:
        text = say("rulebook.may_take_s", name=command.name, timeout_s=command.timeout_s)
        at.wrong("timeout_s", text, f"timeout_s: {command.timeout_s + 60:g}")


def _named(step: Step, playbook: Playbook) -> Sequence[str]:
    command = step.input.get("command")
    place = sole_placeholder(command)
    if place is not None:
        return playbook.inputs[place].choices if place in playbook.inputs else ()
    return (str(command),)


#: A job of tests ends within a day.
_LIMIT_MAX_S = 86400


def read_validation(source: Source, scripts: Mapping[str, str]) -> Validation:
    """What is wrong goes to the source's problems; without the file there are no depths."""
    read = source.convert((), source.data, Validation) if source.data is not None else None
    if read is None:
        return Validation()
    for name, depth in read.depths.items():
        at = source.at("depths", name)
        check = at.check
        if name == FIT:
            at.problem(say("rulebook.depths_what_follows_from", fit=FIT), say("rulebook.give_another_name"))
        different = len(set(depth.tests)) == len(depth.tests) > 0
        check("tests", different, say("rulebook.list_different_tests_not"))
        check("pair", len(set(depth.pair)) == len(depth.pair), say("rulebook.list_different_tests"))
        for key, tests in (("tests", depth.tests), ("pair", depth.pair)):
            for index, test in enumerate(tests):
                if test not in scripts:
                    hint = did_you_mean(test, list(scripts)) or say("rulebook.file_rules_validation_name")
                    text = say("rulebook.field", field=key, text=say("rulebook.there_no_script", name=test))
                    at.at(key, index).problem(text, hint)
        at.check_above_0("limit_s", depth.limit_s, _LIMIT_MAX_S)
    for remedy, name in read.fits.items():
        if remedy not in REMEDY_LADDER:
            source.at("fits", str(remedy)).problem(say("rulebook.fits_no_rung_ladder", remedy=remedy))
        if name not in read.depths:
            source.at("fits", str(remedy)).problem(say("rulebook.fits_there_no_depth", name=name))
    is_depth = read.otherwise in read.depths
    source.at().check("otherwise", is_depth, say("rulebook.there_no_depth", name=read.otherwise))
    return read
