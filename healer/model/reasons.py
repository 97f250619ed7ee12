"""Whose a drain is, told by its reason: ours, Slurm's own, or a person's.

The user that Slurm records is no help: Slurm sets it to SlurmUser when it appends to a person's text, and
every call of ours is made by one service user. Slurm appends with " : ", so only the start is looked at.
"""

import re

#: What every reason of ours starts with: `healer:<rule> inc:<short id> <text>`.
OUR_PREFIX = "healer:"

#: Slurm's own reason strings (slurmctld and slurmd sources, 22.05 to 25.11).
_SLURM_REASONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("kill-task-failed", r"Kill task failed"),
        ("not-responding", r"Not responding"),
        ("rebooted", r"Node unexpectedly rebooted"),
        ("prolog-error", r"Prolog error"),
        ("epilog-error", r"Epilog error"),
        ("job-environment", r"Job env setup error"),
        ("batch-failure", r"batch job complete failure"),
        ("gres-count", r"gres/\S+ count reported lower than configured"),
        ("low-resources", r"Low (RealMemory|socket\*core\*thread count|CPUs|TmpDisk)"),
        ("reboot", r"Reboot ASAP|reboot requested|ResumeTimeout reached"),
        ("power", r"Powered down after resume|POWER_DOWN_ASAP"),
    )
)


def is_ours(reason: str) -> bool:
    return reason.startswith(OUR_PREFIX)


def slurm_kind(reason: str) -> str | None:
    """Which of Slurm's own reasons this is; None for a person's text, for ours and for an empty one."""
    return next((kind for kind, pattern in _SLURM_REASONS if pattern.match(reason)), None)
