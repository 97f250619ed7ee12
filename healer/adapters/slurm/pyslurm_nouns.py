"""What pyslurm shows, as `pyslurm_child` reads it, in healer's nouns. Shapes of pyslurm 23.11 to 25.11."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from healer.adapters.slurm import job_words, parse_reservations
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm import strict_hostlist as hostlist
from healer.model import Reservation, SlurmJob, SlurmNode


def node(record: Mapping[str, Any]) -> SlurmNode:
    gres = _gres(record["configured_gres"])
    gpus, model = words.gpus_of_gres(gres)
    state = words.node_state(record["state"])
    reason = (record["reason"] or "") if words.reason_stands(state) else ""
    return SlurmNode(
        name=record["name"],
        state=state,
        reason=reason,
        # A node without a reason still names a user.
        reason_user=(record["reason_user"] or "") if reason else "",
        reason_at=_time(record["reason_time"]) if reason else None,
        gpus=gpus,
        gpu_model=model,
        gpus_shared=words.shares_gpus(gres),
        partitions=tuple(record["partitions"] or ()),
        features=tuple(record["active_features"] or ()),
        boot_at=_time(record["boot_time"]),
        comment=record["comment"] or "",
        extra=record["extra"] or "",
        after_reboot=words.node_state(record["next_state"]) if record["next_state"] else (),
        address=_other(record["address"], record["name"]),
        hostname=_other(record["hostname"], record["name"]),
    )


def job(record: Mapping[str, Any]) -> SlurmJob:
    state, flags = words.job_state(record["state"])
    reason = "" if record["state_reason"] in (None, "None") else record["state_reason"]
    reason, why = job_words.reason_and_why(reason.replace(" ", "_")) if " " in reason else (reason, "")
    priority = record["priority"] if isinstance(record["priority"], int) else None
    ended = job_words.has_ended(state)
    siblings = record["federation_siblings_active"]
    return SlurmJob(
        id=str(record["id"]),
        state=state,
        flags=flags,
        nodes=hostlist.expand(record["allocated_nodes"] or ""),
        gpus=_gpus(record["layout"]),
        restarts=record["requeue_count"] or 0,
        requeue=record["is_requeueable"],
        batch=record["is_batch_job"],
        name=record["name"] or "",
        user=record["user_name"] or str(record["user_id"] or ""),
        uid=record["user_id"] if isinstance(record["user_id"], int) else None,
        partition=record["partition"] or "",
        qos=record["qos"] or "",
        comment=record["comment"] or "",
        extra=record["extra"] or "",
        reason=reason,
        start_at=_time(record["start_time"]),
        excluded=hostlist.expand(record["excluded_nodes"] or ""),
        submit_at=_time(record["submit_time"]),
        eligible_at=_time(record["eligible_time"]),
        end_at=_time(record["end_time"]) if ended else None,
        exit_code=job_words.exit_code(record["exit_code"] or 0, record["exit_code_signal"] or 0)
        if ended
        else None,
        account=record["account"] or "",
        admin_comment=record["admin_comment"] or "",
        reservation=record["reservation"] or "",
        dependency=_dependency(record["dependencies"]),
        submit_line=record["submit_line"] or "",
        priority=priority,
        held_by=job_words.held_by(state, priority, reason, why),
        **_parts(record),
        origin=record["federation_origin"] or "",
        # Before 25.11 siblings are bits without names.
        siblings=tuple(siblings) if isinstance(siblings, list) else (),
        no_kill=job_words.no_kill(record["submit_line"]) if record["submit_line"] else None,
        failed_node=record["failed_node"] or "",
        why=why,
    )


def _parts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Which task of an array and which part of a heterogeneous job it is."""
    array, het = record["array_id"], record["heterogeneous_id"]
    return {
        "array_job": str(array) if array else "",
        # pyslurm shows no number for task 0, nor for tasks that wait together.
        "array_task": (record["array_task_id"] or 0) if array and not waits_together(record) else None,
        "het_job": str(het) if het else "",
        "het_offset": (record["heterogeneous_offset"] or 0) if het else None,
    }


def reservation(record: Mapping[str, Any]) -> Reservation:
    flags = [flag for flag in (record["flags"] or "").split(",") if flag]
    return parse_reservations.reservation(
        record["name"],
        nodes=record["nodes"] or "",
        users=record["users"] or (),
        accounts=record["accounts"] or (),
        # 25.05 and later have names of pyslurm's own.
        flags=["MAINT" if flag == "MAINTENANCE" else flag for flag in flags],
        since=_seconds(record["start_time"]),
        until=_seconds(record["end_time"]),
    )


def waits_together(record: Mapping[str, Any]) -> bool:
    """The record stands for tasks of an array that have no ids of their own yet."""
    return bool(record["array_tasks_waiting"])


def _gpus(layout: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """GPU indices by node where the layout tells them. pyslurm 24.11 shows none at all."""
    told = {name: words.gpu_indices(_gres(part["gres"])) for name, part in layout.items()}
    return {name: indices for name, indices in told.items() if indices is not None}


def _gres(parts: Mapping[str, Any] | None) -> str:
    """`{"gpu:h100": 8}` or `{"gpu:h100": {"count": 2, "indexes": "0-1"}}` as Slurm's own text."""
    texts = []
    for name, told in (parts or {}).items():
        if isinstance(told, dict):
            texts.append(f"{name}:{told['count']}(IDX:{told['indexes']})")
        else:
            texts.append(f"{name}:{told}")
    return ",".join(texts)


def _dependency(told: Mapping[str, Any] | None) -> str:
    """`{"afterok": ["12(unfulfilled)"], "singleton": False}` -> `afterok:12(unfulfilled)`.

    pyslurm drops what it does not know, and that is `singleton(unfulfilled)`, of a job that waits for it.
    """
    if told is None:
        return ""
    named = [(name, ids) for name, ids in told.items() if isinstance(ids, list) and ids]
    texts = [f"{name}:{':'.join(str(one) for one in ids)}" for name, ids in named]
    return ",".join(texts + ["singleton"] * bool(told["singleton"] or not texts))


def _other(text: str | None, name: str) -> str:
    """An address or host name, where it is not the node's own name."""
    return "" if text is None or text == name else text


def _time(told: int | str | None) -> datetime | None:
    return words.moment(_seconds(told))


def _seconds(told: int | str | None) -> int:
    """0 where there is none: pyslurm says None or "UNLIMITED"."""
    return told if isinstance(told, int) else 0
