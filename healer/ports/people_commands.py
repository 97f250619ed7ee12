"""What people ask healer to do."""

import msgspec


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A person (or program) asks for a run. `id` is fixed by the API from the Idempotency-Key.

    The same `id` again is the same request: answer with the run that stands, start nothing.
    """

    id: str
    playbook: str
    cluster: str
    by: str
    reason: str
    node: str | None = None
    job: str | None = None
    incident: str | None = None
    #: What the playbook's `inputs` are, checked against them.
    inputs: dict[str, str | int | bool] = {}
    #: Jobs on the node whose restart the person agrees to.
    restart: tuple[str, ...] = ()
