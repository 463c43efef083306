"""Makes small bodies count as large, so that tests and simulations walk the path of messages of 100 MiB."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

NAME = "LARGE_BODY_BYTES"


@contextmanager
def large_from(size: int) -> Iterator[None]:
    """Bodies of more than `size` bytes are large in here."""
    modules = [module for name, module in sys.modules.items() if name.startswith("amq.") and hasattr(module, NAME)]
    assert modules, "the constant has another name now"
    patches = [patch.object(module, NAME, size) for module in modules]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
