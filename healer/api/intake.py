"""The writer's thread of a queue of samples: parses waiting bodies and stores what they hold.

Bodies are parsed here and not in the event loop: a large one would hold up fault events, and a new column
asks the database.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from healer.model import Catalogue, Component, Observation, Ruleset
from healer.ports.measurements import ColumnBook
from healer.signals.hardware_names import Shown, unknown_shape
from healer.signals.translate import Translator
from healer.signals.wire import BadBody
from healer.text import Said

R = TypeVar("R")


class Refused(Exception):
    """The body names components that its token is not bound to; nothing of it is stored."""

    def __init__(self, why: Said, spoken: Collection[Component] = ()) -> None:
        super().__init__(why)
        self.spoken = spoken


@dataclass(slots=True, eq=False)
class Body(Generic[R]):
    """One request. `read` raises BadBody or Refused; it is called once, also when the database is away."""

    size: int
    read: Callable[[], R]
    outcome: R | BadBody | Refused | None = None


class Intake(Generic[R]):
    """`put` stores what the bodies of one batch hold; raises Unavailable, then the same bodies come again."""

    def __init__(self, put: Callable[[list[R]], None]) -> None:
        self._put = put

    def store(self, bodies: Sequence[Body[R]]) -> list[R | BadBody | Refused]:
        outcomes = [_outcome(body) for body in bodies]
        good = [outcome for outcome in outcomes if not isinstance(outcome, BadBody | Refused)]
        if good:
            self._put(good)
        return outcomes


def _outcome(body: Body[R]) -> R | BadBody | Refused:
    if body.outcome is None:
        try:
            body.outcome = body.read()
        except (BadBody, Refused) as error:
            # The frames of both tracebacks hold this body: a cycle, until a garbage collection.
            error.__context__ = error.__cause__ = None
            body.outcome = error.with_traceback(None)
    return body.outcome


class Translators:
    """The translators of the catalogue in force, one per cluster: each learns the series of its own nodes.
    For one thread, but for `hear` and `separate`."""

    def __init__(self, rules: Callable[[], Ruleset], book: ColumnBook, shown: Shown = unknown_shape) -> None:
        self._rules, self._book, self._shown = rules, book, shown
        self._catalogue: Catalogue | None = None
        self._made: dict[str, Translator] = {}
        #: By cluster and node, the GPUs that its latest heartbeat lists and that no translator learned yet.
        self._listed: defaultdict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(dict)

    def hear(self, beats: Iterable[Observation]) -> None:
        """Keeps which GPUs heartbeats list until the next `current` of their cluster; for any thread."""
        for beat in beats:
            if gpus := beat.data.get("gpus"):
                self._listed[beat.component.cluster][beat.component.node or ""] = gpus

    def separate(self, cluster: str) -> Translator:
        """A new one that shares nothing with other requests; for any thread."""
        return Translator(self._rules().catalogue, self._book, cluster, self._shown)

    def current(self, cluster: str) -> Translator:
        catalogue = self._rules().catalogue
        if catalogue is not self._catalogue:
            self._made, self._catalogue = {}, catalogue
        if cluster not in self._made:
            self._made[cluster] = Translator(catalogue, self._book, cluster, self._shown)
        listed = self._listed[cluster]
        while listed:  # each taken whole: `hear` may add more meanwhile
            self._made[cluster].learn_gpus(*listed.popitem())
        return self._made[cluster]
