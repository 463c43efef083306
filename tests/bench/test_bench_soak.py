"""The soak: real brokers pass, and a broker that loses messages does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import brokers
from bench.soak import Settings, Soak

# The memory broker forgets everything when it is killed: it can only be paused, and clients can drop out.
SETTINGS = Settings(per_s=400.0, round_s=2.5, every_s=0.5, only=frozenset({"pause_master"}))


def soak(kind: str, flaw: str, keep: Path) -> Soak:
    group = brokers.Group(kind, keep_alive_ms=200, options={"flaw": flaw})
    with group:
        result = Soak(group, SETTINGS, 4711, keep)
        result.run(seconds=1.0, kills=None)
    return result


@pytest.mark.deep
def test_a_broker_that_loses_is_found_out(memory_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.soak.DRAIN_IDLE_S", 3.0)
    result = soak(memory_kind, "lose", tmp_path / "keep")
    assert "lost" in {violation.rule for violation in result.violations}
    (kept,) = (tmp_path / "keep").iterdir()
    assert "lost" in (kept / "violations.txt").read_text()
    assert list(kept.glob("*.log"))
    assert (kept / "store").is_dir()


@pytest.mark.deep
def test_amq_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three real brokers, one round, every kind of fault allowed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    group = brokers.Group("amq", 3, keep_alive_ms=500)
    with group:
        result = Soak(group, Settings(round_s=8.0, every_s=0.8), 20, tmp_path / "keep")
        result.run(seconds=1.0, kills=None)
    assert result.violations == []
    assert result.totals["sent"] > 500
