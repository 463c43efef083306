"""Names of destinations and values of options, as the readers of streams and of batches look at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amq.core.destination import REST_TEXT, WORD_TEXT


def given(option: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The numbers in an option of offsets, if it has any."""
    return option if isinstance(option, Mapping) else {}


def is_pattern(name: str) -> bool:
    """Is the name a pattern of many destinations?"""
    return any(word in (WORD_TEXT, REST_TEXT) for word in name.rpartition("/")[2].split("."))


def is_topic(name: str) -> bool:
    """Is the destination of that name a topic?"""
    return name.startswith(("/topic/", "topic://"))
