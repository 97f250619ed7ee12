"""Names of ports: those of hardware, and no more of one node than a machine can have.

Every container brings an interface, and each name would be a series of its own for ever: so what is taken is
named like hardware (drivers, systemd's predictable names, rdma-core), not merely unlike what is known as
virtual.
"""

import re
from collections import Counter
from collections.abc import Iterable

from healer.signals.gpu_names import Where

#: Ports of one node: 8 GPUs with two NICs each, storage and management are below 32.
PORTS_MAX = 64
#: Nodes whose ports are remembered, then all are forgotten at once.
_NODES_MAX = 50_000

VIRTUAL = "virtual interface"
NO_PORT = "not the name of a hardware port, such as mlx5_0/1 or eth0"
TOO_MANY = f"more than {PORTS_MAX} ports of this node"
#: Different names of ports in one cluster: machines of one kind have the same ones.
NAMES_MAX = 512
#: While fewer names are known, any node may bring them; then one may bring so many that nobody told before:
#: no few nodes use up what all share, and machines of a new kind are soon known.
NAMES_FREE, NAMES_OF_NODE = 128, 8
TOO_MANY_NAMES = f"more than {NAMES_MAX} different names of ports in this cluster"
TOO_MANY_NEW = f"more than {NAMES_OF_NODE} names of ports that only this node told"
#: Reasons that may be gone with what other nodes tell.
PASSING = frozenset({TOO_MANY, TOO_MANY_NEW})

#: Drivers' names of RDMA devices and of NICs, and systemd's (not `eni`: clouds' pod interfaces).
_HARDWARE = re.compile(
    r"(?=[A-Za-z_-]*[0-9])"
    r"(?:mlx|ib|bnxt|hfi|opa|en(?!i)|eth|em|bond|efa|irdma|roce|rdma|iwp|hsn|cxi|mana|qedr)"
    r"[A-Za-z0-9_-]{1,36}(?:/[0-9]{1,3})?"
)
#: Interfaces of containers, bridges and tunnels: only for the reason that is told.
_VIRTUAL = re.compile(
    r"(?:lo$|docker|veth|vnet|vmnet|virbr|br-|cbr|cni|cali|cilium|lxc|lxd|flannel|weave|ovs|genev|vxlan|tunl|"
    r"tap|tun|dummy|eni|azv|gke|kube|podman|nodelocaldns|ifb|macv|ipv|wg|sit|gre|erspan)"
)


def wrong_port(name: str) -> str | None:
    """Why a port of this name is not taken: `mlx5_0/1` (device and port) or `eth0` (interface) are."""
    if _HARDWARE.fullmatch(name):
        return None
    return VIRTUAL if _VIRTUAL.match(name) else NO_PORT


class Ports:
    """The ports that nodes told: the first `PORTS_MAX` of each are taken."""

    def __init__(self) -> None:
        self._nodes: dict[Where, dict[str, None]] = {}
        self._names: set[str] = set()
        #: How many of the names a node brought after the free ones.
        self._brought: Counter[Where] = Counter()

    def wrong(self, where: Where, names: Iterable[str]) -> dict[str, str]:
        """Why some of these ports of the node are not taken, by name; learns the others."""
        node = self._nodes.get(where)
        if node is None:
            if len(self._nodes) >= _NODES_MAX:
                self._nodes.clear()
            node = self._nodes[where] = {}
        wrong: dict[str, str] = {}
        for name in names:
            if name in node:
                continue
            if why := wrong_port(name):
                wrong[name] = why
            elif len(node) >= PORTS_MAX:
                wrong[name] = TOO_MANY
            elif name not in self._names and len(self._names) >= NAMES_MAX:
                wrong[name] = TOO_MANY_NAMES
            elif not self._may_bring(where, name):
                wrong[name] = TOO_MANY_NEW
            else:
                self._names.add(name)
                node[name] = None
        return wrong

    def _may_bring(self, where: Where, name: str) -> bool:
        if name in self._names or len(self._names) < NAMES_FREE:
            return True
        if self._brought[where] >= NAMES_OF_NODE:
            return False
        self._brought[where] += 1
        return True
