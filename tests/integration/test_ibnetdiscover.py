"""Debian's ibnetdiscover looks at a fabric that Debian's ibsim simulates, and healer learns the cables by the
commands that the page shows."""

import shutil
import sys
from pathlib import Path

from healer.rulebook.ruleset import load
from tests.support.ibsim import fabric
from tests.support.loop import SHIPPED
from tests.support.snippets import placed, snippet

NET = """\
Switch 41 "MF0;leaf1:MQM8700/U1"
[1]\t"gpu0001 mlx5_0"[1]
[2]\t"gpu0002 HCA-1"[1]
[40]\t"MF0;spine1:MQM8700/U1"[1]

Switch 41 "MF0;spine1:MQM8700/U1"
[1]\t"MF0;leaf1:MQM8700/U1"[40]

Hca 1 "gpu0001 mlx5_0"
[1]\t"MF0;leaf1:MQM8700/U1"[1]

Hca 1 "gpu0002 HCA-1"
[1]\t"MF0;leaf1:MQM8700/U1"[2]
"""


def test_the_shown_commands_bring_the_fabrics_cables(tmp_path: Path) -> None:
    rules = Path(shutil.copytree(SHIPPED, tmp_path / "rules"))
    command = f"{sys.executable} -m healer topology import --rules {rules}"
    lines = placed(snippet("rules.md", "Topology"), {"healer topology import": command}).splitlines()
    look, *learn = lines
    with fabric(tmp_path, NET, "gpu0001 mlx5_0") as run:
        run(look)
        # The simulation is not in the way of healer's own command.
        run("\n".join(["unset LD_PRELOAD", *learn]))
    found = load(rules, prove=False).topology
    assert found.switches["leaf1"].above == ("spine1",)
    cables = {
        f"{switch}/{port}": f"{peer.name}/{peer.port}"
        for switch, ports in found.links.items()
        for port, peer in ports.items()
    }
    assert cables == {
        "leaf1/1": "gpu0001/mlx5_0",
        "leaf1/2": "gpu0002/HCA-1",
        "leaf1/40": "spine1/1",
        "spine1/1": "leaf1/40",
    }
