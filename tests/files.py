"""What tests do to the files of a store: write an epoch, damage bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from amq.store.epoch import Epoch
from amq.store.files.epochs import FileEpochs
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner
from tests.fakes import FakeHost

OWNER = Owner.make(FakeHost(), name="a", uuid="u", transport_urls=(), lock_keep_alive_period_s=2.0)


def write_epoch(store: str, number: int, sealed: Mapping[str, int]) -> None:
    vfs = SystemVfs()
    FileEpochs(vfs, store).make()
    assert FileEpochs(vfs, store).link(Epoch(number, OWNER, dict(sealed), 0, "test"), f"attempt-{number}")


def patch(path: str | os.PathLike[str], offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: str | os.PathLike[str], offset: int) -> None:
    """Change one bit, whatever the byte is."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
    patch(path, offset, bytes([byte ^ 0x10]))
