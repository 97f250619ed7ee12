"""healer asks Debian's IPMI exporter for a node's BMC, as the page shows."""

import shutil
from pathlib import Path

import msgspec
import sqlalchemy as sa

from healer.model import ScrapeRules
from healer.rulebook.ruleset import load
from tests.support.ipmi import ipmi_exporter
from tests.support.loop import SHIPPED
from tests.support.pulling import Pulled
from tests.support.snippets import placed, snippet
from tests.support.wait import wait_until

SECTION = "BMCs by IPMI, asked by healer itself"


def test_the_sensors_of_a_bmc_are_those_of_its_node(fresh_database: sa.Engine, tmp_path: Path) -> None:
    rules = Path(shutil.copytree(SHIPPED, tmp_path / "rules"))
    with ipmi_exporter(tmp_path) as (exporter, bmc):
        places = {"ipmi-exporter:9290": exporter, "bmc-gpu0001": bmc}
        (rules / "scrape.yaml").write_text(placed(snippet("signals.md", SECTION), places))
        (job,) = load(rules, prove=False).scrape.jobs
        often = msgspec.structs.replace(job, interval_s=2)
        with Pulled(fresh_database, ScrapeRules(jobs=(often,))) as pulled:
            wait_until(lambda: pulled.values("gpu0001"), 60, what="the BMC's sensors")
            values = {signal: value for (signal, _), value in pulled.values("gpu0001").items()}
    assert values == {"node_inlet_temp_c": 24, "host_temp_c": 61, "fan_rpm": 7000, "fan_state": 0}
