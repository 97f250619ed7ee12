"""The batch job that runs tests on a node one after the other and tells Slurm what they said. Pure.

A file that a job writes lies on its node, where healer cannot read it. What every Slurm hands back is the
job's own record: the results go into its admin comment, which operators alone may set, after each test anew,
so they stand there too when the time limit ends the job. The exit code is the verdict: 0 passed, 77 not
tested, else failed.
"""

from collections.abc import Mapping
from hashlib import sha256

#: What a test ends with that could not be made: its program is missing, or there is nothing to be tested.
NOT_TESTED = 77
#: Of the results of one job, in characters. What is more is left out and said to be.
ROOM = 2000
#: Version of the comment's form; `test_results` reads it.
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
told="{form}"
printed=no

# Slurm's record of this job, as it is by now.
tell() {{
    timeout 30 scontrol update JobId="$SLURM_JOB_ID" AdminComment="$told" >/dev/null 2>&1
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
                [ $((${{#told}} + ${{#more}} + ${{#part}})) -le {room} ]; then
                more="$more$part"
            else
                more="$more; cut"
            fi
            ;;
        esac
        ;;
    esac
}}

# One test: its results join the others, its exit code is ours. The last line counts as what it says.
run() {{ # NAME INTERPRETER…
    name=$1
    shift
    began=$(date +%s)
    {{
        "$@" "$dir/$name" </dev/null 2>/dev/null
        echo $? >"$dir/code"
    }} | grep '^healer-' | {{ head -n 100; cat >/dev/null; }} >"$dir/lines"
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
    told="$told; $name:$outcome:$(($(date +%s) - began))$more"
    [ -z "$said" ] || told="$told; says $name $said"
    return "$code"
}}

"""

# The first test decides: where it could not be made, nobody looked at what the node is there for. Others are
# told and let go.
_ONE = """\
run {name} {interpreter}
code=$?
if tell; then heard=yes; else heard=no; fi
[ $code -eq 0 ]{untested} || exit $code
"""


# Results that nobody can read prove nothing.
_END = """\
[ $heard = yes ] || [ $printed = no ] || exit {not_tested}
exit 0
"""


def batch(tests: Mapping[str, str], depth: str = "") -> str:
    """The script of a job that runs these tests (name to text) in their order, up to the first that fails.

    `#SBATCH` lines at the head of a test count for the job. What a test prints is described in
    docs/validation.md.
    """
    if not tests:
        raise ValueError("no tests to run")
    tag = "HEALER_" + sha256("\0".join(tests.values()).encode()).hexdigest()[:24]
    asks = [line for body in tests.values() for line in _asks(body)]
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


def _asks(body: str) -> list[str]:
    """What it asks of sbatch: as there, up to the first line that is no comment."""
    found = []
    for line in body.splitlines():
        if line.startswith("#SBATCH"):
            found.append(line)
        elif line.strip() and not line.startswith("#"):
            break
    return found


def _interpreter(body: str) -> str:
    """Named, because /tmp may be mounted without the right to run what lies there."""
    return body.partition("\n")[0].removeprefix("#!").strip() or "/bin/sh"
