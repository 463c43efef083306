"""Runs of records of the journal, as a broker delivers them, as Arrow batches. No Python object is made for a row.

The trick: bounds of all parts of all records, one after the other, are the offsets of an Arrow array over the very
bytes that came; the column of a part is every fifth of its elements. Invariant: a row is what a MESSAGE frame of the
same message would have given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from amq.client import Run
from amq.core.errors import ProtocolError
from amq.journal.format import RECORD_BYTES
from amq.journal.records.message import MESSAGE
from pyspark_amq import messages
from pyspark_amq.frames import KEY_HEADER, NULL_HEADER
from pyspark_amq.heads import MESSAGE_HEAD
from pyspark_amq.messages import Received

_Numbers = npt.NDArray[Any]
_TIMESTAMP = pa.timestamp("us", "UTC")
_PARTS = 5  # of a record: head, content type, duplicate id, properties, body
_FEW = 64  # different properties are read by json


def batches(parts: Iterable[Sequence[Received | Run]], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Arrow batches of all messages in `parts`, in their order. Raises SchemaError, ProtocolError."""
    single: list[Received] = []
    for part in parts:
        for each in part:
            if isinstance(each, Run):
                yield from messages.batches([single], wanted)
                single = []
                if len(each):
                    yield messages.batch_of(columns_of(each, wanted.names), wanted)
            else:
                single.append(each)
        yield from messages.batches([single], wanted)
        single = []


def joined(parts: Iterable[Sequence[Received | Run]]) -> Iterator[Sequence[Received | Run]]:
    """The same messages in the same order, with runs of a destination that follow each other as one, as far as they fit
    into an Arrow batch. Here and in Spark's JVM most of what a batch costs does not depend on its number of rows. Not
    for a browse: it begins anew after a failover, and its reader looks at each run for messages that came before."""
    waiting: list[Run] = []
    rows = size = 0
    for part in parts:
        found: list[Received | Run] = []
        for each in part:
            if waiting and not (isinstance(each, Run) and _fits(each, waiting[0], rows, size)):
                found.append(_one_of(waiting))
                waiting, rows, size = [], 0, 0
            if isinstance(each, Run):
                waiting.append(each)
                rows += len(each)
                size += each.records.nbytes
            else:
                found.append(each)
        if found:
            yield found
    if waiting:
        yield [_one_of(waiting)]


def _fits(run: Run, first: Run, rows: int, size: int) -> bool:
    """May `run` follow runs that begin with `first` and have this many `rows` and bytes?"""
    return (
        (run.destination, run.id_prefix) == (first.destination, first.id_prefix)
        and rows + len(run) <= messages.BATCH_ROWS
        and size + run.records.nbytes <= messages.BATCH_BYTES
    )


def _one_of(runs: Sequence[Run]) -> Run:
    first = runs[0]
    if len(runs) == 1:
        return first
    sizes = list(chain.from_iterable(run.sizes for run in runs))
    starts = accumulate(map(len, runs), initial=0)
    redelivered: dict[int, int] = {}
    for start, run in zip(starts, runs, strict=False):
        redelivered |= {start + place: times for place, times in run.redelivered.items()}
    records = memoryview(b"".join(run.records for run in runs))
    return Run(first.destination, first.id_prefix, sizes, records, redelivered)


def heads_of(run: Run) -> tuple[_Numbers, _Numbers]:
    """The heads of the records of a run, none of which is shorter than a head; where each record begins, and where the
    last one ends."""
    sizes = np.asarray(run.sizes, np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(run.records, np.uint8), MESSAGE_HEAD.itemsize)
    return np.ascontiguousarray(windows[starts[:-1]]).view(MESSAGE_HEAD).reshape(-1), starts


def columns_of(run: Run, names: Sequence[str]) -> dict[str, pa.Array]:
    """The columns of a run, at least those of `names`. Raises ProtocolError."""
    if min(run.sizes) < MESSAGE_HEAD.itemsize:
        raise ProtocolError("a record of a run is too short")
    heads, starts = heads_of(run)
    if (heads["kind"] != MESSAGE).any() or (heads["size"] + RECORD_BYTES != np.diff(starts)).any():
        raise ProtocolError("a record of a run is not that of a message")
    bounds = np.empty((len(heads), _PARTS), np.int64)
    bounds[:, 0] = starts[:-1]
    bounds[:, 1] = bounds[:, 0] + MESSAGE_HEAD.itemsize
    for place, name in enumerate(("type_bytes", "id_bytes", "property_bytes"), start=1):
        bounds[:, place + 1] = bounds[:, place] + heads[name]
    if (bounds[:, -1] > starts[1:]).any():
        raise ProtocolError("a record of a run has impossible lengths")
    offsets = np.append(bounds.reshape(-1), starts[-1]).astype(np.int32)
    parts = pa.Array.from_buffers(
        pa.binary(), _PARTS * len(heads), [None, pa.py_buffer(offsets), pa.py_buffer(run.records)]
    )

    def part(place: int) -> pa.Array:
        return parts.take(pa.array(np.arange(place, _PARTS * len(heads), _PARTS)))

    seqs = pa.array(heads["seq"].astype(np.int64))
    found = {"offset": seqs, "timestamp": pa.array(heads["timestamp"] * 1000).view(_TIMESTAMP)}
    if "value" in names:
        found["value"] = part(_PARTS - 1)
    if "destination" in names:
        found["destination"] = pa.repeat(run.destination, len(heads))
    if "messageId" in names:
        found["messageId"] = pc.binary_join_element_wise(run.id_prefix, seqs.cast(pa.string()), "")
    if "redelivered" in names:
        known = np.zeros(len(heads), np.bool_)
        known[list(run.redelivered)] = True
        found["redelivered"] = pa.array(known)
    wants_pairs = "key" in names or messages.HEADERS in names
    if not wants_pairs and "value" not in names:
        return found
    if (heads["property_bytes"] == 0).all():
        pairs = Pairs.none(len(heads))
    else:
        sections = part(_PARTS - 2).cast(pa.string())
        may_be_null = pc.any(pc.match_substring(sections, NULL_HEADER)).as_py()
        pairs = pairs_of(sections) if wants_pairs or may_be_null else Pairs.none(len(heads))
        if may_be_null and "value" in names:
            found["value"] = _with_nulls(found["value"], pairs)
        if may_be_null:
            pairs = pairs.without(NULL_HEADER)
    if wants_pairs:
        found["key"], found[messages.HEADERS] = pairs.value_of(KEY_HEADER), pairs.maps()
    return found


def _with_nulls(values: pa.Array, pairs: Pairs) -> pa.Array:
    """The same, with null where the sink wrote one."""
    is_null = pc.and_(pc.equal(pairs.value_of(NULL_HEADER), "true"), pc.equal(pc.binary_length(values), 0))
    return pc.if_else(pc.fill_null(is_null, False), pa.scalar(None, pa.binary()), values)


class Pairs:
    """The headers of many messages: `names` and `values` of all, and how many each message has."""

    def __init__(self, names: pa.Array, values: pa.Array, counts: _Numbers) -> None:
        self._names = names
        self._values = values
        self._counts = counts

    @classmethod
    def none(cls, rows: int) -> Pairs:
        """No message has any."""
        return cls(pa.array([], pa.string()), pa.array([], pa.string()), np.zeros(rows, np.int64))

    def value_of(self, name: str) -> pa.Array:
        """The value of that header of each message."""
        rows = np.repeat(np.arange(len(self._counts)), self._counts)
        found = np.flatnonzero(pc.equal(self._names, name).to_numpy(zero_copy_only=False))
        places = np.full(len(self._counts), -1, np.int64)
        places[rows[found]] = found
        return self._values.take(pa.array(places, mask=places < 0))

    def without(self, name: str) -> Pairs:
        """The same without the header `name`."""
        kept = pc.not_equal(self._names, name)
        rows = np.repeat(np.arange(len(self._counts)), self._counts)[kept.to_numpy(zero_copy_only=False)]
        counts = np.bincount(rows, minlength=len(self._counts))
        return Pairs(self._names.filter(kept), self._values.filter(kept), counts)

    def maps(self) -> pa.Array:
        """The headers of each message."""
        offsets = np.concatenate(([0], np.cumsum(self._counts))).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), self._names, self._values)

    def take(self, rows: _Numbers) -> Pairs:
        """Those of messages of which each has the headers of one of these."""
        starts, counts = np.cumsum(self._counts) - self._counts, self._counts[rows]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places = pa.array(np.repeat(starts[rows], counts) + within)
        return Pairs(self._names.take(places), self._values.take(places), counts)


def pairs_of(sections: pa.Array) -> Pairs:
    """The headers in `sections`, JSON objects of texts as the broker writes them, or nothing. Raises ProtocolError."""
    encoded = sections.dictionary_encode()
    if len(encoded.dictionary) <= _FEW:
        return _read(encoded.dictionary.to_pylist()).take(encoded.indices.to_numpy())
    if pc.any(pc.match_substring(sections, "\\")).as_py():
        return _read(sections.to_pylist())
    # Without a backslash each quotation mark is before or behind a name or a value: {"a": "1", "b": "2"}
    pieces = pc.split_pattern(sections, '"')
    starts = pieces.offsets.to_numpy()
    lengths = np.diff(starts)
    if (lengths % 4 != 1).any():
        return _read(sections.to_pylist())
    counts = lengths // 4
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(starts[:-1], counts) + 4 * within
    flat = pieces.values
    return Pairs(flat.take(pa.array(places + 1)), flat.take(pa.array(places + 3)), counts)


def _read(sections: Sequence[str]) -> Pairs:
    names: list[str] = []
    values: list[str] = []
    counts = []
    for section in sections:
        try:
            found = json.loads(section) if section else {}
        except ValueError as error:
            raise ProtocolError(f"the properties of a message are not JSON: {error}") from error
        names += found.keys()
        values += found.values()
        counts.append(len(found))
    return Pairs(pa.array(names, pa.string()), pa.array(values, pa.string()), np.array(counts, np.int64))
