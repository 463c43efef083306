"""Fixtures that all tests share, and which tests run beside which."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import older
import pytest
import structlog
from brokers import Brokers
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.certificates import Authority
from tests.coroutines import coroutine_of
from tests.sampling import USUAL_EXAMPLES
from tests.scopes import has_other_levels, rank_of, scope_of

# Before whatever is collected first imports them: a benchmark does.
pytest.register_assert_rewrite(*(f"tests.broker.{name}" for name in ("world", "carrying", "topic_checks", "model")))

# The host may be busy: no example fails because it takes long. Test modules read these defaults when they are imported.
# Each run draws other examples, and those of a day are thousands. `make test-thorough` draws 20 times as many.
USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("amq", USUAL, max_examples=USUAL_EXAMPLES // 2)
settings.register_profile("thorough", USUAL, max_examples=USUAL_EXAMPLES * 10)
settings.load_profile("amq")

TESTS = Path(__file__).resolve().parent
WAITING = ("bench", "cli", "examples", "interop", "migrate", "spark")
_sockets = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what runs in the background deaf to SIGINT, as does nohup, and children are born like that: those
    that tests interrupt would never end. Killed brokers leave their management sockets behind: they lie where this run
    can remove them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_sockets] = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="amq-run.")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_sockets])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Three of five files have quick tests alone. `make test-deep` imports none of them, in any of its processes."""
    is_of_another_level = config.getoption("markexpr") in ("deep and not thorough", "thorough")
    is_file = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_of_another_level and is_file and not has_other_levels(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files run beside each other, tests of a file do not: what a module's fixtures hold is made once. A file that
    waits for other processes runs beside one that computes, so that no core pauses. A name made of a set is
    another one in each process, and then the processes refuse to share the tests."""
    for item in items:
        if "set({" in item.name:
            raise pytest.UsageError(f"{item.nodeid}: give ids to parameters that hold a set")
        if any(item.iter_markers("deep")) or any(item.iter_markers("thorough")):
            assert has_other_levels(item.path), f"{item.nodeid}: `make test-deep` would not find it (tests/scopes.py)"
    files = dict.fromkeys(item.path for item in items)
    waiting = [path for path in files if path.parent == TESTS or path.relative_to(TESTS).parts[0] in WAITING]
    computing = [path for path in files if path not in waiting]
    place = {path: i / len(some) for some in (computing, waiting) for i, path in enumerate(some)}
    items.sort(key=lambda item: (rank_of(item.nodeid), place[item.path]))


class ByScope(LoadFileScheduling):
    """Hands out tests to the processes of pytest-xdist."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    coroutine = coroutine_of(pyfuncitem)
    if coroutine is None:
        return None
    asyncio.run(coroutine)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByScope:
    return ByScope(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What thousands of tests are made of stays until the end: no collection of garbage looks at it. Each of them took
    0.1 s, and a test makes many."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that runs in this process configures the logs as in its own, and how threads fail; what tests come next
    is chance."""
    before, root, failed = structlog.get_config(), logging.getLogger(), threading.excepthook
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**before)
    threading.excepthook = failed
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A private CA."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def old_amq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the package `amq` of 0.1 lies: give it to `Brokers.add` as `code`."""
    return older.unpack("0.1", tmp_path_factory.mktemp("amq-0.1"))


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Real broker processes on the store `tmp_path`/store; all are gone after the test."""
    with Brokers(tmp_path) as group:
        yield group
    for broker in group.brokers.values():
        print(f"log of {broker.name}:\n{broker.log_text()}")  # pytest shows it where the test failed
