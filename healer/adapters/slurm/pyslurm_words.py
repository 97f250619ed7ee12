"""What pyslurm's release, its errors and their numbers mean."""

from collections.abc import Mapping
from typing import Any

from healer.adapters.slurm import slurm_words as words
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode

#: The releases whose interface healer knows.
_OLDEST, _NEWEST = (23, 11), (25, 11)

#: slurm_errno.h: not connected, refused by authentication or by protocol. Slurm did nothing.
_AT_THE_DOOR = frozenset({1001, 1005, 1006, 1007, 1800, 6000, 6001, 6004, 6007, 6008})
#: The node's state does not allow it: pyslurm's number, and the one that healer knows it by.
_NODE_STATE, _NODE_STATE_TRANSITION = 2028, 2180
NOT_RUNNING = 2021
#: Errors of a signal that are surely about it; any other number may be left over from an earlier call.
OF_A_SIGNAL = frozenset({2002, 2010, 2017})


def usable(first: dict[str, Any]) -> dict[str, Any]:
    """The process's first line. SchedulerUnavailable, one sentence, where pyslurm cannot be used."""
    if "error" in first:
        raise SchedulerUnavailable(_not_loaded(first["error"]), sent=False)
    built, found = (_release(first[name]) for name in ("pyslurm", "libslurm"))
    if not _OLDEST <= built <= _NEWEST:
        raise SchedulerUnavailable(
            f"pyslurm {first['pyslurm']} is none of the releases that healer speaks (23.11 to 25.11).",
            sent=False,
        )
    if built != found:
        raise SchedulerUnavailable(
            f"pyslurm {first['pyslurm']} is for another release of Slurm than this machine's libslurm "
            f"{first['libslurm']}: install the pyslurm of that release.",
            sent=False,
        )
    return first


def _not_loaded(error: Mapping[str, Any]) -> str:
    if error["kind"] == "absent":
        return "pyslurm is not installed: add it as `healer[pyslurm]`, in the release of this site's Slurm."
    return f"pyslurm cannot load the libslurm it was built for: {error['text']}."


def error(action: str, told: Mapping[str, Any]) -> SchedulerError:
    """What pyslurm's error means. One without a number of Slurm's own leaves open what happened."""
    code, text = told["code"], f"{action}: {told['text']}"
    if code == words.NODE_UNKNOWN:
        return UnknownNode(text, words.NODE_UNKNOWN)
    if told["kind"] != "slurm":
        return SchedulerRefused(text)
    if code in _AT_THE_DOOR:
        return SchedulerUnavailable(text, sent=False)
    if code is None or code < 2000 or 5000 <= code < 6000:
        return SchedulerUnavailable(text)
    return SchedulerRefused(text, _NODE_STATE_TRANSITION if code == _NODE_STATE else code)


def _release(text: str) -> tuple[int, int]:
    """`24.5.1` -> (24, 5)."""
    year, month, *_ = (*text.split("."), "0", "0")
    return int(year), int(month)
