"""What the callbacks of trainers share."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def quiet(method: F) -> F:
    """For a callback's methods: nothing that fails in them reaches the trainer; nothing is done where nothing
    is sent."""

    @functools.wraps(method)
    def inner(self: Any, *args: Any, **kwargs: Any) -> None:
        if not self.steps.on:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.steps._trouble(error)

    return inner  # type: ignore[return-value]
