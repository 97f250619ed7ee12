"""What is done on a node itself: a service restarted, its tests run, its fabric read."""

from healer.actions import keyed
from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.keyed import LOOK_AGAIN_S, no_way
from healer.actions.look import at_node
from healer.model import SlurmNode
from healer.ports.node_exec import NodeError, NodeExec, NodeUnavailable

#: Tests run for minutes.
TESTS_AGAIN_S = 5.0
#: For a person, where healer cannot start them.
_TESTS = "dcgmi diag -r 2"


def _nothing(_: Context) -> None:
    return None


# --- restart_service ---


def _service(ctx: Context) -> str:
    return str(ctx.step.input["service"])


def _restart_probe(ctx: Context) -> Result | None:
    """Nothing tells that a restart is not needed; once asked for, only its outcome is looked at."""
    if ctx.nodes is None:
        return no_way(ctx, f"systemctl restart {_service(ctx)}")
    return _restarted(ctx) if ctx.asked else None


def _restart(ctx: Context) -> Result | None:
    assert ctx.nodes is not None  # the probe has looked
    ctx.fence()
    try:
        ctx.nodes.restart_service(ctx.node, _service(ctx))
    except NodeUnavailable as error:
        # Unknown whether it happened: read back. Surely not: a service that is active proves no restart then.
        return None if error.sent else Failed(text=str(error))
    except NodeError as error:
        return Failed(text=str(error))
    return None


def _restarted(ctx: Context) -> Result:
    service = _service(ctx)
    try:
        active = ctx.nodes is not None and ctx.nodes.service_active(ctx.node, service)
    except NodeUnavailable as error:
        return Again(text=f"{ctx.node} did not answer: {error}", after_s=LOOK_AGAIN_S)
    except NodeError as error:
        return Failed(text=str(error))
    if not active:
        return Again(text=f"{service} is not active on {ctx.node} yet", after_s=LOOK_AGAIN_S)
    return Done(text=f"{service} was restarted on {ctx.node} and is active", data={"service": service})


# --- the node's own tests: `healer.actions.diagnose` ---


def diagnosis_probe(ctx: Context) -> Result | None:
    return keyed.probe(ctx, _result, _TESTS, TESTS_AGAIN_S)


def start_diagnosis(ctx: Context) -> Result | None:
    return keyed.begin(ctx, lambda nodes: nodes.start_diagnosis(ctx.node, ctx.key), TESTS_AGAIN_S)


def diagnosed(ctx: Context) -> Result:
    return keyed.ended(ctx, _result, _TESTS, TESTS_AGAIN_S)


def _result(ctx: Context, nodes: NodeExec) -> Result:
    told = nodes.diagnosis(ctx.node, ctx.key)
    if told is None:
        return Again(text=f"The tests of {ctx.node} run", after_s=TESTS_AGAIN_S)
    return Done(text=f"{ctx.node}: {told.text}", data={"passed": told.passed, "failed": list(told.failed)})


# --- fabric_state ---


def fabric_state(ctx: Context) -> Result:
    """The NVLink fabric of the node is up on every GPU. It takes a while to come: `timeout_s` of the step."""
    if ctx.nodes is None:
        return no_way(ctx, "nvidia-smi -q | grep -A 4 Fabric")
    try:
        told = ctx.nodes.fabric_state(ctx.node)
    except NodeError as error:
        return Failed(text=f"The fabric of {ctx.node} could not be read: {error}")
    data: dict[str, object] = {"passed": told.healthy, "state": told.state, "status": told.status}
    text = f"{ctx.node}: {told.text or f'fabric {told.state}: {told.status}'}"
    if not told.healthy and (ctx.now() - ctx.began_at).total_seconds() < ctx.step.timeout_s:
        return Again(text=text, after_s=LOOK_AGAIN_S)
    return Done(text=text, data=data)


# --- memory_health ---


def memory_health(ctx: Context) -> Result:
    """Yes: as many GPUs as Slurm counts, and none has a row that waits to be remapped or could not be. What
    cannot be read is neither: a person is asked."""
    if ctx.nodes is None:
        return no_way(ctx, "nvidia-smi -q -d ROW_REMAPPER,ECC")
    node = at_node(ctx)
    if not isinstance(node, SlurmNode):
        return node
    try:
        told = ctx.nodes.memory_state(ctx.node)
    except NodeUnavailable as error:
        if (ctx.now() - ctx.began_at).total_seconds() < ctx.step.timeout_s:
            return Again(text=f"{ctx.node} did not answer: {error}", after_s=LOOK_AGAIN_S)
        return Failed(text=f"The memory of the GPUs of {ctx.node} could not be read: {error}")
    except NodeError as error:
        return Failed(text=str(error))
    missing = 0 if node.gpus_shared else max(0, node.gpus - told.gpus)
    faults = [*told.faults, *([f"it shows {told.gpus} of {node.gpus} GPUs"] if missing else [])]
    if faults:
        return Done(text=f"{ctx.node}: {'; '.join(faults)}", data={"passed": False, "faults": faults})
    text = f"{ctx.node}: the memory of {told.gpus} GPUs is well, nothing is pending"
    return Done(text=text, data={"passed": True})


RESTART_SERVICE = Action(probe=_restart_probe, do=_restart, verify=_restarted)
FABRIC_STATE = Action(probe=_nothing, do=_nothing, verify=fabric_state, effect=False)
MEMORY_HEALTH = Action(probe=_nothing, do=_nothing, verify=memory_health, effect=False)
