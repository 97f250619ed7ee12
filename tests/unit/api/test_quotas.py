"""Quotas of tokens: what they let through, how they grow back, and who is refused first."""

import httpx
import pytest

from healer.api.quotas import (
    BURST_S,
    KINDS,
    OF_CLUSTER,
    OF_JOB,
    OF_NODE,
    TOKENS,
    Kind,
    OverQuota,
    Quotas,
    rates_of,
)
from healer.model import Role
from healer.ports.callers import Caller
from tests.support.api import Api

Served = tuple[Api, httpx.Client]


def caller(name: str = "a", *, node: str | None = None, job: str | None = None, quota: float = 1.0) -> Caller:
    return Caller(id=name, name=name, role=Role.signals, node=node, job=job, quota=quota)


def refused(quotas: Quotas, who: Caller, kind: Kind, now: float) -> OverQuota | None:
    try:
        quotas.check(who, kind, now)
    except OverQuota as problem:
        return problem
    return None


def test_a_token_may_send_a_burst_and_then_its_rate() -> None:
    quotas, who = Quotas(), caller(node="n")
    burst = round(OF_NODE.entries * BURST_S)
    quotas.spend(who, 0.0, entries=burst)
    assert refused(quotas, who, Kind.metrics, 0.0) is None
    quotas.spend(who, 0.0, entries=1)
    assert refused(quotas, who, Kind.metrics, 0.0) is not None
    for second in range(1, 100):
        assert refused(quotas, who, Kind.metrics, second) is None
        quotas.spend(who, second, entries=round(OF_NODE.entries))


def test_retry_after_is_the_very_second() -> None:
    quotas, who = Quotas(), caller(node="n")
    quotas.spend(who, 0.0, size=round(OF_NODE.bytes * (BURST_S + 6.5)))
    refusal = refused(quotas, who, Kind.metrics, 0.0)
    assert refusal is not None
    assert (refusal.status, refusal.headers["Retry-After"], refusal.more["quota"]) == (429, "7", "bytes")
    assert refused(quotas, who, Kind.metrics, 6.4) is not None
    assert refused(quotas, who, Kind.metrics, 7.0) is None


def test_less_important_signals_are_refused_first() -> None:
    quotas, who = Quotas(), caller()
    burst = round(OF_CLUSTER.entries * BURST_S)
    refusals: list[set[Kind]] = []
    for _ in range(13):
        quotas.spend(who, 0.0, entries=burst)
        refusals.append({kind for kind in Kind if refused(quotas, who, kind, 0.0)})
    assert refusals[0] == set()
    assert refusals[1] == {Kind.metrics}
    assert refusals[2] == {Kind.metrics, Kind.steps}
    assert refusals[3] == refusals[10] == {Kind.metrics, Kind.steps, Kind.heartbeats}
    assert refusals[11] == set(Kind)


def test_node_token_may_overdraw_events_by_more_than_other_kinds() -> None:
    quotas, who = Quotas(), caller(node="n")
    burst, refusals = round(OF_NODE.entries * BURST_S), list[set[Kind]]()
    for part in (1.0, 0.1, 0.2, 0.2, 1.5, 0.1):
        quotas.spend(who, 0.0, entries=round(part * burst))
        refusals.append({kind for kind in Kind if refused(quotas, who, kind, 0.0)})
    less = {Kind.metrics, Kind.steps, Kind.heartbeats}
    assert refusals == [set(), {Kind.metrics}, {Kind.metrics, Kind.steps}, less, less, set(Kind)]


def test_all_tokens_of_a_job_have_one_quota() -> None:
    quotas = Quotas()
    for number in range(8):
        quotas.spend(caller(f"t{number}", job="4711"), 0.0, entries=round(OF_JOB.entries * BURST_S / 4))
    assert refused(quotas, caller("fresh", job="4711"), Kind.steps, 0.0) is not None
    assert refused(quotas, caller("other", job="4712"), Kind.steps, 0.0) is None
    assert len(quotas) == 1


def test_metrics_never_keep_events_of_the_same_token_out() -> None:
    """Metrics are refused as soon as the burst is spent, so they never owe more than one request."""
    quotas, who = Quotas(), caller()
    for _ in range(1000):
        if refused(quotas, who, Kind.metrics, 0.0) is None:
            quotas.spend(who, 0.0, size=64 * 2**20, entries=1_000_000)
    assert refused(quotas, who, Kind.metrics, 0.0) is not None
    assert refused(quotas, who, Kind.events, 0.0) is None


def test_a_storm_of_a_node_is_no_matter() -> None:
    quotas, who = Quotas(), caller(node="n")
    for _ in range(10):  # 10,000 lines of 200 bytes each time
        assert refused(quotas, who, Kind.events, 0.0) is None
        quotas.spend(who, 0.0, size=2_000_000, entries=10_000)
    assert refused(quotas, who, Kind.metrics, 0.0) is None


def test_one_token_for_10_000_gpus_fits_ten_times() -> None:
    quotas, who = Quotas(), caller()
    for second in range(600):
        assert refused(quotas, who, Kind.metrics, second) is None
        quotas.spend(who, second, size=10 * 20_000_000, entries=10 * 1_250 * 240 // 5)


def test_one_token_costs_no_other() -> None:
    quotas = Quotas()
    quotas.spend(caller("loud", node="n"), 0.0, entries=10**9)
    assert refused(quotas, caller("loud", node="n"), Kind.events, 0.0) is not None
    assert refused(quotas, caller("quiet", node="n"), Kind.metrics, 0.0) is None


def test_time_pays_back_no_more_than_the_burst() -> None:
    quotas, who = Quotas(), caller(node="n")
    quotas.spend(who, 0.0, entries=1)
    quotas.spend(who, 1e9, entries=round(OF_NODE.entries * BURST_S) + 1)
    assert refused(quotas, who, Kind.metrics, 1e9) is not None


def test_number_of_remembered_tokens_is_bounded() -> None:
    quotas = Quotas()
    for number in range(TOKENS + 100):
        quotas.spend(caller(str(number)), 0.0, entries=1)
    assert len(quotas) == TOKENS


def test_rates_by_what_a_token_is_bound_to_and_its_own_factor() -> None:
    assert rates_of(caller()) == OF_CLUSTER
    assert rates_of(caller(node="n")) == OF_NODE
    assert rates_of(caller(job="1")) == OF_JOB
    assert rates_of(caller(node="n", quota=2.5)) == tuple(rate * 2.5 for rate in OF_NODE)
    assert OF_NODE < OF_JOB < OF_CLUSTER


def test_every_route_of_samples_has_its_kind(served: Served) -> None:
    """A route not listed here brings events: refused last."""
    api, _ = served
    routes = {route.path for route in api.app.routes if "/signals/" in getattr(route, "path", "")}  # type: ignore[attr-defined]
    endpoints = {route.partition("/signals/")[2] for route in routes}
    assert {
        "metrics",
        "openmetrics",
        "prometheus/write",
        "nvidia-smi",
        "step-times",
        "heartbeat",
    } <= endpoints
    assert set(KINDS) <= endpoints | {"otlp/v1/metrics"}
    assert not {"kernel-log", "checkpoints", "hooks/prolog", "logs"} & set(KINDS)


def test_over_quota_is_429_and_a_loss_and_events_go_on(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", node="gpu0001", quota=0.001)  # 5 entries/s, 300 at once
    body = {"node": "gpu0001", "host": {"load1": 1.0}}
    metrics = "/api/v1/signals/metrics"
    assert client.post(metrics, json=[body] * 400, headers=headers).status_code == 202
    answer = client.post(metrics, json=body, headers=headers)
    assert (answer.status_code, answer.json()["code"], answer.json()["quota"]) == (429, "quota", "entries")
    assert int(answer.headers["Retry-After"]) >= 1
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, GPU has fallen off the bus."
    event = {"node": "gpu0001", "boot_id": "b", "entries": [{"seq": 1, "line": line}]}
    assert client.post("/api/v1/signals/kernel-log", json=event, headers=headers).status_code == 202
    api.app.state.losses.flush()
    losses = client.get("/api/v1/signals/losses", headers=api.headers("viewer")).json()["items"]
    assert [(one["source"], one["reason"]) for one in losses if one["reason"] == "quota"] == [
        ("metrics", "quota")
    ]


@pytest.mark.parametrize("quota", [0.001, 1.0, 1000.0])
def test_a_tokens_quota_is_kept(served: Served, quota: float) -> None:
    api, _ = served
    from healer.api.access import digest_of

    token = api.headers("signals", quota=quota)["Authorization"].removeprefix("Bearer ")
    found = api.services.tokens.by_token(digest_of(token), api.services.clock.now())
    assert found is not None and found.quota == quota
