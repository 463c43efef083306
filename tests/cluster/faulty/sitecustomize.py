"""Python runs this first in each process of a node of `tests.cluster.ground`, and in a broker that a test lets hang: it
makes faults possible.

TEST_AMQ_HANGS   a directory: while it has a file NODE.STORE, no call of NODE on the files of STORE returns
TEST_AMQ_CABLES  a host: gateways find relays there, at the ports of the masters' links (see `tests.cluster.cables`)
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

LOOK_S = 0.02
BEAT_S, SILENCE_S = 2.0, 10.0  # of links: one that says nothing is given up sooner than at a user


def name_of_node() -> str:
    words = sys.orig_argv
    return words[words.index("--name") + 1] if "--name" in words else ""


def hanging(call: Callable[..., Any], hangs: str, node: str) -> Callable[..., Any]:
    """`call` on a path or a descriptor, which waits while the store of that hangs."""

    @functools.wraps(call)
    def wait_first(self: object, first: str | int, *rest: Any) -> Any:  # noqa: ARG001
        if os.path.exists(hangs):
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            store = path.partition("/stores/")[2].partition("/")[0]
            while store and os.path.exists(f"{hangs}/{node}.{store}"):
                time.sleep(LOOK_S)
        return call(first, *rest)

    return wait_first


def let_stores_hang(hangs: str) -> None:
    from amq.store.files import vfs

    made = vfs.SystemVfs()
    for name in [name for name in dir(vfs.Vfs) if not name.startswith("_")]:
        setattr(vfs.SystemVfs, name, hanging(getattr(made, name), hangs, name_of_node()))


def pull_cables(host: str) -> None:
    from amq.gateway import lookout

    find = lookout.find_master

    def find_relay(location: str) -> lookout.Master | None:
        master = find(location)
        return master and dataclasses.replace(master, address=master.address.replace("127.0.0.1", host))

    lookout.find_master = find_relay


def lose_patience_with_links() -> None:
    from amq.link import socket

    vars(socket).update(BEAT_S=BEAT_S, SILENCE_S=SILENCE_S)


if "--store" in sys.orig_argv:  # a lone broker: its store is a directory in stores/
    let_stores_hang(os.environ["TEST_AMQ_HANGS"])
if "--member" in sys.orig_argv or "--gateway" in sys.orig_argv:
    let_stores_hang(os.environ["TEST_AMQ_HANGS"])
    lose_patience_with_links()
if "--gateway" in sys.orig_argv:
    pull_cables(os.environ["TEST_AMQ_CABLES"])
