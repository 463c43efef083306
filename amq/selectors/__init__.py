"""Selectors: SQL-92 conditional expressions over a message's headers and properties, as JMS defines them.

`Selector` answers for one, `SelectorIndex` for many at a time. Nothing here knows of queues, topics or the broker.
"""

from __future__ import annotations

from amq.core.errors import SelectorError
from amq.selectors.index import SelectorIndex
from amq.selectors.selector import Selector

__all__ = ["Selector", "SelectorError", "SelectorIndex"]
