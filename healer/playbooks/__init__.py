"""The playbook language: from a run's log to its next step."""

from healer.playbooks.advance import (
    BEGIN,
    UNDO,
    Ask,
    Do,
    Finish,
    Intent,
    Know,
    Skip,
    Sleep,
    Undo,
    advance,
    from_here,
    stuck_at,
    takes_restarts,
    touched,
)

__all__ = [
    "BEGIN",
    "UNDO",
    "Ask",
    "Do",
    "Finish",
    "Intent",
    "Know",
    "Skip",
    "Sleep",
    "Undo",
    "advance",
    "from_here",
    "stuck_at",
    "takes_restarts",
    "touched",
]
