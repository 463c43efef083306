"""Which tests share a process."""

from __future__ import annotations

from tests.scopes import scope_of


def test_a_file_is_one_scope_and_all_that_use_the_session_of_spark_are_one() -> None:
    assert scope_of("tests/test_group.py::test_fail_if_locked") == "tests/test_group.py"
    sharing = {scope_of(f"tests/spark/{name}.py::test[a::b]") for name in ("test_sink", "test_source", "test_format")}
    assert sharing == {"tests/spark/"}
    assert scope_of("tests/spark/test_submit.py::test_a") == "tests/spark/test_submit.py"
