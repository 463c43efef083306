"""Names of transactions over several stores. Spec: docs/journal-format.md, two-phase transactions.

In each store but one such a transaction is a prepared transaction, a *part*, whose xid names the store that decides. In
that store its *decision* is a prepared transaction of the same xid without messages, whose owner names the stores that
have parts. Both are recognised here and nowhere else. Clients may give no xid and no owner that looks like these.
"""

from __future__ import annotations

from collections.abc import Sequence

SPAN = "span:"


def span_xid(decider: str, id: str) -> str:
    """The xid of a transaction over several stores, of which that store decides. `id` is never given again."""
    return f"{SPAN}{decider}:{id}"


def decider_of(xid: object) -> str:
    """The store that decides, "" = `xid` is not of a transaction over several stores."""
    return xid.split(":", 2)[1] if isinstance(xid, str) and xid.startswith(SPAN) else ""


def decision_owner(stores: Sequence[str]) -> str:
    """The owner of a decision, of which `stores` have parts."""
    return SPAN + ",".join(stores)


def stores_of(owner: str) -> list[str]:
    """The stores that have parts, of a decision; none = not a decision."""
    return owner.removeprefix(SPAN).split(",") if owner.startswith(SPAN) else []


def is_of_span(text: str) -> bool:
    """Is `text` the xid of a part, or the owner of a decision?"""
    return text.startswith(SPAN)
