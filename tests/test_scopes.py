"""Which tests share a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scopes import LONG, ROOT, SHARES, has_other_levels, rank_of, scope_of


def test_a_file_is_one_scope_and_all_that_use_the_session_of_spark_are_one() -> None:
    assert scope_of("tests/test_group.py::test_fail_if_locked") == "tests/test_group.py"
    sharing = {scope_of(f"tests/spark/{name}.py::test[a::b]") for name in ("test_sink", "test_source", "test_format")}
    assert sharing == {"tests/spark/"}
    assert scope_of("tests/spark/test_submit.py::test_a") == "tests/spark/test_submit.py"


def test_a_file_whose_tests_share_nothing_has_several_scopes() -> None:
    for path, shares in SHARES.items():
        scopes = {scope_of(f"{path}::test_it[{number}]") for number in range(100)}
        assert len(scopes) == shares


def test_the_session_of_spark_begins_and_then_what_takes_long() -> None:
    files = ["tests/test_group.py", LONG[1], LONG[0], "tests/spark/test_sink.py"]
    assert sorted(files, key=lambda path: rank_of(f"{path}::test_a")) == files[::-1]


def test_files_that_begin_first_exist() -> None:
    assert [path for path in (*LONG, *SHARES) if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    "text", ["@pytest.mark.deep\n", "sampled(KINDS)", "thorough(2, 3)", "only(KINDS, 1)", "(spark: Any)"]
)
def test_a_file_with_deep_tests_is_known_by_its_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(text)
    (tmp_path / "test_other.py").write_text("def test_a() -> None: pass\n")
    assert has_other_levels(tmp_path / "test_it.py")
    assert not has_other_levels(tmp_path / "test_other.py")
