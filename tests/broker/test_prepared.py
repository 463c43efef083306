"""PreparedTransactions: what the state says of two-phase transactions, and where it stands."""

from __future__ import annotations

from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.journal.format import segment_name
from amq.journal.live import Segment
from amq.journal.records import Marker, Prepared, Resolved, Trimmed


def test_the_word_of_an_end_outlives_what_it_ends() -> None:
    """Its segment refers to that of the prepare; and a prepare whose end is on its way is not written behind that."""
    first, second, third = (Segment(segment_name(1, number), 1, number, 0) for number in (1, 2, 3))
    whole = State(BrokerConfig(store="/nowhere"))
    state, outcomes = whole.prepared, whole.outcomes
    for xid in ("x", "y"):
        whole.apply(Prepared(xid, 1, 0, 0), first)
    whole.apply(Marker("job", 7), first)
    (group,) = state.standing_in({first.code}, {"y"})
    assert [type(record) for record in group.records] == [Prepared, Marker]
    assert state.standing_in({second.code}, set()) == []
    whole.apply(Prepared("x", 1, 0, 0), second)
    assert (second.refers, state["x"][1]) == ({first.code}, second)
    whole.apply(Resolved("x", True, 9), third)
    whole.apply(Marker("job", 6), third)
    assert (third.refers, list(state), list(outcomes)) == ({second.code}, ["y"], ["xid committed: x"])
    assert state.markers == {"job": (Marker("job", 7), first)}
    state.settle(Trimmed(1, 1))
    assert list(state) == []
    assert second.id_bytes == 0
