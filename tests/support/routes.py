"""What an application answers to."""

from collections.abc import Iterator

from starlette.routing import BaseRoute, Route


def routes_of(routes: list[BaseRoute]) -> Iterator[BaseRoute]:
    """Every route, also those behind an included router."""
    for route in routes:
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        if inner is not None and not isinstance(route, Route):
            yield from routes_of(inner.routes)
        else:
            yield route
