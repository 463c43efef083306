"""Direct reads from the copy of a member of a replicated store."""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.journal.format import HEADER_BYTES
from pyspark_amq.direct import STALE, StoreFiles, UnreadableError
from pyspark_amq.leases import Direct
from tests.copies import SALT, GroupOfCopies
from tests.store.test_replica_store import three, until

UUID = bytes(16).hex()


def test_a_copy_is_read_and_what_it_lacks_is_left_to_the_broker(tmp_path: Path) -> None:
    with GroupOfCopies(tmp_path) as group:
        a, b, c = three(group)
        first = a.create(1)
        end = a.append(first, HEADER_BYTES, b"a message")
        until(lambda: all(each.store.log.names() for each in (b, c)), "all have it")
        group.network.away.add(c.id)
        first.finish(end)
        second = a.create(2)
        a.append(second, HEADER_BYTES, b"another one")
        newest = Direct(UUID, (a.term.epoch.number, 2, SALT), "", 1)
        with StoreFiles(b.directory) as files:
            files.check(newest)
            assert b"a message" in files.segment(1, 1, UUID).read(HEADER_BYTES, end - HEADER_BYTES)
        with StoreFiles(c.directory) as files, pytest.raises(UnreadableError) as refused:
            files.check(newest)
        assert refused.value.reason == STALE
