"""The soak on the memory broker: an honest one passes, each kind of liar is caught by the rule meant for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bench import brokers, faults
from bench.soak import Round, Settings, Soak

# The memory broker forgets everything when it is killed: it can only be paused, and clients can drop out.
SETTINGS = Settings(per_s=400.0, round_s=2.5, every_s=0.5, only=frozenset({"pause_master"}))


def soak(kind: str, flaw: str, keep: Path) -> Soak:
    group = brokers.Group(kind, keep_alive_ms=200, options={"flaw": flaw})
    with group:
        result = Soak(group, SETTINGS, 4711, keep)
        result.run(seconds=1.0, kills=None)
    return result


def test_honest_broker(memory_kind: str, tmp_path: Path) -> None:
    result = soak(memory_kind, "", tmp_path / "keep")
    assert result.violations == []
    assert result.rounds == 1
    assert result.faults["pause_master"] >= 1
    assert result.totals["sent"] > 100
    assert list((tmp_path / "keep").iterdir()) == []


@pytest.mark.parametrize(
    ("flaw", "rule"),
    [("lose", "lost"), ("double", "doubled"), ("undo", "undone"), ("reorder", "reordered"), ("corrupt", "invented")],
)
def test_liars(memory_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str, rule: str) -> None:
    monkeypatch.setattr("bench.soak.DRAIN_IDLE_S", 3.0)
    result = soak(memory_kind, flaw, tmp_path / "keep")
    assert rule in {violation.rule for violation in result.violations}
    (kept,) = (tmp_path / "keep").iterdir()
    assert rule in (kept / "violations.txt").read_text()
    assert list(kept.glob("*.log"))
    assert (kept / "store").is_dir()


def test_broker_that_dies_is_no_success(memory_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults.Surgeon, "hurt", lambda surgeon, _allowed: surgeon.group.brokers[0].kill())
    with brokers.Group(memory_kind) as group:
        trial = Round(group, SETTINGS, 1, tmp_path)
        (violation,) = trial.run(lambda _trial: None)
    assert "is gone" in violation.text


def test_faults_are_mended(memory_kind: str) -> None:
    with brokers.Group(memory_kind, 2, keep_alive_ms=100) as group:
        surgeon = faults.Surgeon(group, 1)
        surgeon.kill_master()
        surgeon.pause_master()
        assert group.master() is None
        surgeon.mend(everything=True)
        assert group.wait_master().alive
        assert all(broker.alive for broker in group.brokers)


def test_seed_fixes_the_faults(memory_kind: str) -> None:
    def names(seed: int) -> list[str]:
        with brokers.Group(memory_kind, keep_alive_ms=10) as group:
            surgeon = faults.Surgeon(group, seed)
            drawn = []
            for _ in range(6):
                drawn.append(surgeon.hurt({"delete_lock", "replace_lock", "pause_master"}))
                surgeon.mend(everything=True)
            return drawn

    assert names(5) == names(5)


@pytest.mark.slow
def test_amq_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three real brokers, one round, every kind of fault allowed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    group = brokers.Group("amq", 3, keep_alive_ms=500)
    with group:
        result = Soak(group, Settings(round_s=8.0, every_s=0.8), 20, tmp_path / "keep")
        result.run(seconds=1.0, kills=None)
    assert result.violations == []
    assert result.totals["sent"] > 500


def test_group_leaves_nothing_behind(memory_kind: str) -> None:
    with brokers.Group(memory_kind) as group:
        pid = group.brokers[0].pid
        group.brokers[0].signal(signal.SIGSTOP)
    assert not Path(f"/proc/{pid}").exists()
    assert not group.directory.exists()
