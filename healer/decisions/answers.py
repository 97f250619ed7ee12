"""How guards answer, in one line each."""

from datetime import datetime

from healer.model import Answer, AnswerKind, Guard


def allow(guard: Guard, why: str, *, limit: float | None = None, used: float | None = None) -> Answer:
    return Answer(guard=guard, kind=AnswerKind.allow, why=why, limit=limit, used=used)


def hold(
    guard: Guard,
    why: str,
    *,
    limit: float | None = None,
    used: float | None = None,
    frees_at: datetime | None = None,
) -> Answer:
    return Answer(guard=guard, kind=AnswerKind.hold, why=why, limit=limit, used=used, frees_at=frees_at)


def refuse(
    guard: Guard,
    why: str,
    *,
    limit: float | None = None,
    used: float | None = None,
    frees_at: datetime | None = None,
) -> Answer:
    return Answer(guard=guard, kind=AnswerKind.refuse, why=why, limit=limit, used=used, frees_at=frees_at)


def at(moment: datetime) -> str:
    """A moment for people: `03:00 on 20 Nov UTC`."""
    return f"{moment:%H:%M on %-d %b} UTC"
