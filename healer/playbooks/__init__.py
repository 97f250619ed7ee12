"""The playbook language: from a run's log to its next step."""

from healer.playbooks.advance import (
    BEGIN,
    UNDO,
    Ask,
    Do,
    Finish,
    Intent,
    RecordFacts,
    Skip,
    Sleep,
    advance,
    entries_by_step,
    keys_from_step,
    parts_to_undo,
    stuck_keys,
    takes_restarts,
)
