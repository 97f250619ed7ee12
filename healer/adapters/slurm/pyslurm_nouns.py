"""Converts records of `pyslurm_child` (pyslurm 23.11 to 25.11) to healer's model."""

from collections.abc import Mapping
from typing import Any

from healer.adapters.slurm import parse_json
from healer.adapters.slurm import slurm_words as words
from healer.model import Reservation, SlurmJob, SlurmNode

#: Slurm's JSON name of a field -> pyslurm's name, for fields of the same meaning.
_SAME_OF_NODE = {
    "name": "name", "address": "address", "hostname": "hostname", "state": "state", "reason": "reason",
    "reason_set_by_user": "reason_user", "partitions": "partitions", "active_features": "active_features",
    "comment": "comment", "extra": "extra", "next_state_after_reboot": "next_state",
}  # fmt: skip
_SAME_OF_JOB = {
    "job_id": "id", "job_state": "state", "array_job_id": "array_id", "nodes": "allocated_nodes",
    "restart_cnt": "requeue_count", "requeue": "is_requeueable", "batch_flag": "is_batch_job", "name": "name",
    "partition": "partition", "qos": "qos", "comment": "comment", "excluded_nodes": "excluded_nodes",
    "required_nodes": "required_nodes",
    "account": "account", "extra": "extra", "admin_comment": "admin_comment", "resv_name": "reservation",
    "submit_line": "submit_line", "het_job_id": "heterogeneous_id", "failed_node": "failed_node",
    "het_job_offset": "heterogeneous_offset", "federation_origin": "federation_origin",
}  # fmt: skip
_TIMES_OF_JOB = ("start_time", "submit_time", "eligible_time", "end_time")


def node(record: Mapping[str, Any]) -> SlurmNode:
    return parse_json.node(
        parse_json.NodeRecord(
            **{field: record[name] for field, name in _SAME_OF_NODE.items()},
            gres=_gres(record["configured_gres"]),
            cpus=_number(record["total_cpus"]),
            boot_time=_number(record["boot_time"]),
            reason_changed_at=_number(record["reason_time"]),
        )
    )


def job(record: Mapping[str, Any]) -> SlurmJob:
    """As of Slurm's JSON, one that cannot be read hides no other."""
    try:
        if "unread" not in record:
            return _job(record)
        why = record["unread"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = repr(error)
    core = parse_json.JobCore(record["id"], record["state"], record["allocated_nodes"])
    return parse_json.unread_job(core, why)


def _job(record: Mapping[str, Any]) -> SlurmJob:
    reason, why = record["state_reason"], ""
    if reason and " " in reason:
        reason, why = words.reason_and_why(reason.replace(" ", "_"))
    user, siblings = record["user_id"], record["federation_siblings_active"]
    exit_signal = parse_json.Signal(record["exit_code_signal"])
    same: dict[str, Any] = {field: record[name] for field, name in _SAME_OF_JOB.items()}
    times: dict[str, Any] = {field: _number(record[field]) for field in _TIMES_OF_JOB}
    raw = parse_json.JobRecord(
        **same,
        **times,
        # pyslurm shows no number for task 0, nor for pending tasks.
        array_task_id=None if record["array_tasks_waiting"] else record["array_task_id"] or 0,
        user_name=record["user_name"] or str(user or ""),
        user_id=_number(user),
        state_reason=reason,
        state_description=why,
        exit_code=parse_json.ExitCode(record["exit_code"], exit_signal),
        dependency=_dependency(record["dependencies"]),
        priority=_number(record["priority"]),
        # Before 25.11 siblings are a bit mask.
        federation_siblings_active=siblings if isinstance(siblings, list) else None,
    )
    return parse_json.job(raw, _gpus(record["layout"]))


def reservation(record: Mapping[str, Any]) -> Reservation:
    # 25.05 and later have pyslurm's names.
    flags = ["MAINT" if flag == "MAINTENANCE" else flag for flag in (record["flags"] or "").split(",")]
    return parse_json.reservation(
        parse_json.ReservationRecord(
            name=record["name"],
            node_list=record["nodes"],
            users=record["users"],
            accounts=record["accounts"],
            flags=flags,
            start_time=_number(record["start_time"]),
            end_time=_number(record["end_time"]),
        )
    )


def _gpus(layout: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """GPU indices by node, as far as the layout has them; pyslurm 24.11 has none."""
    indices_by_node = {name: words.gpu_indices(_gres(part["gres"])) for name, part in layout.items()}
    return {name: indices for name, indices in indices_by_node.items() if indices is not None}


def _gres(parts: Mapping[str, Any] | None) -> str:
    """`{"gpu:h100": 8}` or `{"gpu:h100": {"count": 2, "indexes": "0-1"}}` as Slurm's own text."""
    return ",".join(
        f"{name}:{part['count']}(IDX:{part['indexes']})" if isinstance(part, dict) else f"{name}:{part}"
        for name, part in (parts or {}).items()
    )


def _dependency(dependencies: Mapping[str, Any] | None) -> str:
    """`{"afterok": ["12(unfulfilled)"], "singleton": False}` -> `afterok:12(unfulfilled)`.

    pyslurm drops `singleton(unfulfilled)`, so a mapping without any ids means `singleton`.
    """
    if dependencies is None:
        return ""
    texts = [
        f"{name}:{':'.join(map(str, ids))}"
        for name, ids in dependencies.items()
        if isinstance(ids, list) and ids
    ]
    return ",".join(texts + ["singleton"] * bool(dependencies["singleton"] or not texts))


def _number(value: int | str | None) -> int | None:
    """None for pyslurm's None and "UNLIMITED"."""
    return value if isinstance(value, int) else None
