"""The batch job that runs tests on a node one after the other, and the results that it writes to Slurm. Pure.

healer cannot read a file that a job writes on its node. So the results go into the job's admin comment, which
only operators may set. It is updated after each test, so that the results are there even if the time limit
ends the job. The exit code is the verdict: 0 passed, 77 not tested, otherwise failed. The comment is one line
of at most 2,000 characters, with parts separated by `; `:

    healer-test/1; gpus:passed:2; gpu_count=8; versions:failed:1; driver=580.65.06; says versions …
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256

import msgspec

from healer.model import FACTS, FIGURE_SHARE, NOT_COMPARED, Reference, figures_in
from healer.text import NO_WORDS, Said, joined, say

#: Exit code of a test that could not be run: its program is missing, or there is nothing to test.
NOT_TESTED = 77
#: Maximum length of the results of one job, in characters; the rest is left out and marked as cut.
ROOM = 2000
#: Version of the comment's format.
FORM = "healer-test/1"

_HEAD = """\
# Made by healer of rules/validation: its tests, in their order.
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin
LC_ALL=C
HEALER_TEST_DEPTH={depth}
export PATH LC_ALL HEALER_TEST_DEPTH
umask 077
dir=$(mktemp -d) || exit {not_tested}
trap 'rm -rf "$dir"' EXIT
# Slurm ends a job by a signal, and then not every shell does what it should at its exit.
trap 'exit 143' HUP INT TERM
TMPDIR=$dir
export TMPDIR
results="{form}"
printed=no

# Slurm's record of this job, as it is by now.
tell() {{
    timeout 30 scontrol update JobId="$SLURM_JOB_ID" AdminComment="$results" >/dev/null 2>&1
}}

# One line that a test printed.
note() {{
    line=$1
    set -f
    # shellcheck disable=SC2086
    set -- $line
    set +f
    case $1 in
    healer-says) said=$(printf '%s' "${{line#* }}" | tr -c ' -~' ' ' | tr ';|"\\\\' ' ' | cut -c 1-160) ;;
    healer-result)
        part="; $2=$3"
        case "$2 $3" in
        [!a-z]* | *[!a-z0-9_]*" "* | *" "*[!A-Za-z0-9_.,:+/-]*) more="$more; cut" ;;
        *)
            if [ $# -eq 3 ] && [ ${{#2}} -le 40 ] && [ ${{#3}} -le 128 ] &&
                [ $((${{#results}} + ${{#more}} + ${{#part}})) -le {room} ]; then
                more="$more$part"
            else
                more="$more; cut"
            fi
            ;;
        esac
        ;;
    esac
}}

# One test: its results join the others, its exit code is ours. The last line counts as what it says. Of
# output with a NUL byte grep would show nothing.
run() {{ # NAME INTERPRETER…
    name=$1
    shift
    began=$(date +%s)
    {{
        "$@" "$dir/$name" </dev/null 2>/dev/null
        echo $? >"$dir/code"
    }} | tr -d '\\000' | grep '^healer-' | {{ head -n 100; cat >/dev/null; }} >"$dir/lines"
    more= said=
    while read -r line; do note "$line"; done <"$dir/lines"
    code=$(cat "$dir/code") || code={not_tested}
    rm -f "$dir/code"
    case $code in
    0) outcome=passed ;;
    {not_tested}) outcome=untested ;;
    *) outcome=failed ;;
    esac
    [ -z "$more" ] || printed=yes
    results="$results; $name:$outcome:$(($(date +%s) - began))$more"
    [ -z "$said" ] || results="$results; says $name $said"
    return "$code"
}}

"""

# If the first test could not be run, the node counts as not tested. Other tests that could not be run are
# only reported.
_ONE = """\
run {name} {interpreter}
code=$?
if tell; then heard=yes; else heard=no; fi
[ $code -eq 0 ]{untested} || exit $code
"""


# Results that did not reach Slurm prove nothing.
_END = """\
[ $heard = yes ] || [ $printed = no ] || exit {not_tested}
exit 0
"""


def batch(tests: Mapping[str, str], depth: str = "") -> str:
    """The script of a job that runs these tests (name -> text) in order, up to the first failure.

    `#SBATCH` lines at the head of a test apply to the job. docs/playbooks.md describes the output of a test.
    """
    if not tests:
        raise ValueError("no tests to run")
    tag = "HEALER_" + sha256("\0".join(tests.values()).encode()).hexdigest()[:24]
    asks = [line for body in tests.values() for line in _sbatch_lines(body)]
    head = _HEAD.format(depth=depth or "none", form=FORM, room=ROOM - 500, not_tested=NOT_TESTED)
    bodies = [
        f"cat >\"$dir/{name}\" <<'{tag}'\n{body.rstrip(chr(10))}\n{tag}\n" for name, body in tests.items()
    ]
    runs = [
        _ONE.format(
            name=name,
            interpreter=_interpreter(body),
            not_tested=NOT_TESTED,
            untested="" if first else f" || [ $code -eq {NOT_TESTED} ]",
        )
        for first, (name, body) in zip([True] + [False] * len(tests), tests.items(), strict=False)
    ]
    return "\n".join(["#!/bin/sh", *asks, head, *bodies, *runs, _END.format(not_tested=NOT_TESTED)])


def _sbatch_lines(body: str) -> list[str]:
    """The test's `#SBATCH` lines; like sbatch, up to the first line that is no comment."""
    found = []
    for line in body.splitlines():
        if line.startswith("#SBATCH"):
            found.append(line)
        elif line.strip() and not line.startswith("#"):
            break
    return found


def _interpreter(body: str) -> str:
    """The interpreter of a test; it is called by name because /tmp may be mounted noexec."""
    return body.partition("\n")[0].removeprefix("#!").strip() or "/bin/sh"


# --- the results of a job


_TEST = re.compile(r"([a-z0-9][A-Za-z0-9_-]{0,39}):(passed|failed|untested):(\d{1,6})")
_RESULT = re.compile(r"([a-z][a-z0-9_]{0,39})=([A-Za-z0-9_.,:+/-]{1,128})")
_SAYS = re.compile(r"says (\S+) (.{1,160})")


class TestOutcome(StrEnum):
    passed = "passed"
    failed = "failed"
    #: Its program is missing, or there was nothing to test.
    untested = "untested"


class TestReport(msgspec.Struct, frozen=True, kw_only=True):
    """`tests`: outcome by test; `took_s`: seconds by test; `results`: value by name; `says`: message by test.
    `whole` is False if results were left out or a part could not be read."""

    tests: dict[str, TestOutcome] = {}
    took_s: dict[str, int] = {}
    results: dict[str, str] = {}
    says: dict[str, str] = {}
    whole: bool = True


def parse_report(comment: str) -> TestReport | None:
    """The report in an admin comment; None if it has none."""
    head, *parts = comment.split("; ")
    if head != FORM:
        return None
    tests: dict[str, TestOutcome] = {}
    took_s: dict[str, int] = {}
    results: dict[str, str] = {}
    says: dict[str, str] = {}
    whole = True
    for part in parts:
        if found := _TEST.fullmatch(part):
            tests[found[1]], took_s[found[1]] = TestOutcome(found[2]), int(found[3])
        elif found := _RESULT.fullmatch(part):
            results[found[1]] = found[2]
        elif found := _SAYS.fullmatch(part):
            says[found[1]] = found[2].strip()
        else:
            whole = False
    return TestReport(tests=tests, took_s=took_s, results=results, says=says, whole=whole)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences: `worse` about figures below the reference node's, `other` about facts that differ. `alike`:
    names of results that are as good."""

    worse: tuple[Said, ...] = ()
    other: tuple[Said, ...] = ()
    alike: tuple[str, ...] = ()


def compare(results: Mapping[str, str], reference: Reference | None) -> Comparison:
    """A fact must be the same, a count (`_count`) at least as high, a rate (`_per_s`) at least 90 %. A result
    that the reference lacks, or that is not a number, is not compared."""
    if reference is None:
        return Comparison()
    worse, other, alike = list[Said](), list[Said](), list[str]()
    for name, value in results.items():
        if name in FACTS:
            found, text = other, _other(name, value, reference)
        else:
            found, text = worse, _worse(name, value, reference)
        if text:
            found.append(text)
        elif text is not None:
            alike.append(name)
    return Comparison(worse=tuple(worse), other=tuple(other), alike=tuple(alike))


def _other(name: str, value: str, reference: Reference) -> Said | None:
    """How the fact differs; empty: it is the same; None: not compared."""
    good = reference.facts.get(name)
    if good is None or name in NOT_COMPARED:
        return None
    if value == fact_as_written(good):
        return NO_WORDS
    fact = say(f"words.fact_{name}")
    return say("actions.test_fact_differs", fact=fact, value=value, node=reference.node, good=good)


def _worse(name: str, value: str, reference: Reference) -> Said | None:
    """How the figure is worse; empty: it is not; None: not compared."""
    wanted, figure = reference.figures.get(name), figures_in({name: value}).get(name)
    if wanted is None or figure is None:
        return None
    share = FIGURE_SHARE if name.endswith("_per_s") else 1.0
    if figure >= share * wanted:
        return NO_WORDS
    return say(
        "actions.test_figure_worse",
        name=name,
        value=value,
        share=100 * figure / wanted,
        good=wanted,
        node=reference.node,
    )


def fact_as_written(fact: str) -> str:
    """A fact as a test writes it, without blanks."""
    return re.sub(r"[^A-Za-z0-9_.,:+/-]+", "_", fact.replace(", ", ","))[:128]


def report_text(report: TestReport, wanted: Sequence[str]) -> list[Said]:
    """`gpus, links passed`, `burn (…) failed`, `dcgm (no dcgmi here) untested`, `nccl not run`"""
    parts = list[Said]()
    for outcome in TestOutcome:
        names = [
            name
            + (f" ({report.says[name]})" if outcome is not TestOutcome.passed and name in report.says else "")
            for name, ended in report.tests.items()
            if ended is outcome
        ]
        if names:
            parts.append(say(f"actions.tests_{outcome}", tests=joined(names, "comma")))
    left = [name for name in wanted if name not in report.tests]
    return [*parts, *([say("actions.tests_not_run", tests=joined(left, "comma"))] if left else [])]
