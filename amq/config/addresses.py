"""Addresses: where clients find the brokers of a group.

Invariant: each is a URL that a client can connect to, and a list of them is bounded, however many brokers there are
and whatever they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from amq.config.node_options import NodeOptions
from amq.config.option import ADDRESSES_MAX
from amq.config.transport_url import address

URLS_MAX = 64  # of a group
LIST_CHARS_MAX = 4096  # of them, with commas between: one header line, which every STOMP client takes


def of_broker(config: NodeOptions, urls: Sequence[str], host_name: str) -> tuple[str, ...]:
    """Where clients find the broker of `config` while it is master. `urls` = where it serves them now, () = it does
    not; `host_name` = that of its host.
    """
    return config.advertised_transports or stated(urls or config.transports, host_name)


def stated(urls: Iterable[object], host_name: str) -> tuple[str, ...]:
    """The usable ones of the addresses that a broker on host `host_name`, of any version, has stated."""
    found = [address(str(url), host_name) for url in urls]
    return tuple(filter(None, found))[:ADDRESSES_MAX]


def bounded(urls: Iterable[str]) -> tuple[str, ...]:
    """Each of `urls` once, and no more of them than one header takes."""
    kept: list[str] = []
    characters = 0
    for url in dict.fromkeys(urls):
        characters += len(url) + 1
        if len(kept) == URLS_MAX or characters > LIST_CHARS_MAX:
            break
        kept.append(url)
    return tuple(kept)
