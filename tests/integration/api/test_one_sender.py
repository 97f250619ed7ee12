"""Text and step times that one token posts are one sender's word (law 2), from the route to the proof."""

from datetime import UTC, datetime

import httpx
import pytest
import sqlalchemy as sa

from healer.incidents.certainty import is_proven_fatal
from healer.model import Component, Evidence, Sense
from tests.integration.api.test_measuring import SIGNALS, STEPS, new_samples, step_body
from tests.support.api import Api, incident

Served = tuple[Api, httpx.Client]
LINE = "NVRM: Xid (PCI:0000:9b:00): 48, pid=1, name=python, An uncorrectable double bit error"


@pytest.mark.parametrize("same", [True, False], ids=["the same token", "the job's own token"])
def test_step_times_prove_a_relay_s_text_if_another_token_sent_them(served: Served, same: bool) -> None:
    api, client = served
    relay = api.headers("signals", name="relay", vouches="")
    trainer = relay if same else api.headers("signals", name="trainer", job="4711")
    entries = [{"time": datetime.now(UTC).isoformat(), "line": LINE}]
    body = {"cluster": "pod1", "node": "gpu0001", "entries": entries}
    assert client.post(f"{SIGNALS}/kernel-log", json=body, headers=relay).status_code == 202
    assert client.post(STEPS, json=step_body(), headers=trainer).status_code == 202
    with api.engine.connect() as conn:
        relayed_by = conn.execute(sa.text("SELECT doc ->> 'relayed_by' FROM inbox")).scalar_one()
    _, (batch,) = new_samples(api)
    where = Component(cluster="pod1", node="gpu0001")

    def said(sense: Sense, relayed_by: str = "", sent_by: str = "") -> Evidence:
        return Evidence(
            digest=sense, at=batch.arrived_at, component=where, text="x", sense=sense, fatal=True,
            relayed_by=relayed_by, sent_by=sent_by,
        )  # fmt: skip

    both = (said(Sense.kernel, relayed_by), said(Sense.step_times, sent_by=batch.sent_by))
    assert is_proven_fatal(incident(1, evidence=both)) is not same


IDENTITY = "NVRM: GPU at PCI:0000:18:00: GPU-f1b2c3d4-0000-0000-0000-000000000000"


@pytest.mark.parametrize("route", ["heartbeat", "kernel-log"])
def test_a_relay_that_reports_a_boot_is_named_and_takes_the_place_of_no_word_of_the_node(
    served: Served, route: str
) -> None:
    api, client = served
    relay = api.headers("signals", name="relay", vouches="")
    own = api.headers("signals", name="gpu0001", node="gpu0001")
    time = datetime.now(UTC).isoformat()
    body = {"cluster": "pod1", "node": "gpu0001", "boot_id": "b1"}
    body |= {"time": time} if route == "heartbeat" else {"entries": [{"line": IDENTITY, "time": time}]}
    for sender in (relay, own):
        answer = client.post(f"{SIGNALS}/{route}", json=body, headers=sender).json()
        assert (answer["accepted"], answer["duplicates"]) == (1, 0)
    with api.engine.connect() as conn:
        senders = conn.execute(sa.text("SELECT doc ->> 'relayed_by' FROM inbox ORDER BY id")).scalars().all()
    assert [(name or "").partition(" (")[0] for name in senders] == ["relay", ""]
