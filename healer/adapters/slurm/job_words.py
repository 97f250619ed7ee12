"""What a job's record means where every shape says it in the same words: holds, exit codes, --no-kill."""

#: slurmctld's description of a hold that it set itself after a failed launch (seen on 22.05 and 24.11).
_LAUNCH_FAILED = "launch failed"
#: Reasons of a hold by an administrator or by Slurm itself (more than MaxBatchRequeue failed launches).
_ADMIN_HOLDS = frozenset({"JobHeldAdmin", "JobHoldMaxRequeue"})
#: The text form of 22.05 shows the description, with `_` for spaces, in the place of `JobHeldUser`.
_HELD_AS = frozenset({"launch_failed_requeued_held", "job_requeued_in_held_state"})
#: Options of a submission stand in front of its script, within so many characters.
_OPTIONS_END = 4096
_UNENDED = frozenset({"PENDING", "RUNNING", "SUSPENDED"})


def held_by(state: str, priority: int | None, reason: str, why: str) -> str:
    """`user`, `admin` (also Slurm itself), or empty: held is pending with priority 0."""
    if state != "PENDING" or priority != 0:
        return ""
    if reason in _ADMIN_HOLDS or why.startswith(_LAUNCH_FAILED):
        return "admin"
    return "user" if reason == "JobHeldUser" else ""


def reason_and_why(text: str) -> tuple[str, str]:
    """The text form's `Reason=`, as JSON tells it: reason and description."""
    return ("JobHeldUser", text.replace("_", " ")) if text in _HELD_AS else (text, "")


def has_ended(state: str) -> bool:
    """Its exit code and end are facts. A job that is pending or runs shows when it may end at most."""
    return state not in _UNENDED


def exit_code(code: int, signal: int) -> str:
    """`3`, or `0:9` where a signal ended it."""
    return f"{code}:{signal}" if signal else str(code)


def no_kill(submit_line: str) -> bool | None:
    """True where the submission says --no-kill. None: no job record tells it, and a script may say it too.

    A `--no-kill` of the script's own is taken for Slurm's: then nothing is done where something might be. The
    line is its user's and as long as they like (1 MiB was seen): only its beginning is read.
    """
    words = submit_line[:_OPTIONS_END].split()
    told = [word for word in words if word == "-k" or word.partition("=")[0] == "--no-kill"]
    return True if told and not told[-1].endswith("=off") else None
