"""What `benchmarks/slurm_day.py` reads from slurmctld: its log and `sdiag`, as Slurm 22.05 prints them."""

from benchmarks._day_report import drains
from benchmarks._day_slurm import Rpcs, counted, total

SDIAG = """\
Remote Procedure Call statistics by message type
\tREQUEST_NODE_INFO                       ( 2007) count:248    ave_time:614    total_time:152421
\tREQUEST_PING                            ( 1008) count:58     ave_time:508    total_time:29511

Remote Procedure Call statistics by user
\tnobody          (   65534) count:301    ave_time:477    total_time:180932
\thealer          (     999) count:5      ave_time:200    total_time:1000

Pending RPC statistics
\tNo pending RPCs
"""
LATER = SDIAG.replace(
    "count:5      ave_time:200    total_time:1000", "count:9      ave_time:200    total_time:1800"
)
LOG = """\
[2026-11-27T09:33:37.574] update_node: node gpu0001 reason set to: healer:gpu-lost inc:d455df4c Xid 79
[2026-11-27T09:33:37.574] update_node: node gpu0001 state set to DRAINED
[2026-11-27T09:33:38.000] update_node: node gpu0002 reason set to: work on the host, ticket 1
[2026-11-27T09:33:38.000] update_node: node gpu0002 state set to DRAINING
[2026-11-27T09:33:39.000] update_node: node gpu0001 state set to IDLE
"""


def test_requests_are_counted_by_type_and_by_user() -> None:
    found = counted(SDIAG)
    assert found.types == {"REQUEST_NODE_INFO": Rpcs(248, 152421), "REQUEST_PING": Rpcs(58, 29511)}
    assert found.users == {"nobody": Rpcs(301, 180932), "healer": Rpcs(5, 1000)}
    assert total(found.types.values()) == total(found.users.values())


def test_only_what_came_since_is_counted() -> None:
    assert counted(LATER).since(counted(SDIAG)).users == {"healer": Rpcs(4, 800)}


def test_only_drains_by_healer_count() -> None:
    (drain,) = drains(LOG)
    assert (drain.node, drain.reason) == ("gpu0001", "healer:gpu-lost inc:d455df4c Xid 79")
