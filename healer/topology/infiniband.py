"""`ibnetdiscover` -> cables. Pure. The text is that of infiniband-diags since 1.4; its form is in its manual:
a block for each switch and each channel adapter, and below it a line for each port with a cable.
"""

import re
from collections import Counter

from healer.text import Said, say
from healer.topology.found import BYTES_MAX, CABLES_MAX, LINE_MAX, Cable, Found, Unreadable

_HEAD = re.compile(r'(Switch|Ca|Rt)\s+\d{1,4}\s+"([SHR]-[0-9a-fA-F]{1,16})"(?:\s*#\s*"([^"]*)")?')
_LINK = re.compile(
    r'\[(\d{1,4})\](?:\[ext \d{1,4}\])?(?:\([0-9a-fA-F]{1,16}\))?\s+"([SHR]-[0-9a-fA-F]{1,16})"\[(\d{1,4})\]'
)
#: A quoted description behind `#`.
_DESCRIPTION = re.compile(r'#.*?"([^"]*)"')
#: `MF0;leaf1:MQM8700/U1`: chassis, name, model and chip.
_MANAGED = re.compile(r"MF0;([^:;]{1,64}):[^/]*(?:/(.*))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: `gpu0001 HCA-1`, `gpu0001`, and as the kernel writes it: host and RDMA device, whose name has a number:
#: `mlx5_0`, `rocep24s0`, `ibp24s0`, or what udev made of it. No `Mellanox Technologies Aggregation Node`.
_HOST = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})(?:\s+(HCA-\d{1,2}|[a-z](?=[^\d]{0,62}\d)[A-Za-z0-9_.-]{1,62}))?"
)


def read_ibnetdiscover(text: str) -> Found:
    """All cables that begin at a switch. Raises Unreadable when there is no switch, or far too much."""
    if len(text) > BYTES_MAX:
        raise Unreadable(say("topology.more_than_mb", bytes_max=BYTES_MAX >> 20))
    descriptions: dict[str, str] = {}
    raw: list[tuple[str, str, str, str]] = []
    here = ""
    skipped: Counter[Said] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > LINE_MAX:
            raise Unreadable(say("topology.line_more_than_characters", number=number, line_max=LINE_MAX))
        if head := _HEAD.match(line):
            here = head[2].lower()
            descriptions[here] = head[3] or ""
        elif link := _LINK.match(line):
            if here.startswith("s-"):
                raw.append((here, link[1], link[2].lower(), link[3]))
                if (description := _DESCRIPTION.search(line, link.end())) is not None:
                    descriptions.setdefault(link[2].lower(), description[1])
            elif not here:
                raise Unreadable(say("topology.line_port_before_any", number=number))
        elif line.strip() and not line.startswith("#") and "=" not in line:
            skipped[say("topology.not_read")] += 1
        if len(raw) > CABLES_MAX:
            raise Unreadable(say("topology.line_more_than_cables", number=number, cables_max=CABLES_MAX))
    if not any(name.startswith("s-") for name in descriptions):
        raise Unreadable(say("topology.no_switch_output_ibnetdiscover"))
    names = _switch_names({guid: text for guid, text in descriptions.items() if guid.startswith("s-")})
    cables = []
    for switch, port, peer, peer_port in raw:
        if peer in names:
            cables.append(Cable(names[switch], port, names[peer], peer_port, is_switch=True))
        elif (host := _HOST.fullmatch(descriptions.get(peer, "").strip())) is None:
            skipped[say("topology.no_node")] += 1
        elif (node := host[1].partition(".")[0]) == "localhost":
            skipped[say("topology.localhost")] += 1
        else:
            cables.append(Cable(names[switch], port, node, host[2] or peer_port, is_switch=False))
    guids = {name: f"0x{guid[2:]:0>16}" for guid, name in names.items()}
    return Found(cables=tuple(cables), guids=guids, skipped=dict(skipped))


def _switch_names(descriptions: dict[str, str]) -> dict[str, str]:
    """By `s-…`: the switch's own name, with its chip where a chassis has several; else its GUID."""
    parts: dict[str, tuple[str, str]] = {}
    for guid, text in descriptions.items():
        managed = _MANAGED.fullmatch(text)
        name, chip = (managed[1], managed[2] or "") if managed else (text, "")
        parts[guid] = (name, chip) if _NAME.fullmatch(name) else ("", "")
    count = Counter(name for name, _ in parts.values())
    found: dict[str, str] = {}
    for guid, (name, chip) in parts.items():
        several = count[name] > 1
        unique = (f"{name}-{chip.replace('/', '-')}" if chip else "") if several else name
        found[guid] = unique if name and _NAME.fullmatch(unique) else f"0x{guid[2:]:0>16}"
    if len(set(found.values())) < len(found):  # chips make no difference either
        return {guid: f"0x{guid[2:]:0>16}" for guid in found}
    return found
