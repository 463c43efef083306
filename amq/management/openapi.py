"""OpenAPI: the description of the resources for programs, made of their table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, Protocol

import amq

PREFIX: Final = "/api/v1"
STORES: Final = "/stores"
STORE_AMBIGUOUS: Final = "STORE_AMBIGUOUS"  # the code of the error where a path must name one of several stores

_TYPES: Final[dict[str, dict[str, Any]]] = {
    "ids": {"type": "array", "items": {"type": "string"}},
    "properties": {"type": "object"},
    "dry_run": {"type": "boolean"},
    "persistent": {"type": "boolean"},
    **{name: {"type": "integer"} for name in ("offset", "limit", "priority", "ttl_ms")},
}
_PROBLEM: Final = {
    "description": "Why not.",
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "code": {"type": "string"},
                    "detail": {"type": "string"},
                },
            }
        }
    },
}


class Described(Protocol):
    """A route: see `amq.management.resources`."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def query(self) -> tuple[str, ...]: ...
    @property
    def body(self) -> tuple[str, ...]: ...


def described(routes: Iterable[Described]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "amq",
            "version": amq.__version__,
            "description": f"Each path is also there below {PREFIX}{STORES}/NAME. Where a process has several stores, "
            f"only these answer; {PREFIX}{STORES} lists them.",
        },
        "paths": paths,
    }


def _operation(route: Described) -> dict[str, Any]:
    named = re.findall(r"\{(\w+)\}", route.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named]
    parameters += [{"name": name, "in": "query", "schema": _type(name)} for name in route.query]
    found: dict[str, Any] = {
        "summary": route.summary,
        "parameters": parameters,
        "responses": {"200": {"description": "Done.", "content": {"application/json": {}}}, "default": _PROBLEM},
    }
    if route.body:
        schema = {"type": "object", "properties": {name: _type(name) for name in route.body}}
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return found


def _type(name: str) -> dict[str, Any]:
    return _TYPES.get(name, {"type": "string"})
