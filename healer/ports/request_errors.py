"""What a command, a query or a store may raise instead of answering. The API turns each into a status."""

from healer.model import Answer
from healer.model.vocabulary import UserError
from healer.text import Said


class GuardRefused(Exception):
    """A guard's Refuse: 409 with the guard, its limit and what is used."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.why)
        self.answer = answer


class NotFound(UserError):
    """No such run, incident, node, job, rule, pause or playbook: 404. The text is one sentence."""


class Conflict(UserError):
    """The thing is not in a state that allows it (a run that has ended, …): 409. One sentence."""


class Forbidden(Exception):
    """The caller's role allows it, this case does not (requester = approver): 403. One sentence."""


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


class Unavailable(UserError):
    """The database did not answer in time: 503 with Retry-After. Nothing was done."""

    def __init__(self, text: Said) -> None:
        super().__init__(text)


class DiskFull(Unavailable):
    """The database answers, and its disk has no room for more."""


class Unstorable(Exception):
    """The database answers, and refuses these very values: asking again cannot help."""


class NoRoom(Exception):
    """The database is away and the spool takes no more: 503 with Retry-After. `disk`: its disk is full."""

    def __init__(self, text: Said, *, disk: bool = False) -> None:
        super().__init__(text)
        self.disk = disk
        #: How many things were refused by it.
        self.entries = 1
