"""Jobs: `sacct -P`, `sacct --json`, and the files of jobcomp/filetxt."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.parse_json import ExitCode
from healer.importing.happenings import Found, JobChange
from healer.importing.json_parts import objects
from healer.importing.local_stamps import LocalStamps, is_time, rfc3339
from healer.importing.source_text import Bytes, pieces, texts_of
from healer.text import joined, said_by, say

#: What a row has to have.
NEEDED = ("State", "Start", "End", "NodeList")
_STATES = frozenset(
    {
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
        "OUT_OF_MEMORY", "REQUEUED", "RUNNING", "PENDING", "SUSPENDED", "RESIZING", "REVOKED", "COMPLETING",
    }
)  # fmt: skip
_TEXT_STEP = re.compile(r"\d[^.|]*\.")
_GPU = re.compile(r"gres/gpu=(\d+)")
#: GPUs of one model, where `AccountingStorageTRES` lists only models.
_GPU_OF_MODEL = re.compile(r"gres/gpu:[^=,]+=(\d+)")
#: More GPUs than any node has: such a figure says nothing of the nodes.
_GPUS_MOST = 1024
#: How much of a decoder's message is kept.
_WHY_LETTERS = 90
_NO_REQUEUE = re.compile(r"--no-requeue\b")
_SUBMITS = frozenset({"sbatch", "srun", "salloc"})


class Life(msgspec.Struct, kw_only=True):
    """One life of a job, times in µs; `end_us` None: it ran when this was printed."""

    id: str
    state: str
    start_us: int
    end_us: int | None
    nodes: Sequence[str]
    gpus: int | None
    row: dict[str, Any] = {}


def take_life(found: Found, life: Life | None) -> None:
    """Start and end of a life as two happenings. None: the job never started."""
    if life is None:
        found.tally.skip(say("importing.not_started"))
        return
    if not is_time(life.start_us) or not is_time(life.end_us or life.start_us):
        found.tally.skip(say("importing.no_time_of_era"), f"job {life.id}")
        return
    if life.end_us is not None and life.end_us < life.start_us:  # would be a job that never ends
        found.tally.skip(say("importing.ends_before_start"), f"job {life.id}")
        return
    found.nodes.update(life.nodes)
    if user := life.row.get("user"):
        found.users.add(user)
    if life.gpus and life.nodes and life.gpus // len(life.nodes) <= _GPUS_MOST:
        found.gpus_most = max(found.gpus_most, life.gpus // len(life.nodes))
    row = {name: value for name, value in life.row.items() if value not in ("", None)}
    row["start_at"] = rfc3339(life.start_us)
    found.in_book(life.start_us)
    found.marks.saw(f"start {life.id}", life.start_us)
    begun = {name: value for name, value in row.items() if name != "exit_code"}
    found.add(life.start_us, JobChange(life.id, "start", True, life.nodes, "RUNNING", life.gpus, begun))
    if life.end_us is None:
        return
    found.in_book(life.end_us)
    found.marks.saw(f"end {life.id}", life.end_us)
    word = "requeue" if life.state == "REQUEUED" else "end"
    row = row | {"end_at": rfc3339(life.end_us)}
    found.add(life.end_us, JobChange(life.id, word, True, life.nodes, life.state, life.gpus, row))


# --- sacct -P


class Table:
    """Rows of `sacct -P`, by the names in its header. A `|` in a job's name is found by what follows it."""

    def __init__(self, found: Found, stamps: LocalStamps) -> None:
        self._found, self._stamps = found, stamps
        self._names: list[str] = []

    def read(self, file: Bytes) -> None:
        for line in texts_of(file, self._found.tally):
            self._take(line)

    def _take(self, line: str) -> None:
        tally = self._found.tally
        cells = line.split("|")
        if "State" in cells and ("JobID" in cells or "JobIDRaw" in cells):
            self._names = cells
            if missing := [name for name in NEEDED if name not in cells]:
                tally.note(say("importing.sacct_lacks", columns=joined(missing, "comma")))
            return
        if not line.strip():
            return
        if not self._names:
            tally.skip(say("importing.row_before_header"), line)
            return
        if _TEXT_STEP.match(cells[self._place("JobIDRaw", "JobID")] if cells else ""):
            tally.skip(say("importing.step"))
            return
        try:
            life = self.life(self._row(cells))
        except (ValueError, KeyError) as error:
            tally.skip(say("importing.not_understood", why=said_by(error)), line)
            return
        take_life(self._found, life)

    def _place(self, *names: str) -> int:
        return next((self._names.index(name) for name in names if name in self._names), 0)

    def _row(self, cells: list[str]) -> dict[str, str]:
        more = len(cells) - len(self._names)
        if more < 0:
            raise ValueError(say("importing.fewer_columns"))
        if not more or "JobName" not in self._names:
            return dict(zip(self._names, cells, strict=False))
        at = self._names.index("JobName")
        fitting = [wide for wide in range(more + 1) if self._fits(cells, at, wide)]
        if len(fitting) != 1:
            raise ValueError(say("importing.more_columns"))
        after = at + fitting[0] + 1
        name = "|".join(cells[at:after])
        return dict(zip(self._names, self._ended([*cells[:at], name, *cells[after:]]), strict=False))

    def _ended(self, cells: list[str]) -> list[str]:
        """With a comment and a command at the end, as the documentation has it, that may hold `|` too: the
        command begins with a program of Slurm's. Where none is found, the command is unknown."""
        at = len(self._names) - 2
        if len(cells) == len(self._names) or self._names[at:] != ["Comment", "SubmitLine"]:
            return cells
        begins = next(
            (place for place in range(at + 1, len(cells)) if _program(cells[place]) in _SUBMITS), None
        )
        if begins is None:
            return [*cells[:at], "|".join(cells[at:]), ""]
        return [*cells[:at], "|".join(cells[at:begins]), "|".join(cells[begins:])]

    def _fits(self, cells: list[str], at: int, wide: int) -> bool:
        """Whether the row can be one where the name, which is at `at`, has so many `|`."""

        def cell(column: str, other: str) -> str:
            if column not in self._names:
                return other
            place = self._names.index(column)
            return cells[place + (wide if place > at else 0)]

        return cell("State", "").split(" ")[0] in _STATES and _is_time(cell("Start", "Unknown"))

    def life(self, row: Mapping[str, str]) -> Life | None:
        """None: it never started. Raises ValueError and KeyError."""
        state = row["State"].split(" ")[0]
        if state not in _STATES:
            raise ValueError(say("importing.no_job_state", state=state[:40]))
        nodes = words.expand_hosts("" if row["NodeList"] == "None assigned" else row["NodeList"])
        if not nodes or row["Start"] in _NEVER:
            return None
        runs = row["End"] in _NEVER or state in {"RUNNING", "SUSPENDED", "COMPLETING"}
        end = None if runs else datetime.fromisoformat(row["End"])
        start_us, end_us = self._stamps.span(datetime.fromisoformat(row["Start"]), end)
        job = row.get("JobIDRaw") or row.get("JobID") or ""
        if not job.split("_")[0].split("+")[0].isdecimal():
            raise ValueError(say("importing.no_job_number", job=job[:40]))
        asked = row.get("SubmitLine", "")
        return Life(
            id=job, state=state, start_us=start_us, end_us=end_us, nodes=nodes,
            gpus=_gpus_of_text(row["AllocTRES"]) if "AllocTRES" in row else None,
            row={
                "name": row.get("JobName"), "user": row.get("User"), "partition": row.get("Partition"),
                "qos": row.get("QOS"), "account": row.get("Account"), "comment": row.get("Comment"),
                "exit_code": row.get("ExitCode", "").removesuffix(":0"),
            } | asked_for(asked),
        )  # fmt: skip


_NEVER = frozenset({"Unknown", "None", "", "N/A"})


def _is_time(text: str) -> bool:
    if text in _NEVER:
        return True
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _gpus_of_text(tres: str) -> int:
    """`gres/gpu:h100=8` is a part of `gres/gpu=8`, which is missing where Slurm counts only models."""
    whole = _GPU.search(tres)
    return int(whole[1]) if whole else sum(int(count) for count in _GPU_OF_MODEL.findall(tres))


def asked_for(submit_line: str) -> dict[str, Any]:
    """What the command of the submission says: whether it is a batch job, and may be requeued."""
    if not submit_line:
        return {}
    found: dict[str, Any] = {} if _program(submit_line) == "sbatch" else {"batch": False}
    return found | ({"requeue": False} if _NO_REQUEUE.search(submit_line[:4096]) else {})


def _program(submit_line: str) -> str:
    return submit_line.split(" ", 1)[0].rpartition("/")[2]


# --- sacct --json


class _Set(msgspec.Struct, frozen=True):
    set: bool = True
    number: int = 0


class _State(msgspec.Struct, frozen=True):
    current: str | list[str] = "UNKNOWN"


class _Time(msgspec.Struct, frozen=True):
    start: int | _Set = 0
    end: int | _Set = 0


class _Tres(msgspec.Struct, frozen=True):
    type: str = ""
    name: str | None = ""
    count: int | None = 0


class _TresOf(msgspec.Struct, frozen=True):
    allocated: list[_Tres] = []


class _Comment(msgspec.Struct, frozen=True):
    job: str | None = None


# Wide: one field for each field of Slurm's JSON that is read.
class _Record(msgspec.Struct, frozen=True):
    """A job of `sacct --json`, v0.0.37 to v0.0.45."""

    job_id: int
    state: _State
    time: _Time
    nodes: str | None = ""
    name: str | None = ""
    user: str | None = ""
    partition: str | None = ""
    qos: str | None = ""
    account: str | None = ""
    submit_line: str | None = ""
    tres: _TresOf | None = None
    exit_code: ExitCode | int | None = None
    comment: _Comment | str | None = None
    restart_cnt: int | _Set | None = None


_record = msgspec.json.Decoder(_Record).decode


def read_json(file: Bytes, found: Found) -> None:
    for raw in objects(pieces(file, found.tally), "jobs", found.tally):
        found.tally.lines += 1
        try:
            life = _life(_record(raw))
        except (ValueError, RecursionError) as error:
            found.tally.skip(say("importing.no_job_why", why=str(error)[:_WHY_LETTERS]), raw)
            continue
        take_life(found, life)


def _life(record: _Record) -> Life | None:
    state = record.state.current
    state = state if isinstance(state, str) else next(iter(state), "UNKNOWN")
    start_s, end_s = _number(record.time.start), _number(record.time.end)
    nodes = words.expand_hosts("" if record.nodes == "None assigned" else record.nodes or "")
    if not nodes or not start_s:
        return None
    tres = record.tres.allocated if record.tres is not None else None
    gpus = None if tres is None else _gpus(tres)
    comment = record.comment.job if isinstance(record.comment, _Comment) else record.comment
    row: dict[str, Any] = {
        "name": record.name, "user": record.user, "partition": record.partition, "qos": record.qos,
        "account": record.account, "comment": comment,
    }  # fmt: skip
    if isinstance(record.exit_code, ExitCode):
        code = record.exit_code.return_code
        row["exit_code"] = str(code if isinstance(code, int) else code.number if code else 0)
    if record.restart_cnt is not None:
        row["restarts"] = _number(record.restart_cnt)
    runs = not end_s or state in {"RUNNING", "SUSPENDED", "COMPLETING"}
    return Life(
        id=str(record.job_id), state=state, start_us=start_s * 1_000_000,
        end_us=None if runs else end_s * 1_000_000, nodes=nodes, gpus=gpus,
        row=row | asked_for(record.submit_line or ""),
    )  # fmt: skip


def _number(value: int | _Set) -> int:
    return value if isinstance(value, int) else value.number if value.set else 0


def _gpus(tres: Sequence[_Tres]) -> int:
    """As `_gpus_of_text`."""
    return _gpus_of_text(",".join(f"{each.type}/{each.name}={each.count or 0}" for each in tres))


# --- jobcomp/filetxt

_COMPLETION = re.compile(
    r"JobId=(?P<JobID>\d+) UserId=(?P<User>[^(\s]*)\(\d+\) GroupId=\S* Name=(?P<JobName>.*?)"
    r" JobState=(?P<State>\S+) Partition=(?P<Partition>\S*) TimeLimit=\S+ StartTime=(?P<Start>\S+)"
    r" EndTime=(?P<End>\S+) NodeList=(?P<NodeList>\S*) .*? Tres=(?P<AllocTRES>\S*) Account=(?P<Account>\S*)"
    r" QOS=(?P<QOS>\S*) .*?ExitCode=(?P<ExitCode>\d+:\d+) *$"
)


def read_completions(file: Bytes, found: Found, stamps: LocalStamps) -> None:
    """One line for each job, written at its end. Its Tres names only what was tracked: no GPUs mean
    nothing."""
    table = Table(found, stamps)
    for line in texts_of(file, found.tally):
        match = _COMPLETION.match(line)
        if match is None:
            found.tally.skip(say("importing.no_job"), line)
            continue
        row = match.groupdict()
        if "gres/gpu" not in row["AllocTRES"]:
            del row["AllocTRES"]
        row["State"] = row["State"].replace("PENDING", "REQUEUED")
        try:
            life = table.life(row)
        except ValueError as error:
            found.tally.skip(say("importing.not_understood", why=said_by(error)), line)
            continue
        take_life(found, life)
