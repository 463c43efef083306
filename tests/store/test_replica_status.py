"""What somebody sees of the copies of a replicated store who only looks."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from amq.cli.main import main
from amq.cli.status import _copies_text
from amq.store.open import check_alone, open_directory
from amq.store.port import StoreCopies
from amq.store.replica.roster import MEMBERS
from amq.store.status import store_status
from tests.copies import GroupOfCopies
from tests.memory_coordinator import MemoryCoordinator


def test_the_copies_that_count_and_those_that_run(tmp_path: Path) -> None:
    with GroupOfCopies(tmp_path) as group:
        a = group.member("a")
        assert a.store.copies() == StoreCopies([], 0, [])
        a.take_over()
        session = MemoryCoordinator(group.ensemble).open_session()
        session.hold(f"g/{MEMBERS}/{a.id}", b"host:1 x")
        session.hold(f"g/{MEMBERS}/other", b"host:2 y")
        seen = store_status(a.store).copies
        assert seen == StoreCopies([a.id], 1, sorted([a.id, "other"]))


def test_another_store_has_no_copies(tmp_path: Path) -> None:
    assert open_directory(str(tmp_path)).copies() is None


def test_words_for_people() -> None:
    copies = {"counting": ["a-1", "b-2", "c-3"], "needed": 2, "running": ["a-1", "c-3", "d-4"]}
    assert _copies_text(copies) == "2 of a-1, b-2, c-3 must have a write; b-2 does not run; d-4 does not count"


def test_words_for_people_where_nothing_is_confirmed() -> None:
    level, silent = ({"id": id, "counts": True, "state": state} for id, state in (("a-1", "level"), ("b-2", "silent")))
    alone = {"counting": ["a-1"], "needed": 1, "running": ["a-1"], "blocked": True, "seen": [level]}
    assert _copies_text(alone) == "nothing is confirmed: too few copies count (a-1): start another broker"
    both = {"counting": ["a-1", "b-2"], "needed": 2, "running": ["a-1"], "blocked": True, "seen": [level, silent]}
    assert _copies_text(both) == "nothing is confirmed: 2 of a-1, b-2 must answer"


def test_an_import_that_one_copy_could_not_confirm_is_refused() -> None:
    url = "replica:///nowhere?coordinator=etcd://127.0.0.1:1"
    found = CliRunner().invoke(main, ["journal", "import", "--store", url, "no-file"])
    assert found.exit_code == 3
    assert "add leastCopies=1" in found.output
    check_alone(f"{url}&leastCopies=1")
    check_alone("/nowhere")
