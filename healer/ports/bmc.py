"""The BMC of a node: power read and switched beside the operating system."""

from typing import Protocol

from healer.model import Power, ResetKind


class BmcError(Exception):
    """The BMC refused, or what it said cannot be used: nothing was done. The text is for people."""


class BmcUnavailable(BmcError):
    """No answer, or none in time. `sent` is False where it is certain that nothing came of it: it was not
    reached, or said that it is busy. `after_s`: how long it asks to be left alone."""

    def __init__(self, text: str, *, sent: bool = True, after_s: float | None = None) -> None:
        super().__init__(text)
        self.sent, self.after_s = sent, after_s


class Bmc(Protocol):
    """Every call is bounded in time. A BMC knows no key: the same reset twice is two resets."""

    name: str

    def power(self, node: str) -> Power: ...

    def reset(self, node: str, target: str, kind: ResetKind) -> str | None:
        """Asks once. `target` as `power` told it. The address of its task, where it goes on by itself."""
        ...

    def task_failed(self, node: str, task: str) -> str | None:
        """Why a task came to nothing, in the BMC's words; None: it runs, went well, or nobody knows."""
        ...
