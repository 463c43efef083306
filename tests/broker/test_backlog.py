"""The backlog is a sorted list of places, whatever is added, moved and taken out in whatever order."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.broker.queues import backlog as module
from amq.broker.queues.backlog import NEVER, Backlog, Place, columns_of

SEQS = st.integers(0, 200)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SEQS, st.sampled_from((0, 0, 5, 50, 500))),
        st.tuples(st.just("extend"), st.lists(SEQS, min_size=1, max_size=9, unique=True), st.sampled_from((0, 5, 50))),
        st.tuples(st.just("discard"), st.lists(SEQS, max_size=6), st.just(0)),
        st.tuples(st.just("move"), SEQS, st.integers(1, 9)),
        st.tuples(st.just("due"), st.sampled_from((0, 7, 70, 700)), st.just(0)),
    ),
    max_size=80,
)


@given(STEPS)
def test_as_a_dict_would(steps: list[tuple[str, object, int]]) -> None:
    backlog, model = Backlog(), dict[int, tuple[Place, int]]()
    with patch.object(module, "CHUNK_ROWS", 4):
        for kind, what, number in steps:
            if kind == "add" and what not in model:
                assert isinstance(what, int)
                place = Place(what, 1 << 40, what * 2, 7)
                backlog.add(*place, number)
                model[what] = (place, number)
            elif kind == "extend":
                assert isinstance(what, list)
                rows = [(seq, 1 << 40, seq * 2, 7, number * (seq % 2)) for seq in what]
                fits = not any(min(what) <= seq <= max(what) for seq in model)
                assert backlog.extend(columns_of(rows)) == fits
                model.update({row[0]: (Place(*row[:4]), row[4]) for row in rows if fits})
                assert all(0 < len(chunk.seqs) <= 4 for chunk in backlog.chunks)
            elif kind == "discard":
                assert isinstance(what, list)
                expected = [model.pop(seq) for seq in sorted(what) if seq in model]
                gone = [row for columns in backlog.discard(what) for row in zip(*columns, strict=True)]
                assert len(gone) == len(expected)
                for row, (place, expires) in zip(gone, expected, strict=True):
                    assert (row if len(row) > len(place) else (*row, 0)) == (*place, expires)
            elif kind == "move" and what in model:
                assert isinstance(what, int)
                backlog.move(what, number, 8, 9)
                model[what] = (Place(what, number, 8, 9), model[what][1])
            elif kind == "due":
                assert isinstance(what, int)
                due = [place for _, (place, expires) in sorted(model.items()) if 0 < expires <= what]
                assert backlog.due(what, 1000) == due
                assert backlog.due(what, 1) == due[:1]
            assert list(backlog) == [place for _, (place, _) in sorted(model.items())]
            assert len(backlog) == len(model)
            assert backlog.first == min(model, default=NEVER)
            for seq in range(0, 201, 20):
                assert backlog.find(seq) == model.get(seq, (None, 0))[0]
                assert (seq in backlog) == (seq in model)
                wanted = [*range(seq, 201)] if seq % 40 else sorted(each for each in model if each >= seq) or [seq]
                columns = backlog.columns_of([0, *wanted], 1)
                run = [*map(Place, *columns)] if columns is not None else []
                assert run == [model[each][0] for each in wanted[: len(run)]]
                assert bool(run) == (wanted[0] in model)


def test_head_stops_at_either_limit_and_gives_at_least_one() -> None:
    backlog = Backlog()
    for seq in range(5000):
        backlog.add(seq, 1, seq, 100)
    assert [place.seq for place in backlog.head(1, 10)] == [0]
    assert [place.seq for place in backlog.head(1000, 100)] == list(range(10))
    assert [place.seq for place in backlog.head(1 << 30, 3000)] == list(range(3000))
    assert not Backlog().head(1000, 10)


@pytest.mark.deep
@pytest.mark.parametrize("expiring", [True, False])
def test_a_row_costs_less_than_a_third_of_what_is_promised(expiring: bool) -> None:
    """docs/performance.md promises 100 bytes a message."""
    backlog = Backlog()
    seqs = list(range(50_000))
    random.Random(1).shuffle(seqs)
    for seq in seqs:
        backlog.add(seq, 1 << 33, 1, 1, 1000 if expiring else 0)
    held = sum(column.buffer_info()[1] * column.itemsize for chunk in backlog.chunks for column in chunk.columns())
    assert held <= 33 * len(backlog)
    assert len(backlog.chunks) * 1000 < 20 * len(backlog)
