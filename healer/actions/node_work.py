"""Work on a node itself: restart a service, run tests, reset GPUs, collect logs."""

from collections.abc import Callable
from hashlib import sha256

import msgspec

from healer.actions.base import Action, Again, Context, Done, Failed, Result, read_node
from healer.model import Bundle, Diagnosis, EvidenceFile
from healer.ports.node_exec import EvidenceBroken, NodeError, NodeExec, NodeUnavailable
from healer.text import joined, said_by, say

LOOK_AGAIN_S = 2.0

#: Reads the outcome of the work from the node. Raises NodeError if it was never begun, or was cut short.
Look = Callable[[Context, NodeExec], Result]


def no_way(ctx: Context, command: str) -> Failed:
    """Hands the work to a person, with the command to type."""
    return Failed(say("actions.node_no_way", node=ctx.node, command=command), final=True)


def _silent(ctx: Context, error: NodeUnavailable, after_s: float) -> Again:
    return Again(say("actions.node_silent", node=ctx.node, error=said_by(error)), after_s)


def node_action(
    start: Callable[[Context, NodeExec], None],
    look: Look,
    by_hand: Callable[[Context], str],
    after_s: float = LOOK_AGAIN_S,
) -> Action:
    """Work that the node continues by itself: started once under the step's key, then polled.

    `by_hand`: the command for a person, if healer has no access to the node."""

    def probe(ctx: Context) -> Result | None:
        if ctx.tools.nodes is None:
            return no_way(ctx, by_hand(ctx))
        try:
            return look(ctx, ctx.tools.nodes)
        except NodeUnavailable as error:
            # Unknown whether it runs: starting it again under the same key changes nothing.
            return _silent(ctx, error, after_s) if ctx.asked else None
        except NodeError:
            return None

    def begin(ctx: Context) -> Result | None:
        assert ctx.tools.nodes is not None  # the probe has looked
        ctx.fence()
        try:
            start(ctx, ctx.tools.nodes)
        except NodeUnavailable as error:
            # Sent: unknown whether it began, so poll. Not sent (other work runs there): try again later.
            return None if error.sent else Again(said_by(error), after_s)
        except NodeError as error:
            return Failed(said_by(error))
        return None

    def verify(ctx: Context) -> Result:
        if ctx.tools.nodes is None:
            return no_way(ctx, by_hand(ctx))
        try:
            return look(ctx, ctx.tools.nodes)
        except NodeUnavailable as error:
            return _silent(ctx, error, after_s)
        except NodeError as error:
            return Failed(said_by(error))

    return Action(probe=probe, do=begin, verify=verify)


#: Tests run for minutes.
TESTS_AGAIN_S = 5.0


def _outcome(ctx: Context, result: Diagnosis | None, running: Again) -> Result:
    """The outcome of work on the node; `running` until it has one."""
    if result is None:
        return running
    text = say("actions.node_says", node=ctx.node, text=result.text)
    return Done(text, {"passed": result.passed, "failed": [str(test) for test in result.failed]})


# --- restart_service ---


def _service(ctx: Context) -> str:
    return str(ctx.step.input["service"])


def _restart_probe(ctx: Context) -> Result | None:
    """No probe can show that a restart is unnecessary; once requested, only its outcome is read."""
    if ctx.tools.nodes is None:
        return no_way(ctx, f"systemctl restart {_service(ctx)}")
    return _restarted(ctx) if ctx.asked else None


def _restart(ctx: Context) -> Result | None:
    assert ctx.tools.nodes is not None  # the probe has looked
    ctx.fence()
    try:
        ctx.tools.nodes.restart_service(ctx.node, _service(ctx))
    except NodeError as error:
        # Also if that is unknown: an active service would not prove a restart. A second restart on the empty
        # node is harmless, and the node starts none while one is in progress.
        return Failed(said_by(error))
    return None


def _restarted(ctx: Context) -> Result:
    service = _service(ctx)
    try:
        active = ctx.tools.nodes is not None and ctx.tools.nodes.service_active(ctx.node, service)
    except NodeUnavailable as error:
        return _silent(ctx, error, LOOK_AGAIN_S)
    except NodeError as error:
        return Failed(said_by(error))
    if not active:
        return Again(say("actions.node_service_inactive", service=service, node=ctx.node), LOOK_AGAIN_S)
    return Done(say("actions.node_service_restarted", service=service, node=ctx.node), {"service": service})


# --- the node's own tests: `healer.actions.diagnose` ---


def _tests_result(ctx: Context, nodes: NodeExec) -> Result:
    running = Again(say("actions.node_tests_run", node=ctx.node), TESTS_AGAIN_S)
    return _outcome(ctx, nodes.diagnosis(ctx.node, ctx.key), running)


#: Only the node's own tests.
OWN_TESTS = node_action(
    lambda ctx, nodes: nodes.start_diagnosis(ctx.node, ctx.key),
    _tests_result,
    lambda _: "dcgmi diag -r 2",
    TESTS_AGAIN_S,
)


# --- fabric_state ---


def fabric_state(ctx: Context) -> Result:
    """The NVLink fabric is up on every GPU of the node. Waits for it for up to the step's `timeout_s`."""
    if ctx.tools.nodes is None:
        return no_way(ctx, "nvidia-smi -q | grep -A 4 Fabric")
    try:
        fabric = ctx.tools.nodes.fabric_state(ctx.node)
    except NodeError as error:
        return Failed(say("actions.node_fabric_unread", node=ctx.node, error=said_by(error)))
    data: dict[str, object] = {"passed": fabric.healthy, "state": fabric.state, "status": fabric.status}
    seen = fabric.text or say("actions.node_fabric", state=fabric.state, status=fabric.status)
    text = say("actions.node_says", node=ctx.node, text=seen)
    if not fabric.healthy and (ctx.tools.now() - ctx.began_at).total_seconds() < ctx.step.timeout_s:
        return Again(text, LOOK_AGAIN_S)
    return Done(text, data)


# --- memory_health ---


def memory_health(ctx: Context) -> Result:
    """Yes: as many GPUs as Slurm counts, none with a pending or failed row remap. If that cannot be read, a
    person is asked."""
    if ctx.tools.nodes is None:
        return no_way(ctx, "nvidia-smi -q -d ROW_REMAPPER,ECC")
    node = read_node(ctx)
    try:
        memory = ctx.tools.nodes.memory_state(ctx.node)
    except NodeUnavailable as error:
        if (ctx.tools.now() - ctx.began_at).total_seconds() < ctx.step.timeout_s:
            return _silent(ctx, error, LOOK_AGAIN_S)
        return Failed(say("actions.node_memory_unread", node=ctx.node, error=said_by(error)))
    except NodeError as error:
        return Failed(said_by(error))
    faults = list(memory.faults)
    if not node.gpus_shared and memory.gpus < node.gpus:
        faults.append(say("actions.node_memory_missing", shown=memory.gpus, gpus=node.gpus))
    if faults:
        text = say("actions.node_says", node=ctx.node, text=joined(faults, "semicolon"))
        return Done(text, {"passed": False, "faults": [str(fault) for fault in faults]})
    return Done(say("actions.node_memory_well", node=ctx.node, gpus=memory.gpus), {"passed": True})


RESTART_SERVICE = Action(probe=_restart_probe, do=_restart, verify=_restarted)


ALL = "all"


def _gpu_to_reset(ctx: Context) -> str:
    """The PCI address of the incident's GPU; all GPUs if it is unknown, if others are affected, or if the
    step says so. The node is empty, so resetting all of them affects no job."""
    incident = ctx.incident
    pci = incident.root.pci if incident is not None else None
    others = (part for part in (incident.affected if incident is not None else ()) if part.node == ctx.node)
    if ctx.step.input.get("which") == ALL or not pci or any(part.pci not in (None, pci) for part in others):
        return ALL
    return pci if "." in pci else f"{pci}.0"


def _reset_by_hand(ctx: Context) -> str:
    which = _gpu_to_reset(ctx)
    return "nvidia-smi --gpu-reset" + ("" if which == ALL else f" -i {which}")


def _reset_result(ctx: Context, nodes: NodeExec) -> Result:
    running = Again(say("actions.node_resetting", node=ctx.node), LOOK_AGAIN_S)
    return _outcome(ctx, nodes.reset(ctx.node, ctx.key), running)


RESET_GPU = node_action(
    lambda ctx, nodes: nodes.start_reset(ctx.node, ctx.key, _gpu_to_reset(ctx)), _reset_result, _reset_by_hand
)


#: Pieces fetched per attempt (256 KB each, about 0.2 s): a large file must not occupy a worker's thread.
PIECES = 16


def _fetched(ctx: Context, nodes: NodeExec) -> Result:
    """Fetches the next pieces, from where the last attempt or a dead worker stopped."""
    book = ctx.tools.evidence
    assert book is not None  # the probe has looked
    bundle = nodes.collection(ctx.node, ctx.key)
    if bundle is None:
        return Again(say("actions.node_collecting", node=ctx.node), TESTS_AGAIN_S)
    file = _file(ctx, bundle)
    size, have = bundle.size_bytes, book.stored(file.id)
    for _ in range(PIECES):
        if have >= size:
            break
        ctx.fence()
        data = nodes.read_collection(ctx.node, ctx.key, have)[: size - have]
        if not data:
            return Failed(say("actions.node_file_short", node=ctx.node, have=have, size=size))
        book.add(file, have, data)
        have += len(data)
    if have < size:
        return Again(say("actions.node_file_part", node=ctx.node, have=have, size=size), 0.1)
    try:
        book.finish(file)
    except EvidenceBroken as error:
        return Failed(said_by(error))
    parts = joined(bundle.parts, "semicolon")
    text = say("actions.node_file_kept", node=ctx.node, mb=size / 1e6, file=file.id, parts=parts)
    return Done(text, {"evidence": file.id, "bytes": size, "sha256": bundle.sha256})


def _file(ctx: Context, bundle: Bundle) -> EvidenceFile:
    """The file's record; every worker that takes over the run gives it the same id."""
    return EvidenceFile(
        id=f"e{sha256(f'{ctx.key}|{bundle.sha256}'.encode()).hexdigest()[:23]}",
        cluster=ctx.run.cluster,
        node=ctx.node,
        run=ctx.run.id,
        incident=ctx.run.incident,
        name=f"{ctx.node}-{ctx.began_at:%Y%m%dT%H%M%SZ}.txt.gz",
        at=ctx.began_at,
        bundle=bundle,
    )


_COLLECT = node_action(
    lambda ctx, nodes: nodes.start_collection(ctx.node, ctx.key),
    _fetched,
    lambda _: "dmesg; nvidia-smi -q; nvidia-bug-report.sh",
)


def _probe_collect(ctx: Context) -> Result | None:
    if ctx.tools.nodes is not None and ctx.tools.evidence is None:
        return Failed(say("actions.node_no_evidence"), final=True)
    return _COLLECT.probe(ctx)


COLLECT = msgspec.structs.replace(_COLLECT, probe=_probe_collect)
