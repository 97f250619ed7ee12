"""Slurm's JSON of releases that no machine of ours runs, written from the tables d.1 to d.3 of the facts.

Nothing here was captured: what 22.05 and 24.11 print lies in tests/unit/adapters/slurm/captured. One
description of a node or a job comes out in each release's own shape, so that all of them must read the same.
"""

import json
from collections.abc import Sequence
from typing import Any

#: Release -> the data_parser that it prints by default.
RELEASES = {
    "23.02": "v0.0.39",
    "23.11": "v0.0.40",
    "25.05": "v0.0.43",
    "25.11": "v0.0.44",
    "26.05": "v0.0.45",
}
#: Flags of a node that JSON names from this data_parser on; before it they are left out.
_NAMED_FROM = {"BLOCKED": "v0.0.44", "EXTERNAL": "v0.0.44", "POWER_DOWN_ASAP": "v0.0.45"}


class Shape:
    """Builds what one release prints. Times are seconds since 1970."""

    def __init__(self, release: str) -> None:
        self.release, self.parser = release, RELEASES[release]

    def number(self, value: int | None, *, infinite: bool = False) -> dict[str, Any]:
        return {"set": value is not None, "infinite": infinite, "number": value or 0}

    def time(self, value: int | None) -> Any:
        """Plain in 23.02, an object since."""
        return value or 0 if self.parser == "v0.0.39" else self.number(value or 0)

    def node(
        self,
        name: str,
        *state: str,
        reason: str = "",
        user: str = "root",
        at: int = 0,
        gres: str = "gpu:h100:8(S:0-1)",
        next_state: Sequence[str] = ("INVALID",),
        boot: int = 1795164464,
        comment: str = "",
        extra: str = "",
        partitions: Sequence[str] = ("train",),
    ) -> dict[str, Any]:
        """Before 26.05 a node without a reason names a user all the same."""
        unset = not reason and self.parser == "v0.0.45"
        shown = [word for word in state if _NAMED_FROM.get(word, "") <= self.parser]
        fields: dict[str, Any] = {
            "name": name, "hostname": name, "address": name, "state": shown, "reason": reason,
            "reason_changed_at": self.time(at), "reason_set_by_user": "" if unset else user,
            "boot_time": self.time(boot), "slurmd_start_time": self.time(boot), "gres": gres,
            "gres_used": "gpu:h100:0(IDX:N/A)", "partitions": list(partitions), "features": ["h100"],
            "active_features": ["h100"], "next_state_after_reboot": list(next_state), "comment": comment,
            "extra": extra, "cpu_load": 150, "resume_after": self.number(None),
        }  # fmt: skip
        if self.parser >= "v0.0.40":
            fields |= {"instance_id": "", "instance_type": ""}
        if self.parser >= "v0.0.43":
            fields |= {"topology": "topo-switch", "cert_flags": []}
        if self.parser == "v0.0.39":
            fields |= {"external_sensors": {}, "power": {}, "cpu_load": self.number(150)}
        return fields

    def job(
        self,
        job: int,
        *state: str,
        nodes: str = "",
        gres: Sequence[str] = (),
        array: tuple[int, int | None] | None = None,
        het: tuple[int, int] | None = None,
        priority: int = 1,
        exit_code: int = 0,
        signal: int = 0,
        submit: int = 1795165000,
        eligible: int | None = None,
        start: int = 0,
        end: int = 0,
        **more: Any,
    ) -> dict[str, Any]:
        """`array` is (job, task), task None for those that wait together; `het` is (leader, offset)."""
        exited = self._exit(exit_code, signal)
        fields: dict[str, Any] = {
            "job_id": job, "job_state": state[0] if self.parser == "v0.0.39" else list(state),
            "name": "train", "user_name": "ann", "partition": "train", "qos": "normal", "account": "research",
            "nodes": nodes, "gres_detail": list(gres), "restart_cnt": 0, "requeue": True, "batch_flag": True,
            "array_job_id": self.number(array[0] if array else 0),
            "array_task_id": self.number(array[1] if array else None),
            "het_job_id": self.number(het[0] if het else 0),
            "het_job_offset": self.number(het[1] if het else 0),
            "priority": self.number(priority), "hold": priority == 0, "exit_code": exited,
            "derived_exit_code": exited, "submit_time": self.time(submit),
            "eligible_time": self.time(submit if eligible is None else eligible),
            "start_time": self.time(start), "end_time": self.time(end), "state_reason": "None",
            "state_description": "", "dependency": "", "excluded_nodes": "", "resv_name": "", "comment": "",
            "admin_comment": "", "system_comment": "", "failed_node": "", "federation_origin": "",
            "federation_siblings_active": "", "federation_siblings_viable": "", "flags": [],
            "tres_alloc_str": "cpu=1,node=1",
        }  # fmt: skip
        if self.parser >= "v0.0.44":
            fields["submit_line"] = "sbatch job.sh"
        return fields | more

    def _exit(self, code: int, signal: int) -> dict[str, Any]:
        word = "SIGNALED" if signal else "ERROR" if code else "SUCCESS"
        if self.parser == "v0.0.39":
            return {"status": word, "return_code": code, "signal": {"signal_id": signal, "name": ""}}
        signal_number = self.number(signal) if signal else self.number(None)
        returned = self.number(None) if signal else self.number(code)
        return {"status": [word], "return_code": returned, "signal": {"id": signal_number, "name": ""}}

    def answer(
        self,
        *,
        errors: Sequence[dict[str, Any]] = (),
        warnings: Sequence[dict[str, Any]] = (),
        **lists: Sequence[dict[str, Any]],
    ) -> bytes:
        """A whole body: `nodes=[…]`, `jobs=[…]` or what else the route answers with."""
        numbers = self.release.split(".")
        version = {"major": numbers[0], "minor": numbers[1], "micro": "0"}
        body: dict[str, Any] = {
            "meta": {
                "plugin": {"type": "openapi/slurmctld", "data_parser": f"data_parser/{self.parser}"},
                "slurm": {"version": version, "release": f"{self.release}.0", "cluster": "pod1"},
            },
            "errors": list(errors),
            "warnings": list(warnings),
        }
        if lists:
            body["last_update"] = self.time(1795165655)
        return json.dumps(body | {name: list(items) for name, items in lists.items()}).encode()
