"""Addresses: where clients find the brokers of a group.

Invariant: each is a URL that a client can connect to, and a list of them is bounded, however many brokers there are
and whatever they say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from amq.config.node_options import NodeOptions
from amq.config.option import ADDRESSES_MAX
from amq.config.schema import BrokerConfig
from amq.config.transport_url import address, host_and_port, parse_transport_url
from amq.core.errors import ConfigError

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


PORT_MAX = 65_535


def shifted(config: BrokerConfig, by: int) -> BrokerConfig:
    """`config` with each port that it names higher by `by`; 0, any free port, stays. Raises ConfigError."""
    probes = config.probe_listen
    if probes:
        host, port = host_and_port(probes)
        probes = f"{f'[{host}]' if ':' in host else host}:{_shifted(port, by)}"
    return dataclasses.replace(
        config,
        transports=tuple(_shifted_url(url, by) for url in config.transports),
        advertised_transports=tuple(_shifted_url(url, by) for url in config.advertised_transports),
        probe_listen=probes,
        link_listen=_shifted_url(config.link_listen, by) if config.link_listen else "",
    )


def ports(config: BrokerConfig) -> list[int]:
    """Those at which `config` lets a broker listen, but for 0."""
    found = [parse_transport_url(url).port for url in config.transports]
    if config.probe_listen:
        found.append(host_and_port(config.probe_listen)[1])
    if config.link_listen:
        found.append(parse_transport_url(config.link_listen).port)
    return [port for port in found if port]


def _shifted_url(text: str, by: int) -> str:
    url = parse_transport_url(text)
    return str(dataclasses.replace(url, port=_shifted(url.port, by)))


def _shifted(port: int, by: int) -> int:
    if port and port + by > PORT_MAX:
        raise ConfigError(f"port {port} + {by} is more than {PORT_MAX}: the ports of a cluster are consecutive")
    return port + by if port else 0
