"""The checker of transactions under kills sees each broken promise."""

from __future__ import annotations

from collections import Counter

from tests.cluster.spanning_kills import Batches, OnePhase, broken
from tests.cluster.spark_writes import Query, torn


def test_each_broken_promise_of_a_transaction_is_seen() -> None:
    application = OnePhase("", 0)
    application.committed, application.rolled_back = {1, 2}, {3}
    whole = Counter(["commit 1 0", "commit 2 0", "XA 7 0"])
    assert broken(application, [whole, whole]) == []
    unknown = whole + Counter(["commit 4 0"])
    assert broken(application, [unknown, unknown]) == [], "what it heard nothing of may be there"
    lost = Counter(["commit 1 0"])
    assert broken(application, [lost, lost]) == ["commit: committed, and not there: [2]"]
    assert broken(application, [whole, unknown]) == ["commit: carried out in part: ['commit 4 0']"]
    false = whole + Counter(["commit 3 0"])
    assert broken(application, [false, false]) == ["commit: rolled back, and there: [3]"]
    twice = whole + Counter(["commit 2 0"])
    assert "commit: carried out twice: ['commit 2 0', 'commit 2 0']" in broken(application, [twice, twice])


def test_a_batch_is_there_with_all_its_tasks() -> None:
    application = Batches("", 0)
    application.committed = {1}
    whole, part = Counter(["batch 1 0", "batch 1 1"]), Counter(["batch 1 1"])
    assert broken(application, [whole, whole]) == []
    assert broken(application, [part, part]) == ["batch: committed, and not there: [1]"]
    application.committed = set()
    assert broken(application, [part, part]) == ["batch: carried out without some rows: [1]"]
    assert broken(application, [whole, whole]) == broken(application, [Counter(), Counter()]) == []


def test_a_micro_batch_is_there_with_all_its_rows() -> None:
    whole = [f"Spark 4 {row}" for row in range(Query.copies)]
    assert torn([whole, whole, whole]) == torn([[], [], []]) == []
    assert torn([whole, whole, whole[1:]]) == torn([whole, whole, []]) == torn([whole[1:]] * 3) == [4]
