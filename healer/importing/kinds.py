"""What a source is, by its content."""

import re
from enum import StrEnum

from healer.importing.controller_log import is_controller_log
from healer.importing.journal_text import is_record, is_spread_record, without_mark
from healer.importing.kernel_text import form_of
from healer.text import Said, say

#: How much of the beginning is examined.
HEAD_BYTES = 64 << 10


class Kind(StrEnum):
    """As `--as` takes them."""

    syslog = "syslog"
    dmesg = "dmesg"
    journal_json = "journal-json"
    journal_export = "journal-export"
    slurmctld = "slurmctld"
    slurmd = "slurmd"
    sacct = "sacct"
    sacct_json = "sacct-json"
    jobcomp = "jobcomp"
    sinfo_reasons = "sinfo-R"
    nodes = "nodes"
    metrics = "metrics"
    range_query = "range-query"
    nhc = "nhc"
    nvidia_smi = "nvidia-smi"
    bug_report = "nvidia-bug-report"
    nvsentinel = "nvsentinel"
    gpud = "gpud"
    prometheus = "prometheus"


_DAY_TIME = rb"[A-Z][a-z]{2} [ \d]?\d(?: \d{4})? \d\d:\d\d:\d\d"
#: In ISO form, only dmesg writes a comma and six digits, and no host.
_DMESG = re.compile(
    rb"(?:<\d+>|kern *:\w+ *: *)?(?:\[[A-Z][a-z]{2} " + _DAY_TIME + rb" \d{4}\]"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:?\d\d (?!\S+ kernel: ))"
)
_SHAPES = (
    (Kind.journal_export, re.compile(rb"(?:__CURSOR|__REALTIME_TIMESTAMP|_[A-Z_]+)=")),
    (Kind.nodes, re.compile(rb"NodeName=\S+ ")),
    (Kind.jobcomp, re.compile(rb"JobId=\d+ UserId=")),
    (Kind.sinfo_reasons, re.compile(rb"(?:\S+\|)*REASON\b.*\bNODELIST|NODELIST\|.*REASON")),
    (Kind.dmesg, _DMESG),
    (
        Kind.syslog,
        re.compile(
            rb"(?:<\d{1,3}>)?(?:1 )?(?:"
            + _DAY_TIME
            + rb"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)\S* [\w.:-]*[\w.-] "
        ),
    ),
    (
        Kind.metrics,
        re.compile(
            rb'# (?:HELP|TYPE|EOF)\b|\{__name__="|[a-zA-Z_:][\w:]*(?:\{.*\})? [-+0-9.eEInfNa]+(?: \d+)?$'
        ),
    ),
)
#: zip, 7z, rar, and what is packed again.
_FILES = re.compile(
    rb"PK\x03\x04|PK\x05\x06|7z\xbc\xaf|Rar!|\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd", re.DOTALL
)
#: dmesg as it is without options: seconds since a boot that nothing dates.
_UNDATED = re.compile(rb"(?:<\d+>|kern *:\w+ *: *)?\[ *\d{1,10}\.\d{6}\]")
_BRACKETED = re.compile(rb"\[(?:\d{4}-\d\d-\d\dT|[A-Z][a-z]{2} +\d)")
_SLURMD = re.compile(
    rb"slurmd version|slurmd started|prolog failed|launch task|_run_prolog|Launching batch job"
    rb"|\[\d+\.(?:batch|extern|\d+)\]"
)
_SACCT = re.compile(rb"(?:\w+\|)*(?:JobID|JobIDRaw|State)\|")
#: By words near the beginning, in this order.
_WORDS = (
    (Kind.bug_report, re.compile(rb"Start of NVIDIA bug report log file")),
    (Kind.nvidia_smi, re.compile(rb"<nvidia_smi_log[ >]|^=+NVSMI LOG=+", re.MULTILINE)),
    (
        Kind.nhc,
        re.compile(rb"^\d{8} \d\d:\d\d:\d\d .*node-mark-o|^ERROR: +nhc: |^Node Health Check ", re.MULTILINE),
    ),
)
#: By a key near the beginning of one JSON document.
_JSON = (
    (
        Kind.nvsentinel,
        re.compile(
            rb'"(?i:nodename)"\s*:.*"(?i:checkname)"|"(?i:checkname)"\s*:.*"(?i:nodename)"', re.DOTALL
        ),
    ),
    (
        Kind.gpud,
        re.compile(rb'"component"\s*:\s*"[^"]*".*"events"\s*:|"name"\s*:\s*"error_s?xid"', re.DOTALL),
    ),
    (Kind.range_query, re.compile(rb'"resultType"\s*:')),
    (Kind.sacct_json, re.compile(rb'"jobs"\s*:\s*\[')),
    (Kind.nodes, re.compile(rb'"nodes"\s*:\s*\[')),
)


def holds_files(head: bytes) -> bool:
    """Whether what begins so holds other files, or is still packed."""
    return head[257:262] == b"ustar" or _FILES.match(head) is not None


def why_not(head: bytes) -> Said:
    """Why nothing recognises what begins so."""
    if holds_files(head):
        return say("importing.archive_of_files")
    if not head.strip():
        return say("importing.empty")
    if _UNDATED.match(head):
        return say("importing.undated")
    return say("importing.not_recognised")


def recognised(head: bytes) -> Kind | None:
    """`head`: the first HEAD_BYTES, unpacked. None: nothing that is known."""
    lines = [line for line in head.splitlines()[:400] if line.strip()]
    if not lines:
        return None
    is_text = lines[0].startswith(b"{__name__=") or _BRACKETED.match(lines[0]) or _DMESG.match(lines[0])
    if (named := next((kind for kind, words in _WORDS if words.search(head)), None)) is not None:
        return named
    if without_mark(lines[0]).startswith((b"{", b"[")) and not is_text:
        return _of_json(head, lines)
    if any(_BRACKETED.match(line) for line in lines[:20]):
        of_slurmd = any(_SLURMD.search(line) for line in lines) and not is_controller_log(lines)
        return Kind.slurmd if of_slurmd else Kind.slurmctld
    if any(_SACCT.match(line) for line in lines[:5]):
        return Kind.sacct
    if form_of(lines) is not None:
        return Kind.syslog
    counts = {kind: sum(shape.match(line) is not None for line in lines[:50]) for kind, shape in _SHAPES}
    best = max(counts, key=lambda kind: counts[kind])
    # The reasons have one header and free rows, a list of nodes one such line for each record.
    least = 1 if best in {Kind.sinfo_reasons, Kind.nodes, Kind.journal_export} else len(lines[:50]) / 4
    return best if counts[best] >= least else None


def _of_json(head: bytes, lines: list[bytes]) -> Kind | None:
    if is_record(lines[0]) or is_spread_record(lines):
        return Kind.journal_json
    return next((kind for kind, shape in _JSON if shape.search(head)), None)
