"""Errors that a command, a query or a store may raise. The API turns each into a status."""

from healer.model import Answer
from healer.model.vocabulary import UserError
from healer.text import Said, SaidError


class GuardRefused(Exception):
    """Refused by a guard: 409 with the guard, its limit and what is used."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.why)
        self.answer = answer


class NotFound(UserError):
    """No such run, incident, node, job, rule, pause or playbook: 404. The text is one sentence."""


class Conflict(UserError):
    """The object's state does not allow it (a run that has ended, …): 409. One sentence."""


class Forbidden(Exception):
    """The caller's role allows it, but this case does not (requester = approver): 403. One sentence."""


class Invalid(Exception):
    """The request contradicts itself or the rules: 422. `field` names the field."""

    def __init__(self, field: str, text: Said) -> None:
        super().__init__(text)
        self.field = field


class TooMany(Exception):
    """Asked too often: 429 with Retry-After."""

    def __init__(self, text: Said, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Unavailable(SaidError, UserError):
    """The database did not answer in time: 503 with Retry-After. Nothing was done."""


class DiskFull(Unavailable):
    """The database answers, but its disk is full."""


class Unstorable(Exception):
    """The database answers, but refuses these very values: a retry cannot help."""


class NoRoom(Exception):
    """The database does not answer and the spool is full: 503 with Retry-After. `disk`: its disk is full."""

    def __init__(self, text: Said, *, disk: bool = False) -> None:
        super().__init__(text)
        self.disk = disk
        #: The number of refused items.
        self.entries = 1
