"""The benches with the JMS client, with small numbers."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import cache, jms, jvm, profile, takeover
from bench.throughput import DRAIN_NAME, Scale, measure


def needs_java() -> None:
    why = jvm.missing()
    if why is not None:
        assert not os.environ.get("CI"), why
        pytest.skip(why)


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Classes in a cache of this module's own."""
    needs_java()
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("classes")
        patch.setattr(cache, "directory", lambda: directory)
        yield jvm.class_path()


@pytest.mark.deep
@pytest.mark.usefixtures("class_path")
def test_short_run(tmp_path: Path) -> None:
    rows = [jms.ROWS["sync 32/32"], jms.ROWS["send only, async, 4 producers"]]
    scale = Scale(1, 0.1, 0.1, 400)
    report = measure(["amq"], rows, scale, 100, str(tmp_path), {}, lambda _text: None, jms.JmsBench)
    assert [line["row"] for line in report["rows"]] == [row.name for row in rows] + [DRAIN_NAME]
    assert all(line["per_s"]["amq"]["high"] > 0 for line in report["rows"])


@pytest.mark.deep
@pytest.mark.usefixtures("class_path")
def test_failover(tmp_path: Path) -> None:
    watch = functools.partial(takeover.one_jms_takeover, query="maxReconnectDelay=100")
    result = takeover.measure("amq", 100, 1, 1, 500, str(tmp_path), {}, lambda _text: None, "kill", watch)
    assert result["client"] == "jms"
    assert 0 < result["spread"]["connected_s"]["median"] <= result["spread"]["first_message_s"]["median"] < 30
    assert 0 < result["spread"]["first_receipt_s"]["median"] < 30


@pytest.mark.deep
@pytest.mark.usefixtures("class_path")
def test_calls_of_a_jms_message(tmp_path: Path) -> None:
    functions = profile.calls("non-persistent 4/4", 1000, str(tmp_path), {})
    calls = {function.name.rpartition(" ")[2]: function.calls for function in functions if "amq/" in function.name}
    assert 0.9 < calls["_send"] < 1.1, "one for each message"
    assert calls.get("message_of", 0) < 0.1, "only the first messages of a producer take the long way"
