"""`amq doctor` as a user types it, and what `amq start` makes of its quick part."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amq_process import ROOT, amq, amq_json, command, one_line
from brokers import Brokers
from click.testing import CliRunner
from structlog.testing import capture_logs

from amq.cli import doctor, exits, main, store_check
from amq.config.schema import BrokerConfig
from amq.core.errors import StoreError
from amq.doctor.finding import Examination, Finding, Level


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[int]:
    """The port of `amq doctor --as-peer`."""
    process = subprocess.Popen(
        command("doctor", tmp_path, "--as-peer", "--port", "0"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        with process.stdout as stream:
            found = re.search(r"port (\d+)", stream.readline())
            assert found
            yield int(found[1])
    finally:
        process.kill()
        process.wait()


def test_json(tmp_path: Path) -> None:
    report = amq_json("doctor", tmp_path)
    assert report["verdict"] in ("fit", "fit with warnings")
    assert report["directory"] == str(tmp_path)
    assert report["mount"]["type"]
    assert {"level", "topic", "found", "why", "cure"} == set(report["findings"][0])
    assert report["measured"]["sync"]["median_s"] > 0
    assert report["recommended"]["lockKeepAlivePeriod"]
    assert list(tmp_path.iterdir()) == []


def test_for_people(tmp_path: Path) -> None:
    done = amq("doctor", tmp_path)
    assert done.returncode == 0
    assert "lock, two processes" in done.stdout
    assert "recommended client: failover:(" in done.stdout
    assert re.search(rf"^{tmp_path}: fit", done.stdout, re.MULTILINE)


def test_quick(tmp_path: Path) -> None:
    report = amq_json("doctor", tmp_path, "--quick")
    assert report["directory"] == str(tmp_path)
    assert "measured" in report
    assert "sync" not in report["measured"]


@pytest.mark.parametrize("words", [[], ["--quick"], ["--as-peer"]])
def test_a_directory_that_does_not_exist_is_not_judged_by_its_parent(tmp_path: Path, words: list[str]) -> None:
    done = amq("doctor", tmp_path / "store", *words)
    assert done.returncode == exits.STORE
    assert f"{tmp_path}/store does not exist" in one_line(done)
    assert f"would make it in {tmp_path}" in one_line(done)
    assert not (tmp_path / "store").exists()


def test_the_store_of_the_environment(tmp_path: Path) -> None:
    done = amq("doctor", "--quick", "--json", env={"AMQ_STORE": str(tmp_path)})
    assert json.loads(done.stdout)["directory"] == str(tmp_path)


def test_with_a_peer(tmp_path: Path, peer: int) -> None:
    for _ in range(2):  # a peer serves many
        report = amq_json("doctor", tmp_path, "--peer", f"127.0.0.1:{peer}")
        found = {finding["topic"]: finding for finding in report["findings"]}
        assert found["lock, 127.0.0.1"]["level"] == "ok"
        assert "this very host" in found["peer 127.0.0.1"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_is_not_there(tmp_path: Path) -> None:
    done = amq("doctor", tmp_path, "--peer", "127.0.0.1:1", "--json")
    assert done.returncode == exits.TRANSPORT
    assert "--as-peer" in done.stderr
    assert "127.0.0.1" in json.loads(done.stdout)["unreachable"]


def test_a_port_that_is_taken(tmp_path: Path, peer: int) -> None:
    done = amq("doctor", tmp_path, "--as-peer", "--port", peer)
    assert (done.returncode, "[TRANSPORT_UNAVAILABLE]" in one_line(done)) == (exits.TRANSPORT, True)
    assert str(peer) in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["/nonexistent/deep/store"], exits.STORE, "does not exist"),
        (["/tmp", "--quick", "--as-peer"], exits.USAGE, "one of"),
        (["/tmp", "--as-peer", "--json"], exits.USAGE, "--json"),
        (["/tmp", "--peer", "a:b"], exits.USAGE, "HOST:PORT"),
        (["/tmp", "--peer", "::1"], exits.USAGE, "brackets"),
        (["/nonexistent/deep/store", "--as-peer", "--port", "0"], exits.STORE, "does not exist"),
    ],
)
def test_refusals(words: list[str], code: int, said: str) -> None:
    done = amq("doctor", *words)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("b", ("b", 61612)),
        ("b:7", ("b", 7)),
        ("10.0.0.1:99", ("10.0.0.1", 99)),
        ("[::1]", ("::1", 61612)),
        ("[::1]:7", ("::1", 7)),
    ],
)
def test_addresses(peer: str, address: tuple[str, int]) -> None:
    assert doctor._address(peer, doctor.PORT) == address


# -- amq start ---------------------------------------------------------------------------------------------------------

NOLOCK = Finding(Level.UNFIT, "local_lock=none", "nolock", "several masters at once", "mount with local_lock=none")
HARD = Finding(Level.WARNING, "soft", "hard", "calls hang", "mount with soft")
ALONE = Finding(Level.WARNING, "shared between hosts", "no", "one host")


def found(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    def examine_quickly(path: str, locker: str | None) -> Examination:
        assert not locker
        return Examination(path, path, findings=list(findings))

    monkeypatch.setattr(store_check, "examine_quickly", examine_quickly)


def checked(refused: list[Any], **options: Any) -> list[Any]:
    """What is logged; whether it is refused is added to `refused`."""
    with capture_logs() as lines:
        refused.append(store_check.refusal(BrokerConfig(store="/s", **options)))
    return [(line["log_level"], line["event"]) for line in lines]


def test_start_refuses_an_unsafe_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found(monkeypatch, NOLOCK)
    result = CliRunner().invoke(main.main, ["start", "--store", str(tmp_path / "s")])
    assert result.exit_code == exits.STORE
    stopped = json.loads(result.stderr.strip().split("\n")[-1])
    assert (stopped["event"], stopped["code"], stopped["exit_code"]) == ("stopped", "STORE_UNSAFE", exits.STORE)
    assert "several masters at once; mount with local_lock=none" in stopped["reason"]
    assert not (tmp_path / "s").exists()


def test_the_override_warns_at_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, NOLOCK, HARD)
    for _ in range(2):
        refused: list[Any] = []
        lines = checked(refused, allow_unsafe_store=True)
        assert ("warning", "starting on an unsafe store because allowUnsafeStore is set") in lines
        checked(refused)
        assert refused[0] is None
        assert isinstance(refused[1], StoreError)


def test_the_override_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ALONE)
    assert checked([], allow_unsafe_store=True) == [("warning", "allowUnsafeStore is set but not needed: remove it")]


def test_warnings_are_logged_but_not_that_a_disk_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ALONE, HARD)
    refused: list[Any] = []
    assert checked(refused) == [("warning", "the store could be safer or quicker")]
    found(monkeypatch, ALONE)
    assert checked(refused) == []
    assert refused == [None, None]


def test_what_cannot_be_examined_is_left_to_the_broker() -> None:
    with capture_logs() as lines:
        assert store_check.refusal(BrokerConfig(store="/nonexistent/deep/store")) is None
    assert [line["event"] for line in lines] == ["the store cannot be examined"]


@pytest.mark.deep
def test_the_flag(brokers: Brokers) -> None:
    """From the command line to the log of a real broker."""
    broker = brokers.add("a", allowUnsafeStore="true").start()
    broker.wait_event("allowUnsafeStore is set but not needed")
    broker.wait_serving()
    made = ["brokers", "claim", "epochs", "journal", "lock", "orders"]
    assert sorted(path.name for path in broker.store.iterdir()) == made
    assert not [path for path in brokers.directory.iterdir() if path.name.startswith("amq-doctor")]


@pytest.mark.deep
def test_a_master_is_examined_while_it_works(brokers: Brokers) -> None:
    master = brokers.master("a")
    assert amq_json("doctor", master.store)["verdict"].startswith("fit")
    assert not master.said("mastership lost")
    assert not [path for path in master.store.iterdir() if path.name.startswith("amq-doctor")]
