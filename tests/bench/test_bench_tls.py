"""The bench of TLS: one broker, two ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.throughput import ROWS, Scale
from bench.tls import PLAIN, TLS, measure, table
from tests.certificates import needs_openssl

pytestmark = [needs_openssl, pytest.mark.deep]


def test_both_ports_of_one_broker_are_measured(tmp_path: Path) -> None:
    report = measure([ROWS["4/4 window 256"]], Scale(1, 0.2, 0.2), 100, str(tmp_path), {}, print)
    (line,) = report["rows"]
    assert set(line["per_s"]) == {TLS, PLAIN}
    assert line["ratio"]["median"] > 0
    assert table(report["rows"]).row_count == 1
    assert not list(tmp_path.iterdir()), "the store is gone"
