"""The OpenAPI document. FastAPI knows paths, parameters and bodies; answers and signals are msgspec's."""

import functools
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from healer.api.documents_signals import TYPES, signal_paths
from healer.api.views import Accepted

_REF = "#/components/schemas/{name}"

#: Types that answers name, by their place in `answers`.
_types: list[Any] = [Accepted]

_PROBLEM = {
    "type": "object",
    "description": "RFC 9457; `code` is for programs, `detail` for people.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
        "guard": {"type": "string", "description": "which guard refused (code guard_refused)"},
        "limit": {"type": ["number", "null"]},
        "used": {"type": ["number", "null"]},
        "frees_at": {"type": ["string", "null"], "format": "date-time"},
    },
}


def answers(kind: Any, text: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that answers with the JSON of `kind`."""
    if kind not in _types:
        _types.append(kind)
    schema = {"x-healer-type": _types.index(kind)}
    return {status: {"description": text, "content": {"application/json": {"schema": schema}}}}


def install(app: FastAPI, prefix: str) -> None:
    """Gives `app.openapi()`."""

    @functools.cache
    def document() -> dict[str, Any]:
        made = get_openapi(
            title="healer",
            version=app.version,
            summary="The self-healing control plane for GPU clusters under Slurm",
            routes=app.routes,
        )
        schemas, components = msgspec.json.schema_components([*_types, *TYPES], ref_template=_REF)
        made["paths"] |= signal_paths(prefix, schemas[-len(TYPES) :], schemas[0])
        holder = made.setdefault("components", {})
        holder["schemas"] = {
            name: schema
            for name, schema in holder.get("schemas", {}).items()
            if name not in {"HTTPValidationError", "ValidationError"}
        } | {_plain(name): schema for name, schema in components.items()}
        holder["schemas"]["Problem"] = _PROBLEM
        holder["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        _finish(made, schemas)
        return made

    app.openapi = document  # type: ignore[method-assign]


def _finish(made: dict[str, Any], schemas: tuple[Any, ...]) -> None:
    """Puts msgspec's schemas in place, and the problem as the answer to everything else."""
    problem = {
        "description": "a problem (RFC 9457)",
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    for operations in made["paths"].values():
        for operation in operations.values():
            responses = operation.setdefault("responses", {})
            responses.pop("422", None)
            responses.setdefault("default", problem)
    _replace(made, schemas)


def _replace(part: Any, schemas: tuple[Any, ...]) -> None:
    if isinstance(part, dict):
        number = part.pop("x-healer-type", None)
        if number is not None:
            part.update(schemas[number])
        if isinstance(part.get("$ref"), str):
            head, _, name = part["$ref"].rpartition("/")
            part["$ref"] = f"{head}/{_plain(name)}"
        for value in part.values():
            _replace(value, schemas)
    elif isinstance(part, list):
        for value in part:
            _replace(value, schemas)


def _plain(name: str) -> str:
    """`Page[Incident]` is no name of a component."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name).strip("_")
