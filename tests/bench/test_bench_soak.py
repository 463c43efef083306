"""The soak on the memory broker: an honest one passes, each kind of liar is caught by the rule meant for it."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import brokers, cli, faults
from bench import soak as soak_module
from bench.checker import Violation
from bench.soak import Round, Settings, Soak

# The memory broker forgets everything when it is killed: it can only be paused, and clients can drop out.
SETTINGS = Settings(per_s=400.0, round_s=2.5, every_s=0.5, only=frozenset({"pause_master"}))


def soak(kind: str, flaw: str, keep: Path) -> Soak:
    group = brokers.Group(kind, keep_alive_ms=200, options={"flaw": flaw})
    with group:
        result = Soak(group, SETTINGS, 4711, keep)
        result.run(seconds=1.0, kills=None)
    return result


@pytest.mark.deep
def test_honest_broker(memory_kind: str, tmp_path: Path) -> None:
    result = soak(memory_kind, "", tmp_path / "keep")
    assert result.violations == []
    assert result.rounds == 1
    assert result.faults["pause_master"] >= 1
    assert result.totals["sent"] > 100
    assert list((tmp_path / "keep").iterdir()) == []


@pytest.mark.deep
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


@pytest.mark.deep
def test_broker_that_dies_is_no_success(memory_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults.Surgeon, "hurt", lambda surgeon, _allowed: surgeon.group.brokers[0].kill())
    with brokers.Group(memory_kind) as group:
        trial = Round(group, SETTINGS, 1, tmp_path)
        (violation,) = trial.run(lambda _trial: None)
    assert "is gone" in violation.text


def rounds(monkeypatch: pytest.MonkeyPatch, end: BaseException | Violation) -> None:
    """From now on a round ends like this."""

    def run(_progress: Any) -> list[Violation]:
        if isinstance(end, BaseException):
            raise end
        return [end]

    made = SimpleNamespace(run=run, totals=dict, surgeon=SimpleNamespace(counts=Counter()))
    monkeypatch.setattr(soak_module, "Round", lambda *_words: made)


def test_a_soak_that_failed_can_be_repeated(memory_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same seed, beside the evidence of the first one."""
    rounds(monkeypatch, Violation("lost", "m"))
    for name in ("round-7", "round-7.2", "round-7.3"):
        with brokers.Group(memory_kind) as group:
            result = Soak(group, SETTINGS, 7, tmp_path / "keep")
            result.run(seconds=None, kills=None)
        assert result.evidence == tmp_path / "keep" / name
        assert (tmp_path / "keep" / name / "violations.txt").read_text() == "lost: m\n"


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)])
def test_a_round_that_is_not_judged_leaves_nothing(
    memory_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    rounds(monkeypatch, end)
    with brokers.Group(memory_kind) as group:
        result = Soak(group, SETTINGS, 7, tmp_path / "keep")
        with pytest.raises(type(end)):
            result.run(seconds=None, kills=None)
    assert list((tmp_path / "keep").iterdir()) == []
    assert not result.report()["passed"], "nothing was judged"


def test_a_soak_of_no_round_has_passed_nothing(
    memory_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "terminate_on_signal", lambda: None)
    monkeypatch.setattr(sys, "argv", ["soak", "--kind", memory_kind, "--keep", str(tmp_path), "--minutes", "0"])
    with pytest.raises(SystemExit) as caught:
        soak_module.main()
    assert caught.value.code == 2
    assert "PASSED" not in capsys.readouterr().out


def test_a_fault_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch, memory_kind: str) -> None:
    monkeypatch.setattr(cli, "terminate_on_signal", lambda: None)
    monkeypatch.setattr(sys, "argv", ["soak", "--kind", memory_kind, "--only", "kill_mister"])
    with pytest.raises(SystemExit) as caught:
        soak_module.main()
    assert caught.value.code == 2
    with brokers.Group(memory_kind) as group:
        assert {fault.__name__ for fault in faults.Surgeon(group, 1).faults} == set(faults.WEIGHTS)


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


@pytest.mark.deep
def test_group_leaves_nothing_behind(memory_kind: str) -> None:
    with brokers.Group(memory_kind) as group:
        pid = group.brokers[0].pid
        group.brokers[0].signal(signal.SIGSTOP)
    assert not Path(f"/proc/{pid}").exists()
    assert not group.directory.exists()
