"""A Subscribe by the names of its fields alone, wherever these are in it."""

from __future__ import annotations

from typing import Any

from amq.core.destination import Source
from amq.protocols.commands import Browse, Filter, Flow, Mode, Subscribe


def subscribe(
    id: str,
    sources: Source | tuple[Source, ...],
    receipt: object = None,
    *,
    subscription_name: str = "",
    browser: bool = False,
    **fields: Any,
) -> Subscribe:
    def part(kind: Any) -> Any:
        return kind(**{name: fields.pop(name) for name in kind._fields if name in fields})

    mode, flow, wanted, browse = part(Mode), part(Flow), part(Filter), part(Browse)
    assert not fields, f"there is no such field: {', '.join(fields)}"
    assert browser or browse == Browse(), "these are fields of a browse"
    return Subscribe(
        id,
        sources,
        mode,
        flow,
        wanted,
        receipt,
        subscription_name=subscription_name,
        browse=browse if browser else None,
    )
