"""What an answer that is an error means for what was sent: which kind of loss, and of how many entries."""

from healer.api.problems import Problem, problem_of
from healer.model import LossReason
from healer.ports.request_errors import DiskFull, NoRoom, Unavailable

#: By status, where nothing tells more. 401, 403 and 404 are no losses: who sends there may not, and the audit
#: has refusals of bound tokens.
_BY_STATUS = {
    400: LossReason.bad_body,
    408: LossReason.stalled,
    413: LossReason.too_large,
    415: LossReason.bad_body,
    422: LossReason.bad_body,
    429: LossReason.shed,
    500: LossReason.bad_body,
    503: LossReason.not_ready,
}


def loss_of(error: Exception, *, disk_full: bool = False) -> tuple[LossReason, int, str] | None:
    """(reason, entries, a sentence); None where nothing was lost. A body counts as one entry."""
    if isinstance(error, NoRoom):
        return LossReason.disk_full if error.disk else LossReason.spool_full, error.entries, str(error)
    if isinstance(error, Unavailable):
        full = disk_full or isinstance(error, DiskFull)
        return LossReason.disk_full if full else LossReason.database_away, 1, str(error)
    problem: Problem = problem_of(error)
    reason = LossReason.quota if problem.code == "quota" else _BY_STATUS.get(problem.status)
    return None if reason is None else (reason, problem.lost, problem.detail)
