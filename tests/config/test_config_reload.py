"""Live reload: the rule without files, and the watcher with real files and real events."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from amq.config import BY_KEY, BrokerConfig, load
from amq.config.reload import FileWatcher, Reload, Reloaded, Reloader, apply_live, diff
from amq.core.errors import ConfigError
from tests.patience import DEADLINE_S


def keys(changes: object) -> list[str]:
    return [change.option.key for change in changes]  # type: ignore[attr-defined]


def test_diff_tells_live_changes_from_those_that_wait() -> None:
    new = BrokerConfig(log_level="debug", max_connections=5, lock_keep_alive_period_s=5.0)
    difference = diff(BrokerConfig(), new)
    assert [str(change) for change in difference.live] == ["maxConnections: 10000 → 5", "logLevel: info → debug"]
    assert [str(change) for change in difference.restart] == ["lockKeepAlivePeriod: 2s → 5s"]
    assert diff(new, new).live == diff(new, new).restart == ()


def test_apply_live_takes_only_what_can_change() -> None:
    old = BrokerConfig(sources={"log_level": "a:1", "store": "a:2"}, warnings=("w",))
    new = BrokerConfig(store="/other", log_level="debug", sources={"log_level": "a:3", "store": "a:4"})
    config = apply_live(old, new)
    assert (config.log_level, config.store, config.warnings) == ("debug", "", ())
    assert config.sources == {"log_level": "a:3", "store": "a:2"}


class Source:
    """Stands for the files: hands out the next configuration or error, again and again."""

    def __init__(self) -> None:
        self.next: BrokerConfig | ConfigError = BrokerConfig()

    def load(self) -> BrokerConfig:
        if isinstance(self.next, ConfigError):
            raise self.next
        return self.next


def test_reload_rule() -> None:
    source = Source()
    reload = Reload(BrokerConfig(), source.load)

    def check(following: BrokerConfig | ConfigError) -> Reloaded:
        source.next = following
        outcome = reload.check()
        assert outcome is not None
        assert reload.check() is None  # told once
        assert outcome.config == reload.config
        return outcome

    assert reload.check() is None
    assert keys(check(BrokerConfig(log_level="debug")).live) == ["logLevel"]
    outcome = check(BrokerConfig(log_level="debug", store="/s"))
    assert (outcome.live, keys(outcome.restart)) == ((), ["store"])
    broken = check(ConfigError("bad"))
    assert (str(broken.error), broken.config.log_level, keys(broken.restart)) == ("bad", "debug", ["store"])
    assert str(check(ConfigError("worse")).error) == "worse"
    mended = check(BrokerConfig(log_level="debug", store="/s"))
    assert (mended.error, mended.live, keys(mended.restart)) == (None, (), ["store"])
    both = check(BrokerConfig(max_connections=1))
    assert (keys(both.live), both.restart) == (["maxConnections", "logLevel"], ())
    assert reload.config == BrokerConfig(max_connections=1)


def test_what_contradicts_what_waits_for_a_restart_is_refused() -> None:
    """Both together are good, and one without the other is not: storeLimit applies live, the size of files does not."""
    source = Source()
    reload = Reload(BrokerConfig(), source.load)
    source.next = BrokerConfig(store_limit_bytes=64 << 20, journal_segment_size_bytes=8 << 20, log_level="debug")
    outcome = reload.check()
    assert outcome is not None
    for text in ("storeLimit = 64MiB", "journalSegmentSize = 32MiB", "restart"):
        assert text in str(outcome.error)
    assert outcome.config == reload.config == BrokerConfig()
    assert reload.check() is None, "told once"
    source.next = BrokerConfig(log_level="debug")
    assert keys(reload.check().live) == ["logLevel"]  # type: ignore[union-attr]


def replace(path: Path, text: str) -> None:
    """As editors do: a new file takes the old one's name."""
    other = path.with_suffix(".tmp")
    other.write_text(text)
    other.rename(path)


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def from_elsewhere(path: Path, text: str) -> None:
    """As deployments do: made in a directory that nobody watches, and moved over."""
    other = path.parent / "elsewhere" / "new"
    other.parent.mkdir(exist_ok=True)
    other.write_text(text)
    other.rename(path)


def backup_first(path: Path, text: str) -> None:
    path.rename(path.with_suffix(".bak"))
    path.write_text(text)


@pytest.mark.parametrize("save", [replace, rewrite, backup_first, from_elsewhere])
def test_reloader_follows_the_file(tmp_path: Path, save: Callable[[Path, str], None]) -> None:
    path = tmp_path / "amq.toml"
    path.write_text("[log]\nlogLevel = 'info'\n")
    outcomes: queue.Queue[Reloaded] = queue.Queue()
    others = set(threading.enumerate())

    def read() -> BrokerConfig:
        return load(str(path), host_name="here")

    with Reloader(str(path), read(), read, outcomes.put) as reloader:
        save(path, "[log]\nlogLevel = 'debug'\n[store]\njournalReserve = '8MiB'\n")
        outcome = outcomes.get(timeout=DEADLINE_S)
        assert (keys(outcome.live), keys(outcome.restart)) == (["logLevel"], ["journalReserve"])
        save(path, "[log]\nlogLevel = 'loud'\n")
        error = outcomes.get(timeout=DEADLINE_S).error
        assert error is not None
        assert error.description.startswith(f"{path}:2: ")
        assert reloader.config.log_level == "debug"
        save(path, "[log]\nlogLevel = 'error'\n")
        assert outcomes.get(timeout=DEADLINE_S).config.log_level == "error"
        assert reloader.config.get(BY_KEY["journalReserve"]) == 4 << 20
    reloader.stop()
    assert outcomes.empty()  # no moment of a save was taken for a separate change
    assert set(threading.enumerate()) <= others, "its own thread has ended"


def test_check_reloads_without_events(tmp_path: Path) -> None:
    """What SIGHUP calls; also works on a reloader that was never started."""
    path = tmp_path / "amq.toml"
    outcomes: list[Reloaded] = []
    reloader = Reloader(str(path), BrokerConfig(), lambda: load(str(path), host_name=""), outcomes.append)
    reloader.check()
    path.write_text("[log]\nlogLevel = 'debug'\n")
    reloader.check()
    reloader.check()
    reloader.stop()
    assert [outcome.error is None for outcome in outcomes] == [False, True]
    assert outcomes[1].config == reloader.config
    assert reloader.config.log_level == "debug"


def test_a_half_written_file_is_not_read(tmp_path: Path) -> None:
    """Truncated and not yet closed, the file would be valid and mean defaults, `anonymous = loopback` among them."""
    path, other = tmp_path / "amq.toml", tmp_path / "other"
    path.write_text("a")
    changed: queue.Queue[tuple[str, str]] = queue.Queue()
    with FileWatcher([str(path), str(other)], lambda name: changed.put((name, Path(name).read_text()))):
        with path.open("w") as file:
            file.write("b")
            file.flush()
            other.write_text("x")  # its event comes after those of the open file
            assert changed.get(timeout=DEADLINE_S) == (str(other), "x")
            file.write("c")
        assert changed.get(timeout=DEADLINE_S) == (str(path), "bc")
        path.read_text()
        other.write_text("y")
        assert changed.get(timeout=DEADLINE_S) == (str(other), "y")  # reading the first raised nothing


def test_a_link_swapped_beside_the_file_is_seen(tmp_path: Path) -> None:
    """Kubernetes mounts a ConfigMap as amq.toml → ..data/amq.toml, ..data → a directory, and swaps ..data."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "amq.toml").write_text(name)
    (tmp_path / "..data").symlink_to("one")
    path = tmp_path / "amq.toml"
    path.symlink_to("..data/amq.toml")
    seen = threading.Event()
    with FileWatcher([str(path)], lambda name: seen.set() if Path(name).read_text() == "two" else None):
        (tmp_path / "..new").symlink_to("two")
        os.rename(tmp_path / "..new", tmp_path / "..data")
        assert seen.wait(DEADLINE_S)


@pytest.mark.parametrize("change", ["in place", "replaced", "the file's link", "the directory's link"])
def test_a_file_that_a_link_leads_to_elsewhere_is_watched(tmp_path: Path, change: str) -> None:
    """A users file of another directory: who had been removed was still let in. And once more, where it leads now."""
    for name in ("one", "two", "etc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "users").write_text("old")
    (tmp_path / "directory").symlink_to("one")
    (tmp_path / "etc" / "link").symlink_to("../directory/users")
    path = tmp_path / "amq.users"
    path.symlink_to("etc/link")
    changed: queue.Queue[str] = queue.Queue()
    with FileWatcher([str(path)], lambda name: changed.put(Path(name).read_text())):
        if change == "in place":
            path.write_text("new")
        elif change == "replaced":
            (tmp_path / "one" / "new").write_text("new")
            os.replace(tmp_path / "one" / "new", tmp_path / "one" / "users")
        else:
            link, target = ("etc/link", "../two/users") if "file" in change else ("directory", "two")
            (tmp_path / "two" / "users").write_text("new")
            (tmp_path / "new").symlink_to(target)
            os.replace(tmp_path / "new", tmp_path / link)
        assert changed.get(timeout=DEADLINE_S) == "new"
        path.write_text("newer")
        while changed.get(timeout=DEADLINE_S) != "newer":
            pass


def test_saved_again_while_the_first_save_settles(tmp_path: Path) -> None:
    """The event of the first save is pending when the second begins: the truncated file in between is not read."""
    path, other = tmp_path / "amq.toml", tmp_path / "other"
    changed: queue.Queue[tuple[str, str]] = queue.Queue()
    watcher = FileWatcher([str(path), str(other)], lambda name: changed.put((name, Path(name).read_text())), settle_s=1)
    with watcher:
        path.write_text("one")
        with path.open("w") as file:
            other.write_text("x")
            assert changed.get(timeout=DEADLINE_S) == (str(other), "x")  # due after the first save would have been
            file.write("two")
        assert changed.get(timeout=DEADLINE_S) == (str(path), "two")


def test_a_file_is_left_alone_before_it_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "amq.toml"
    changed: queue.Queue[float] = queue.Queue()
    with FileWatcher([str(path)], lambda _name: changed.put(time.monotonic()), settle_s=0.5):
        begin_s = time.monotonic()
        path.write_text("one")
        assert changed.get(timeout=DEADLINE_S) >= begin_s + 0.5
    assert changed.empty()


def test_a_file_that_is_taken_away_is_not_reported(tmp_path: Path) -> None:
    path, other = tmp_path / "amq.toml", tmp_path / "other"
    path.write_text("a")
    changed: queue.Queue[str] = queue.Queue()
    with FileWatcher([str(path), str(other)], changed.put):
        path.rename(tmp_path / "amq.bak")
        (tmp_path / "amq.bak").unlink()
        other.write_text("x")
        assert changed.get(timeout=DEADLINE_S) == str(other)


def test_a_directory_that_cannot_be_watched(tmp_path: Path) -> None:
    watcher = FileWatcher([str(tmp_path / "missing" / "amq.toml")], print)
    with pytest.raises(ConfigError, match="watched"):
        watcher.start()
    watcher.stop()
