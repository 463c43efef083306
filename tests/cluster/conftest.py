"""Nodes for the tests of this folder that kill parts of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Nodes of two stores at known ports, which do not run yet."""
    with Nodes(tmp_path, stores=2, fixed_ports=True) as made:
        yield made
