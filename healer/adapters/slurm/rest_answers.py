"""What slurmrestd's answers mean: data, errors by number, warnings, release and cluster.

The shapes are those of v0.0.39 to v0.0.45. HTTP's own status says little: 200 may carry an error (d.8, 24),
and 500, 422 and 404 are Slurm's refusals. What counts is `errors[].error_number`.
"""

from typing import TypeVar

import msgspec

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.parse_json import Problem
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode

#: Slurm's error numbers (slurm_errno.h). A token that is not taken, at slurmctld and at slurmrestd:
_TOKEN_REFUSED = frozenset({1007, 9008})
#: No connection to slurmctld, or none that both sides understand: nothing was done.
_NO_CONTACT = frozenset({1001, 1005, 1006, 1800})
#: "Invalid node state specified" of releases before 25.05, told as the later number.
_SAME = {2028: 2180}

T = TypeVar("T")


class _Number(msgspec.Struct, frozen=True):
    number: int = 0


class Slurm(msgspec.Struct, frozen=True):
    """`cluster` is "" before v0.0.40."""

    release: str = ""
    cluster: str = ""


class _Meta(msgspec.Struct, frozen=True):
    """v0.0.39 writes `Slurm`, all later ones `slurm`."""

    slurm: Slurm | None = None
    old: Slurm | None = msgspec.field(default=None, name="Slurm")


class _Said(msgspec.Struct, frozen=True):
    """What every answer of slurmrestd carries beside its data."""

    errors: list[Problem] | None = None
    warnings: list[Problem] | None = None
    last_update: _Number | int | None = None
    meta: _Meta | None = None


class Answer(msgspec.Struct, frozen=True):
    """`said` is None where the body is not slurmrestd's JSON (a proxy's page, or nothing)."""

    status: int
    body: bytes
    said: _Said | None

    @property
    def problems(self) -> list[Problem]:
        return (self.said.errors if self.said else None) or []

    @property
    def warnings(self) -> list[Problem]:
        return (self.said.warnings if self.said else None) or []

    @property
    def updated(self) -> int:
        """When what it lists changed last, Unix seconds by Slurm's clock; 0 where it does not tell."""
        at = self.said.last_update if self.said else None
        return at.number if isinstance(at, _Number) else at or 0

    @property
    def slurm(self) -> Slurm:
        meta = (self.said.meta if self.said else None) or _Meta()
        return meta.slurm or meta.old or Slurm()

    @property
    def good(self) -> bool:
        """Slurm's answer, and no error in it (d.8, 24: HTTP 200 may hold one)."""
        return self.status < 400 and self.said is not None and not self.problems

    @property
    def token_refused(self) -> bool:
        return self.status == 401 or any(each.error_number in _TOKEN_REFUSED for each in self.problems)

    @property
    def no_contact(self) -> bool:
        """slurmrestd found no slurmctld, and tried for some 9 s: it is of no use to ask again."""
        return any(each.error_number in _NO_CONTACT for each in self.problems)

    @property
    def unknown_address(self) -> bool:
        return self.status == 404 and self.said is None


def answer(status: int, body: bytes) -> Answer:
    try:
        said = msgspec.json.decode(body, type=_Said)
    except UnicodeDecodeError:
        # A user's job name may hold any bytes; what is told beside the data is read all the same.
        return answer(status, body.decode("utf-8", "replace").encode())
    except msgspec.DecodeError:
        said = None
    # All of Slurm's answers have one of them: a JSON without is some proxy's.
    ours = said is not None and (said.meta is not None or said.errors is not None)
    return Answer(status, body, said if ours else None)


def error_of(problem: Problem, action: str, right: str) -> SchedulerError:
    """What one of `errors[]` means, by its number; HTTP's status says less (500 and 422 are refusals too)."""
    number = problem.error_number or 0
    number = _SAME.get(number, number)
    said = (problem.error if number else problem.description) or problem.description or "no reason"
    whole = f"{action}: {said}" + (f" ({number})" if number > 0 else "")
    if number == words.NODE_UNKNOWN:
        return UnknownNode(whole, number)
    # The thousand of communication, and "unspecified": slurmrestd got no answer it could use.
    if number < 0 or 1000 <= number < 2000:
        return SchedulerUnavailable(whole, sent=number not in _NO_CONTACT)
    if number == 0 or "standby" in said:
        return words.error(action, said)
    refused = SchedulerRefused(whole, number)
    if refused.no_right:
        return SchedulerRefused(
            f"{whole}: the account behind the token lacks the right. {right}".strip(), number
        )
    return refused


class _JobError(msgspec.Struct, frozen=True):
    code: int = 0
    string: str | None = None


class _JobStatus(msgspec.Struct, frozen=True):
    """One job or task: `error` is an object where jobs are ended, a text with a number where requeued."""

    error: str | _JobError | None = None
    error_code: int = 0


class _Result(msgspec.Struct, frozen=True):
    job_id: int | None = None


class _Written(msgspec.Struct, frozen=True):
    """Of a change of jobs. Before v0.0.42 the id of a submitted one stands in `result`."""

    job_id: int | None = None
    result: _Result | None = None
    status: list[_JobStatus | list[_JobStatus]] | None = None


def check_jobs(answer: Answer, action: str, right: str) -> None:
    """What DELETE /jobs or POST /jobs/requeue refused has an entry of its own, in one list or in one for each
    job; the answer is 200 all the same."""
    for entry in read(answer, _Written).status or []:
        for each in entry if isinstance(entry, list) else [entry]:
            text, number = each.error, each.error_code
            if isinstance(text, _JobError):
                text, number = text.string, text.code
            if number:
                raise error_of(Problem(text, None, number), action, right)


def submitted(answer: Answer) -> str:
    """The id of the job that POST /job/submit made."""
    written = read(answer, _Written)
    job = written.job_id or (written.result.job_id if written.result else None)
    if not job:
        raise SchedulerUnavailable("slurmrestd took the job and did not tell its id.")
    return str(job)


def read(answer: Answer, shape: type[T]) -> T:
    """A part of the body. SchedulerUnavailable names the field that no known release writes so."""
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except msgspec.DecodeError as error:
        raise SchedulerUnavailable(f"slurmrestd's answer could not be read: {error}.") from error
