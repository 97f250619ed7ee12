"""Code inside a part that faces the network finds no way to change Slurm, and no secret of the worker's.

It is the attacker's code: it walks from the application through everything that this holds, and tries.
"""

import contextlib
import gc
import inspect
import subprocess
import sys
import types
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.tokens import adopt_key
from healer.adapters.system_clock import SystemClock
from healer.adapters.token_key import KEY_FILE, token_key
from healer.bootstrap import slurm_reads
from healer.bootstrap.web import web_app
from healer.embedded.embedded_slurm import RealSlurm
from healer.ports.scheduling import Scheduler, SlurmReads
from healer.settings import Settings, load
from healer.sim.sim_slurm import SimClient, SimScheduler, SimServer
from tests.support.slurm import clean, hands, real_slurm  # noqa: F401 - a fixture

REASON = "healer:storm inc:deadbeef forged"
#: Calls that change Slurm, by names that nothing else has.
WRITES = {"drain", "undrain", "cancel_reboot", "change_reservation", "unreserve", "start_now"}
#: What leads everywhere and is the code itself, which every part shares.
_CODE = (types.ModuleType, type, types.CodeType, types.FrameType, types.BuiltinFunctionType)


def reached(start: object) -> Iterator[object]:
    """Every object that this one holds, directly or through others."""
    seen, ahead = {id(start)}, [start]
    while ahead:
        found = ahead.pop()
        yield found
        held: list[Any] = (
            [found.__closure__, found.__defaults__, found.__kwdefaults__, found.__dict__]
            if (isinstance(found, types.FunctionType))
            else gc.get_referents(found)
        )
        for other in held:
            if not isinstance(other, _CODE) and id(other) not in seen:
                seen.add(id(other))
                ahead.append(other)


def has(thing: object, name: str) -> bool:
    try:
        return callable(getattr(thing, name, None))
    except Exception:
        return False


def attack(app: object, nodes: list[str]) -> None:
    """Drains the nodes through whatever is found."""
    for thing in reached(app):
        for node in nodes:
            tries = [
                lambda thing=thing, node=node: thing.drain(node, REASON),  # type: ignore[attr-defined]
                lambda thing=thing, node=node: thing._change_nodes(  # type: ignore[attr-defined]
                    "drain", [node], {"state": "DRAIN", "reason": REASON}
                ),
                lambda thing=thing, node=node: thing.ask(  # type: ignore[attr-defined]
                    "drain", "scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={REASON}"
                ),
                lambda thing=thing, node=node: thing._call("drain", node, REASON),  # type: ignore[attr-defined]
            ]
            names = ("drain", "_change_nodes", "ask", "_call")
            for name, attempt in zip(names, tries, strict=True):
                if has(thing, name):
                    with contextlib.suppress(Exception):
                        if inspect.iscoroutine(asked := attempt()):
                            asked.close()


def of_the_api(database: sa.Engine, scratch: Path, **environ: str) -> Settings:
    url = database.url.render_as_string(hide_password=False)
    with database.begin() as conn:
        adopt_key(conn, token_key(scratch / KEY_FILE), datetime.now(UTC))
    known = {
        "HEALER_DATA_DIR": str(scratch),
        "HEALER_DATABASE_URL": url,
        "HEALER_REDIS_URL": "redis://127.0.0.1:1",
    }
    return load(known | environ)


@pytest.mark.slurm
def test_the_api_drains_no_node_of_a_real_slurm(
    real_slurm: RealSlurm,  # noqa: F811
    fresh_database: sa.Engine,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(real_slurm.slurm_conf))
    app = web_app(of_the_api(fresh_database, scratch, HEALER_SLURM_ADAPTERS="cli"))
    nodes = sorted(hands(real_slurm).snapshot().nodes)
    try:
        attack(app, nodes)
        drained = [node for node in hands(real_slurm).snapshot().nodes.values() if node.drain]
        assert len(nodes) >= 32 and drained == []
    finally:
        clean(real_slurm)


def test_the_api_drains_no_node_of_the_simulated_slurm(fresh_database: sa.Engine, scratch: Path) -> None:
    slurm = SimScheduler("pod1", SystemClock(), 4)
    server = SimServer(slurm, scratch / "slurm.sock")
    server.start()
    try:
        settings = of_the_api(
            fresh_database, scratch, HEALER_SLURM_ADAPTERS="sim", HEALER_SIM_SOCKET=str(server.path)
        )
        attack(web_app(settings), ["gpu0001", "gpu0002"])
        assert [node.name for node in slurm.snapshot().nodes.values() if node.drain] == []
        SimClient(server.path).drain("gpu0001", REASON)
        assert slurm.node("gpu0001").drain, "and the worker's own way works"
    finally:
        server.stop()


@pytest.mark.parametrize("adapters", ["cli", "rest", "pyslurm", "sim"])
def test_nothing_that_the_api_holds_has_a_call_that_changes_slurm(
    fresh_database: sa.Engine, scratch: Path, adapters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(scratch / "no-cluster.conf"))
    (scratch / "token").write_text("a.e30.c")
    (scratch / "token").chmod(0o600)
    settings = of_the_api(
        fresh_database,
        scratch,
        HEALER_SLURM_ADAPTERS=adapters,
        HEALER_CLUSTER="pod1",
        HEALER_SLURM_REST_URL="http://127.0.0.1:1",
        HEALER_SLURM_TOKEN_FILE=str(scratch / "token"),
    )
    everything = list(reached(web_app(settings)))
    slurms = [thing for thing in everything if type(thing).__module__.startswith("healer.adapters.slurm.")]
    assert slurms or adapters == "sim", "it asks Slurm"
    assert all(hasattr(Scheduler, name) and not hasattr(SlurmReads, name) for name in WRITES)
    found = {(type(thing).__qualname__, name) for thing in everything for name in WRITES if has(thing, name)}
    assert found == set()


@pytest.mark.parametrize("adapters", ["cli", "rest", "pyslurm", "sim"])
def test_read_only_adapters_reach_no_call_that_changes_slurm(scratch: Path, adapters: str) -> None:
    (scratch / "token").write_text("a.e30.c")
    (scratch / "token").chmod(0o600)
    given = {"HEALER_SLURM_REST_URL": "http://127.0.0.1:1", "HEALER_SLURM_TOKEN_FILE": str(scratch / "token")}
    settings = load({"HEALER_DATA_DIR": str(scratch), "HEALER_SLURM_ADAPTERS": adapters, **given})
    chain = slurm_reads(settings, cluster="pod1")
    everything = [*reached(chain), *chain.adapters]
    assert {
        (type(thing).__name__, name) for thing in everything for name in WRITES if has(thing, name)
    } == set()


def test_the_parts_are_forked_from_a_process_without_what_acts() -> None:
    """What is loaded before the fork is in every part."""
    program = (
        "import sys; from healer.bootstrap.tree_parts import preload; from healer.settings import load; "
        "preload(load()); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    acts = ("healer.bootstrap.executor", "healer.adapters.nodes", "healer.adapters.bmc")
    acts += (
        "healer.adapters.commands",
        "healer.adapters.slurm.cli_client",
        "healer.adapters.slurm.preferred",
    )
    modules = loaded.stdout.split()
    assert "healer.bootstrap.web" in modules
    assert [
        name for name in modules if name in acts or name.startswith(tuple(f"{one}." for one in acts))
    ] == []
