"""Bodies of the acting routes: strict, nothing unknown, no text that PostgreSQL cannot hold."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, Strict, StringConstraints

#: Text of people: at least one visible character, no NUL.
Text = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000, pattern=r"^[^\x00]*$")
]
Word = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$"),
]


#: Jobs on the node whose restart the person agrees to with the run; `JOB:RESTARTS` is this very life of one.
Restart = Annotated[list[Word], Field(max_length=100)]


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Nothing(Body):
    """No field is needed."""

    reason: Text | None = None


class Reason(Body):
    reason: Text


class NoteBody(Body):
    note: Text


class ReviewBody(Body):
    """What a person found out: feeds the precision of the incident's rule."""

    review: Literal["true_fault", "false_alarm", "unclear"]
    cause: Text | None = None
    reason: Text | None = None


class MergeBody(Body):
    """`into` is the incident that stays."""

    into: Word
    reason: Text


class SplitBody(Body):
    """`incidents` are those that were merged into it and become their own again; left out: all of them."""

    incidents: Annotated[list[Word], Field(min_length=1, max_length=1000)] | None = None
    reason: Text


class RunBody(Body):
    """`cluster` may be left out where there is one. `reason` is needed unless `dry_run`."""

    cluster: Word | None = None
    node: Word | None = None
    job: Word | None = None
    incident: Word | None = None
    reason: Text | None = None
    dry_run: bool = False
    inputs: Annotated[dict[Word, bool | int | Word], Field(max_length=50)] = {}
    restart: Restart = []


class ApproveBody(Reason):
    restart: Restart = []


class RetryBody(Reason):
    """`step`: go back to this step, and do it and all after it anew."""

    step: Word | None = None


class ModeBody(Body):
    mode: Literal["off", "shadow", "suggest", "approve", "auto"]
    reason: Text


class PauseBody(Body):
    """`name` is what is paused (not for the scope all); `until` ends it by itself."""

    scope: Literal["all", "cluster", "partition", "node", "rule", "playbook"] = "all"
    name: Word | None = None
    cluster: Word | None = None
    reason: Text
    until: Annotated[AwareDatetime, Strict(False)] | None = None


class BreakerBody(Body):
    cluster: Word | None = None
    reason: Text
