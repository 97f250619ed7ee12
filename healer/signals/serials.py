"""Serial numbers of GPU boards, and the row of a GPU in an inventory."""

import re
from typing import Any

#: NVIDIA's are 13 digits; other boards have letters and dashes too. `N/A`, `0` and words are none.
_SERIAL = re.compile(r"(?=.*[1-9])[0-9A-Za-z][0-9A-Za-z-]{4,31}")


def normal_serial(text: str) -> str:
    """The serial number; empty where the text is none, which says nothing of the part."""
    text = text.strip()
    return text.upper() if _SERIAL.fullmatch(text) else ""


def gpu_row(index: int, pci: str, uuid: str, serial: str) -> dict[str, Any]:
    """One GPU of an inventory, as heartbeats and `gpu_inventory` carry it; a serial number only if known."""
    row: dict[str, Any] = {"index": index, "pci": pci, "uuid": uuid}
    return row | {"serial": serial} if serial else row
