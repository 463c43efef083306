"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import Brokers


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Real broker processes on the store `tmp_path`/store; all are gone after the test."""
    with Brokers(tmp_path) as group:
        yield group
    for broker in group.brokers.values():
        print(f"log of {broker.name}:\n{broker.log_text()}")  # pytest shows it where the test failed
