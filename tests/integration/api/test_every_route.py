"""Requests made from the API's own document, by every role: no failure of ours, and answers as promised."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.long.fuzz import seeds
from tests.long.fuzz.mutation import mutated
from tests.support.api import Api

load_all_checks()
CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
#: These never end.
STREAMS = ("/stream",)
#: Answers of ours that may be: Slurm was not asked yet, or there is no munge on this machine.
AWAY = 503

#: Bodies without a schema: valid ones and their mutations.
_BODIES = {
    "application/x-protobuf": seeds.SNAPPY + seeds.OTLP_LOGS + seeds.OTLP_METRICS,
    "application/vnd.fdo.journal": seeds.JOURNAL_EXPORT,
    "application/x-ndjson": seeds.LOGS_JSON,
    "text/plain": seeds.KERNEL_TEXT + seeds.EXPOSITION + seeds.NVIDIA_SMI,
    "application/openmetrics-text": seeds.EXPOSITION,
    "text/xml": seeds.NVIDIA_SMI,
    "application/xml": seeds.NVIDIA_SMI,
}
#: What routes of JSON take, so that more than refusals is looked at.
_JSON = {
    "kernel-log": seeds.KERNEL_LOG,
    "heartbeat": seeds.HEARTBEAT,
    "logs": seeds.LOGS_JSON,
    "metrics": seeds.COLUMNAR,
    "step-times": seeds.STEP_TIMES,
    "checkpoints": seeds.CHECKPOINTS,
    "alertmanager": seeds.ALERTMANAGER,
    "cloudevents": seeds.CLOUDEVENTS + seeds.CLOUDEVENTS_BATCH,
    "otlp/v1/logs": seeds.OTLP_LOGS_JSON,
    "otlp/v1/metrics": seeds.OTLP_METRICS_JSON,
    "hooks/prolog": seeds.HOOKS,
    "hooks/epilog": seeds.HOOKS,
    "hooks/health-check": seeds.HOOKS,
}
#: Each route is asked in these many ways by the first of the roles that may, in these many by each other.
EXAMPLES, EXAMPLES_OF_OTHERS = 6, 2
#: The signal routes are the senders', all others are for people.
ROLES = {"signals": ("signals",), "people": ("admin", "viewer", "responder", "operator", "auditor")}
FEW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
)


def changed(raws: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Some of these, as they are or mutated."""

    def one(raw: bytes, chance: Any, change: bool) -> bytes:
        return mutated(raw, raws, chance) if change else raw

    return st.builds(one, st.sampled_from(raws), st.randoms(use_true_random=False), st.booleans())


for _kind, _raws in _BODIES.items():
    schemathesis.openapi.media_type(_kind, changed(_raws))


def operations(schema: Any, *, signals: bool) -> Iterator[Any]:
    found = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith(STREAMS) or ("/signals/" in operation.path) is not signals:
            continue
        found += 1
        yield operation
    assert found > 15


def fits(case: Any, response: Any, what: str) -> None:
    """Not our own failure, and what the document promises. OTLP's errors are google.rpc.Status in its own
    encoding, which the document does not describe."""
    status = response.status_code
    assert status < 500 or status == AWAY, f"{what}: {status} {response.text[:500]}"
    assert status < 400 or "Traceback" not in response.text, what
    if case is not None and "/otlp/" not in case.operation.path:
        case.validate_response(response, checks=CHECKS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize("who", ROLES)
def test_made_requests(served: tuple[Api, httpx.Client], who: str, mode: GenerationMode) -> None:
    """By the document: of the signal routes with the senders' role, of all others with each other role."""
    api, client = served
    schema = schemathesis.openapi.from_dict(api.app.openapi())
    url, (first, *others) = str(client.base_url), ROLES[who]
    headers = {role: api.headers(role) for role in ROLES[who]}
    wrong: list[str] = []
    taken: Counter[str] = Counter()
    for operation in operations(schema, signals=who == "signals"):
        if mode is GenerationMode.NEGATIVE and not has_something_to_be_wrong(operation):
            continue
        cases = operation.as_strategy(generation_mode=mode)
        for roles, examples in (((first,), EXAMPLES), (others, EXAMPLES_OF_OTHERS)):
            try:
                taken += asked(cases, examples, url, {role: headers[role] for role in roles})
            except* Exception as group:  # of all routes, not of the first one alone
                wrong += [
                    f"{operation.method} {operation.path}: {str(error)[:1500]}" for error in group.exceptions
                ]
    assert not wrong, "\n\n".join(wrong)
    # Else all was refused at the door.
    assert min(taken[role] for role in headers) > 5 or mode is GenerationMode.NEGATIVE


def has_something_to_be_wrong(operation: Any) -> bool:
    return bool(operation.body or operation.query or operation.path_parameters)


def asked(cases: Any, examples: int, url: str, headers: Mapping[str, dict[str, str]]) -> Counter[str]:
    """The roles of whom any request was taken; each makes all of them."""
    taken: set[str] = set()

    @settings(FEW, max_examples=examples)
    @given(cases)
    def run(case: Any) -> None:
        for role, own in headers.items():
            response = case.call(base_url=url, headers=own, timeout=60)
            if response.status_code < 300:
                taken.add(role)
            fits(case, response, f"{role}: {case.method} {case.path} with {case.body!r:.300}")

    if headers:
        run()
    return Counter(taken)


@pytest.mark.parametrize("route", _JSON)
def test_changed_bodies_of_senders(served: tuple[Api, httpx.Client], route: str) -> None:
    """Valid bodies and their mutations, through the whole way to the database."""
    api, client = served
    headers = api.headers("signals") | {"content-type": "application/json"}
    path = f"/api/v1/signals/{route}"
    first = client.post(path, content=_JSON[route][0], headers=headers)
    assert first.status_code in (200, 202), first.text

    @FEW
    @given(changed(_JSON[route]))
    def run(raw: bytes) -> None:
        response = client.post(path, content=raw, headers=headers)
        fits(None, response, f"{path} with {raw[:300]!r}")

    run()


def test_changed_headers_of_events(served: tuple[Api, httpx.Client]) -> None:
    """CloudEvents in binary mode: attributes are headers."""
    api, client = served
    headers = api.headers("signals") | {
        "content-type": "application/json",
        "ce-specversion": "1.0",
        "ce-type": "io.healer.alert.v1",
    }

    @FEW
    @given(changed((b"/x%20y", b"2026-11-20T03:00:00Z", b"%00%ff", b"id-1")), changed(seeds.ALERTMANAGER))
    def run(word: bytes, raw: bytes) -> None:
        word_sent = "".join(map(chr, (one for one in word[:2000] if 32 < one < 127))) or "x"
        more = {"ce-id": word_sent, "ce-source": word_sent, "ce-time": word_sent, "ce-subject": word_sent}
        response = client.post("/api/v1/signals/cloudevents", content=raw, headers=headers | more)
        assert response.status_code < 500, response.text

    run()
