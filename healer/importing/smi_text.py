"""What `nvidia-smi -q` and `nvidia-smi -q -x` printed, once or again and again, and nvidia-bug-report.log.

The text becomes the XML that production reads: names that differ are in one table here, values stay.
A bug report names its node and its time; its kernel lines count where they have a time.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from healer.importing.happenings import Found, SmiLog
from healer.importing.kernel_text import KernelText
from healer.importing.local_stamps import LocalStamps
from healer.importing.source_text import Bytes, lines_of, texts_of
from healer.model import LineBook
from healer.signals.nvidia_smi import XML_LIMIT_BYTES, parse_log
from healer.signals.rejects import BadBody
from healer.text import said_by, say

_XML_BEGIN, _XML_END = re.compile(r"<nvidia_smi_log[ >]"), "</nvidia_smi_log>"
_TEXT_BEGIN = re.compile(r"=+NVSMI LOG=+")
_TIMESTAMP = re.compile(r"(?:<timestamp>|Timestamp\s+: )(?P<at>\w{3} \w{3} +\d{1,2} \d\d:\d\d:\d\d \d{4})")
_GPU = re.compile(r"GPU (?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_ROW = re.compile(r"(?P<indent> *)(?P<label>\S[^:]*?)(?:\s*: (?P<value>.*)|\s*:?)$")
#: People's programs, which no rule reads.
_PROCESSES = re.compile(r"<processes>.*?</processes>", re.DOTALL)
_SECTION_END = re.compile(r"_{20,}$")
#: A bug report names its host and its time: `date` without the name of the zone, which is ambiguous.
_UNAME = re.compile(r"uname: Linux (?P<host>\S+) ")
_DATE = re.compile(
    r"Date: \w{3} (?P<month>\w{3}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)"
    r"(?P<half> [AP]M)?(?: \S+)? (?P<year>\d{4})$"
)
_WORDS = re.compile(r"[^a-z0-9]+")
#: Labels of the text, as paths, that have another name in the XML.
_TAGS = {
    "gpu_uuid": "uuid",
    "serial_number": "serial",
    "inforom_version/image_version": "inforom_version/img_version",
    "pci/bus_id": "pci/pci_bus_id",
    "pci/replays_since_reset": "pci/replay_counter",
    "pci/replay_number_rollovers": "pci/replay_rollover_counter",
    "pci/tx_throughput": "pci/tx_util",
    "pci/rx_throughput": "pci/rx_util",
    "utilization/gpu": "utilization/gpu_util",
    "utilization/memory": "utilization/memory_util",
    "utilization/encoder": "utilization/encoder_util",
    "utilization/decoder": "utilization/decoder_util",
    "ecc_mode/current": "ecc_mode/current_ecc",
    "mig_mode/current": "mig_mode/current_mig",
    "remapped_rows/correctable_error": "remapped_rows/remapped_row_corr",
    "remapped_rows/uncorrectable_error": "remapped_rows/remapped_row_unc",
    "remapped_rows/pending": "remapped_rows/remapped_row_pending",
    "remapped_rows/remapping_failure_occurred": "remapped_rows/remapped_row_failure",
    "retired_pages/single_bit_ecc": "retired_pages/multiple_single_bit_retirement/retired_count",
    "retired_pages/double_bit_ecc": "retired_pages/double_bit_retirement/retired_count",
    "retired_pages/pending_page_blacklist": "retired_pages/pending_retirement",
    "temperature/gpu_current_temp": "temperature/gpu_temp",
    "temperature/memory_current_temp": "temperature/memory_temp",
    "temperature/gpu_t_limit_temp": "temperature/gpu_temp_tlimit",
    "temperature/gpu_shutdown_temp": "temperature/gpu_temp_max_threshold",
    "temperature/gpu_slowdown_temp": "temperature/gpu_temp_slow_threshold",
    "temperature/gpu_max_operating_temp": "temperature/gpu_temp_max_gpu_threshold",
    "temperature/memory_max_operating_temp": "temperature/gpu_temp_max_mem_threshold",
    "gpu_power_readings/instantaneous_power_draw": "gpu_power_readings/instant_power_draw",
    "fabric/cliqueid": "fabric/cliqueId",
    "fabric/clusteruuid": "fabric/clusterUuid",
}
_FORMS = (
    (re.compile(r"pci/gpu_link_info/pcie_generation/(\w+)"), r"pci/pci_gpu_link_info/pcie_gen/\1_link_gen"),
    (re.compile(r"pci/gpu_link_info/link_width/(\w+)"), r"pci/pci_gpu_link_info/link_widths/\1_link_width"),
    (re.compile(r"((?:max_|applications_)?clocks)/(graphics|sm|mem|video)(?:ory)?"), r"\1/\2_clock"),
    (re.compile(r"remapped_rows/bank_remap_availability_histogram/(\w+)"),
     r"remapped_rows/row_remapper_histogram/row_remapper_histogram_\1"),
    (re.compile(r"ecc_errors/(.*)_sec_ded"), r"ecc_errors/\1_secded"),
    # Reasons for slower clocks: `idle` and `display_clock_setting` have longer names there.
    (re.compile(r"clocks_(event|throttle)_reasons/(?:hw_slowdown/)?idle"),
     r"clocks_\1_reasons/clocks_\1_reason_gpu_idle"),
    (re.compile(r"clocks_(event|throttle)_reasons/display_clock_setting"),
     r"clocks_\1_reasons/clocks_\1_reason_display_clocks_setting"),
    (re.compile(r"clocks_(event|throttle)_reasons/(?:hw_slowdown/)?(\w+)"),
     r"clocks_\1_reasons/clocks_\1_reason_\2"),
    # The time that each has lasted, with words of its own.
    (re.compile(r"(clocks_event_reasons_counters)/sync_boost"), r"\1/\1_sync_boost"),
    (re.compile(r"(clocks_event_reasons_counters)/sw_power_capping"), r"\1/\1_sw_power_cap"),
    (re.compile(r"(clocks_event_reasons_counters)/hw_power_braking"), r"\1/\1_hw_power_brake"),
    (re.compile(r"(clocks_event_reasons_counters)/([sh]w)_thermal_slowdown"), r"\1/\1_\2_therm_slowdown"),
)  # fmt: skip
#: For the whole node.
_NODES = frozenset({"driver_version", "cuda_version", "attached_gpus"})


class _Document(NamedTuple):
    is_xml: bool
    lines: list[str]
    #: The number of its first line.
    number: int


class SmiText:
    """One file. `host`: if it names none. `written_us`: the time of output without one."""

    def __init__(self, found: Found, stamps: LocalStamps, written_us: int, host: str = "") -> None:
        self._found, self._stamps, self._host, self._written_us = found, stamps, host, written_us
        self._open: _Document | None = None
        self._size = 0

    def read(self, file: Bytes) -> None:
        for line in texts_of(file, self._found.tally):
            if not self.take(line):
                self._found.tally.plain += 1
        self.close()

    def take(self, line: str) -> bool:
        """Whether the line belongs to an output."""
        begins = _XML_BEGIN.match(line)
        if begins or _TEXT_BEGIN.match(line):
            self.close()
            self._open, self._size = _Document(bool(begins), [line], self._found.tally.lines), len(line)
            return True
        if self._open is None:
            return False
        if self._size <= XML_LIMIT_BYTES:
            self._open.lines.append(line)
            self._size += len(line)
        if (self._open.is_xml and _XML_END in line) or _SECTION_END.match(line):
            self.close()
        return True

    def close(self) -> None:
        document, self._open = self._open, None
        if document is None:
            return
        try:
            at_us = self._time(document.lines)
            text = "\n".join(document.lines)
            xml = _PROCESSES.sub("", text) if document.is_xml else as_xml(document.lines)
            log = parse_log(xml.encode())
            if not log.gpus:
                raise ValueError(say("importing.no_gpu_in_output"))
        except (BadBody, ValueError) as error:
            why, number = say("importing.no_smi", why=said_by(error)), document.number
            self._found.tally.skip(why, document.lines[0], line=number)
            return
        models = (gpu.values["product_name"] for gpu in log.gpus if "product_name" in gpu.values)
        self._found.list_gpus(self._host, next(models, ""), max(len(log.gpus), log.attached or 0))
        self._found.hosts.add(self._host)
        self._found.add(at_us, SmiLog(self._host, xml), line=document.number)

    def named(self, host: str, written_us: int) -> None:
        """Whose the output is, and when it was printed, as the file says."""
        self._host, self._written_us = host or self._host, written_us or self._written_us

    def _time(self, lines: list[str]) -> int:
        """Raises ValueError."""
        for line in lines[:12]:
            if match := _TIMESTAMP.search(line):
                text = " ".join(match["at"].split()[1:])
                return self._stamps.at(datetime.strptime(text, "%b %d %H:%M:%S %Y"))  # noqa: DTZ007
        return self._written_us


class BugReport:
    """nvidia-bug-report.log. The same kernel line is in several of its sections: it counts once."""

    def __init__(
        self, found: Found, stamps: LocalStamps, written_us: int, book: LineBook, host: str = ""
    ) -> None:
        self._found, self._stamps, self._host = found, stamps, host
        self._smi = SmiText(found, stamps, written_us, host)
        self._kernel = KernelText(found, stamps, book)
        self._seen: set[str] = set()

    def read(self, file: Bytes) -> None:
        for raw in lines_of(file, self._found.tally):
            self._take(raw)
        self._smi.close()
        self._kernel.close()

    def _take(self, raw: bytes) -> None:
        text = raw.decode("utf-8", "replace").rstrip()
        if uname := _UNAME.match(text):
            self._host = uname["host"]
            self._smi.named(uname["host"], 0)
        elif date := _DATE.match(text):
            self._dated(date)
        elif self._smi.take(text):
            return
        # The rest of a record counts with its first line.
        elif (text[:1] == " " or text not in self._seen) and self._kernel.take_line(raw):
            self._seen.add(text)
            return
        self._found.tally.plain += 1

    def _dated(self, date: re.Match[str]) -> None:
        form = "%b %d %Y %I:%M:%S %p" if date["half"] else "%b %d %Y %H:%M:%S"
        text = f"{date['month']} {date['day']} {date['year']} {date['clock']}{date['half'] or ''}"
        try:
            self._smi.named("", self._stamps.peek().at(datetime.strptime(text, form)))  # noqa: DTZ007
        except ValueError as error:
            self._found.tally.skip(say("importing.no_time_why", why=said_by(error)), date[0])


def as_xml(lines: Sequence[str]) -> str:
    """The text of `nvidia-smi -q` in the form of its XML."""
    found, path, is_open = ["<nvidia_smi_log>"], [], False
    for line in lines[1:]:
        if gpu := _GPU.match(line):
            found += ["</gpu>"] * is_open + [f"<gpu id={quoteattr(gpu['address'])}>"]
            path, is_open = [], True
            continue
        row = _ROW.match(line.rstrip())
        if row is None:
            continue
        depth = len(row["indent"]) // 4
        path = [*path[: max(0, depth - is_open)], _WORDS.sub("_", row["label"].lower()).strip("_")]
        name = "/".join(path)
        if row["value"] is None or not name or path[0] == "processes" or (not is_open and name not in _NODES):
            continue
        found.append(_element(_TAGS.get(name) or _formed(name), row["value"].strip()))
    return "\n".join([*found, *["</gpu>"] * is_open, "</nvidia_smi_log>"])


def _formed(name: str) -> str:
    for form, tag in _FORMS:
        if form.fullmatch(name):
            return form.sub(tag, name)
    return name


def _element(path: str, value: str) -> str:
    tags = [tag if tag[:1].isalpha() else f"n{tag}" for tag in path.split("/") if tag]
    begin, end = (f"<{tag}>" for tag in tags), (f"</{tag}>" for tag in reversed(tags))
    return "".join((*begin, escape(value), *end))
