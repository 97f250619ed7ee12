"""Comments about a job in Slurm, by its owner and by healer.

Owners: words in the comment (`sbatch --comment`) or `--extra`, see `docs/jobs.md`. An unknown word that
begins with `healer:` is reported back to them.

healer: its part of the admin comment, `… | healer: TEXT; off:gpu0007,gpu0008`. `off` names the nodes that
healer excluded from the job, so that the exclusion can be lifted. Text by others there is kept byte for byte.
"""

import re

import msgspec

from healer.model import RestartConsent, SlurmJob, shown
from healer.text import Said, say

#: The beginning of healer's part of an admin comment.
OURS = "healer: "
_BETWEEN = " | "
_OFF = re.compile(r"(?:^|; )off:([A-Za-z0-9_.,-]+)$")
#: Longer than any of healer's sentences; squeue truncates far earlier.
LONGEST = 400


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """healer's message to a job's owner, and the nodes that it excluded from the job."""

    text: str = ""
    off: tuple[str, ...] = ()


def remark_in(comment: str) -> Remark:
    """healer's part of the comment; empty if there is none."""
    ours = next((part for part in comment.split(_BETWEEN) if part.startswith(OURS)), "")
    text = ours.removeprefix(OURS).strip()
    found = _OFF.search(text)
    if found is None:
        return Remark(text=text)
    return Remark(text=text[: found.start()], off=tuple(found[1].split(",")))


def with_remark(comment: str, remark: Remark) -> str:
    """The comment with healer's part replaced, or removed if the remark is empty; everything else stays."""
    parts = [part for part in comment.split(_BETWEEN) if not part.startswith(OURS)] if comment else []
    off = f"off:{','.join(remark.off)}" if remark.off else ""
    ours = "; ".join(part for part in (one_line(remark.text), off) if part)
    return _BETWEEN.join([*parts, f"{OURS}{ours}"] if ours else parts)


def one_line(text: str) -> str:
    """The text on one line, made safe by `shown`, without `|`, truncated to `LONGEST`."""
    return shown.one_line(text.replace("|", "/"))[:LONGEST].rstrip()


#: The owner consents that healer requeues and revives the job for more than a dead node or GPU (law 8).
OPT_IN = "healer:requeue"
#: The owner or the job itself handles faults: healer leaves the job alone.
KEEP = "healer:keep"
#: `healer:signal=USR1@60`: on this signal the job saves its work within this many seconds. Also an opt-in.
SIGNAL = "healer:signal="
#: `healer:swap=4`: its launcher leaves a bad node by itself, and the job continues with at least this many
#: nodes.
SWAP = "healer:swap="

#: Signals that a job may request. KILL and STOP save nothing.
SIGNALS = frozenset({"HUP", "INT", "TERM", "USR1", "USR2", "CONT", "URG"})
#: sbatch's own default for --signal, and the longest that a bad node waits for a job.
GRACE_S, GRACE_MAX_S = 60, 600

_NUMBERS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM", "18": "CONT", "23": "URG"}
_LEAST = re.compile(rf"{SWAP}([1-9][0-9]{{0,5}})", re.ASCII)
_SIGNAL = re.compile(r"(?:SIG)?([A-Z0-9]+)(?:@(\d{1,6}))?")
#: sbatch's own --signal option; R and B select the processes that Slurm signals.
_OPTION = re.compile(r"(?:^|\s)--signal[= ](?:[RB]{1,2}:)?([A-Za-z0-9]+(?:@\d{1,6})?)(?=\s|$)")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """`signal`: the job saves its work on this signal within `grace_s` seconds; empty: none. `least`: the
    number of nodes that it needs to continue; 0: it gives up no node. `unknown`: words that begin with
    `healer:`, in any case of letters, and have no meaning."""

    requeue: bool = False
    keep: bool = False
    signal: str = ""
    grace_s: int = 0
    least: int = 0
    unknown: tuple[str, ...] = ()


def wish_of(job: SlurmJob) -> Wish:
    """The owner's wishes. sbatch's own --signal gives the job's signal, but is no consent."""
    requeue = keep = False
    option = _OPTION.search(job.submit_line)
    signal = (_signal(option[1].upper()) if option else None) or ("", 0)
    unknown, least = [], 0
    for word in re.split(r"[\s,;]+", f"{job.comment} {job.extra}"):
        found = _signal(word.removeprefix(SIGNAL)) if word.startswith(SIGNAL) else None
        if word == OPT_IN:
            requeue = True
        elif word == KEEP:
            keep = True
        elif found is not None:
            requeue, signal = True, found
        elif match := _LEAST.fullmatch(word):
            least = max(least, int(match[1]))  # of two words, the more cautious one
        elif word.lower().startswith("healer:"):
            unknown.append(word)
    return Wish(
        requeue=requeue,
        keep=keep,
        signal=signal[0],
        grace_s=signal[1],
        least=least,
        unknown=tuple(unknown),
    )


def _signal(text: str) -> tuple[str, int] | None:
    """`USR1@60` -> (USR1, 60); None for any other text and for signals outside `SIGNALS`."""
    match = _SIGNAL.fullmatch(text)
    name = _NUMBERS.get(match[1], match[1]) if match else ""
    if match is None or name not in SIGNALS:
        return None
    return name, min(int(match[2] or GRACE_S), GRACE_MAX_S)


def restart_consent(job: SlurmJob, site: RestartConsent) -> Said | None:
    """Why healer may restart this job for more than a dead node, as a sentence; None without consent."""
    wish = wish_of(job)
    if wish.keep:
        return None
    if wish.requeue:
        return say("decisions.owner_agrees", job=job.id, word=OPT_IN)
    if job.partition in site.partitions:
        return say("decisions.partition_agrees", name=job.partition)
    if job.qos.lower() in (qos.lower() for qos in site.qos):
        return say("decisions.qos_agrees", name=job.qos)
    return None
