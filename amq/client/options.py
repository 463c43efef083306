"""Every option of a broker URL: one declaration gives name, type, default, meaning and its row in docs/failover-url.md.

The names are those of ActiveMQ's failover transport. `python -m amq.client.options` prints the tables with
which docs/failover-url.md ends in the site.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any, Final

from amq.core.units import option_name

PAGE_PATH: Final = "docs/failover-url.md"


def _option(default: Any, activemq: str, meaning: str, least: int = 0, name: str = "") -> Any:
    """A field that a URL option sets: the field's name without its unit, or `name`. `activemq` is the default there
    ("–" = unknown there)."""
    return dataclasses.field(
        default=default, metadata={"name": name, "activemq": activemq, "meaning": meaning, "least": least}
    )


@dataclasses.dataclass(frozen=True)
class TransportOptions:
    """Options of one broker URI. Durations in milliseconds, as in the URL."""

    connect_timeout_ms: int = _option(
        3000,
        "30000 (soTimeout)",
        "time to look up the host and to connect, and again for the broker's answer to CONNECT",
        least=1,
    )
    heart_beat_ms: int = _option(
        2000,
        "30000 (maxInactivityDuration)",
        "heart-beats that the client offers and asks for. A broker that is silent for twice this time counts as lost; "
        "a broker whose `heartBeatSend` is longer decides instead. 0 = none: then only TCP notices a broker that "
        "vanishes",
    )
    max_frame_size: int = _option(
        100 << 20,
        "104857600 (wireFormat.maxFrameSize)",
        "largest message body in bytes that the client takes from a broker; a larger one ends the connection with "
        "`ProtocolError`. Not less than the `maxFrameSize` of the brokers",
        least=1024,
    )
    tcp_no_delay: bool = _option(True, "true", "do not hold back small packets")
    keep_alive: bool = _option(True, "false", "TCP keep-alive probes")
    virtual_host: str = _option("", "–", "`host` header of CONNECT; empty = the host of the URI")
    trust: str = _option(
        "",
        "JVM option javax.net.ssl.trustStore",
        "PEM file with the CAs of the brokers, for `stomp+ssl://`; empty = those of the operating system",
    )
    certificate: str = _option(
        "",
        "JVM option javax.net.ssl.keyStore",
        "PEM file with the certificate that this client shows to brokers that ask for one",
    )
    certificate_key: str = _option(
        "",
        "JVM option javax.net.ssl.keyStore",
        "PEM file with its key; empty = the file of the certificate holds it",
    )
    certificate_key_password_file: str = _option(
        "",
        "JVM option javax.net.ssl.keyStorePassword",
        "file whose first line is the passphrase of that key",
    )
    server_name: str = _option(
        "",
        "–",
        "the name that the broker's certificate must have; empty = the host of the URI. Set it where the URI has an "
        "address and the certificate a name",
    )
    tls_minimum_version: str = _option(
        "1.3",
        "socket.enabledProtocols",
        "the oldest version of TLS that the client speaks: 1.3, or 1.2 for older brokers and proxies",
    )


@dataclasses.dataclass(frozen=True)
class FailoverOptions:
    """Options of `failover:(…)`. Durations in milliseconds, as in the URL."""

    initial_reconnect_delay_ms: int = _option(10, "10", "wait before the first attempt after a connection broke")
    max_reconnect_delay_ms: int = _option(
        200,
        "30000",
        "longest wait between two rounds of attempts. Short, so that the new master is found in a blink "
        "also after a long outage: a round costs one refused connection a broker",
        least=1,
    )
    use_exponential_back_off: bool = _option(
        True, "true", "lengthen the wait after every round; false = always the initial one"
    )
    reconnect_delay_exponent: float = _option(2.0, "2.0", "factor by which the wait grows, at least 1", least=1)
    max_reconnect_attempts: int = _option(
        -1,
        "-1",
        "rounds through the list before the connection gives up; -1 = never, 0 = no failover once connected",
        least=-1,
    )
    startup_max_reconnect_attempts: int = _option(
        -1,
        "-1",
        "the same for the very first connection; -1 = as maxReconnectAttempts",
        least=-1,
    )
    warn_after_reconnect_attempts: int = _option(
        10, "10", "log a warning each time this number of rounds has failed; 0 = never"
    )
    randomize: bool = _option(
        True,
        "true",
        "try the brokers in random order, vary each wait between its half and its whole; false = in the order given",
    )
    timeout_ms: int = _option(
        120_000,
        "-1",
        "longest time that a call waits (send, commit, subscribe, …) unless the call names its own; then it raises. "
        "Outlasts the lease and grace periods of an NFS server (90 s). -1 = wait forever",
        least=-1,
    )
    reconnect_window_ms: int = _option(
        0,
        "–",
        "how long the broker keeps the unacknowledged messages, open transactions and temporary queues of this client "
        "when the connection breaks without a takeover, so that the client gets it back. Other consumers get "
        "the messages of a program that was killed only after this time. 0 = not at all; the `reconnectWindow` of the "
        "broker is the longest",
    )
    confirmation_window_size: int = _option(
        4 << 20,
        "-1 (in Artemis)",
        "bytes that were sent and that the broker has not confirmed, which the client keeps to send them again when it "
        "gets its connection back; where the broker lacks more, the connection is set up anew. -1, 0 = as "
        "reconnectWindow=0",
        least=-1,
    )
    priority_backup: bool = _option(
        False,
        "false",
        "while connected to another broker keep trying those of priorityURIs and move to the first that answers",
    )
    priority_uris: str = _option(
        "",
        "first URI",
        "comma-separated URIs out of the list; empty = its first URI",
        name="priorityURIs",
    )
    update_uris_supported: bool = _option(
        True,
        "true",
        "also try the brokers of the group that the URL does not name, as the master tells them; false = only those of "
        "the URL",
        name="updateURIsSupported",
    )
    update_uris_url: str = _option(
        "",
        "none",
        "path or URL (`file:`, `http:`, `https:`) of a list of further brokers, read whenever the client connects",
        name="updateURIsURL",
    )
    known_brokers_file: str = _option(
        "",
        "–",
        "file in which the client keeps the brokers that the master tells, for its next start",
    )
    redirect: bool = _option(
        False,
        "–",
        "connected to a gateway of a cluster: let producers and consumers go to the master of the store in which their "
        "destination lives, and through the gateway where that does not answer; see "
        "[client.md](client.md#straight-to-the-store)",
    )


# Options of TLS; after the closing parenthesis they mean all brokers.
TLS_OPTIONS = (
    "trust",
    "certificate",
    "certificateKey",
    "certificateKeyPasswordFile",
    "serverName",
    "tlsMinimumVersion",
)
CHOICES = {"tlsMinimumVersion": ("1.2", "1.3")}

ALIASES = {
    "initialConnectAttempts": "startupMaxReconnectAttempts",
    "reconnectAttempts": "maxReconnectAttempts",
    "retryInterval": "initialReconnectDelay",
    "maxRetryInterval": "maxReconnectDelay",
    "retryIntervalMultiplier": "reconnectDelayExponent",
    "wireFormat.maxFrameSize": "maxFrameSize",
}

# Words of other URLs that change nothing, because this client does what they ask for, or something as good, anyway.
IGNORED = {
    "backup": "slaves do not listen, so no spare connection is kept; a takeover is as fast without",
    "backupPoolSize": "slaves do not listen, so no spare connections are kept; a takeover is as fast without",
    "ha": "a failover URL always fails over",
    "maxCacheSize": "unconfirmed sends are always kept; amq.connect(…, send_window_bytes=…) bounds them",
    "rebalanceUpdateURIs": "a group has one master, there is nothing to balance",
    "reconnectSupported": "a failover URL always fails over",
    "trackMessages": "unconfirmed sends are always kept and replayed, with duplicate detection",
    "trackTransactionProducers": "a failover rolls an open transaction back, nothing of it is replayed",
}
# Of these, only "true" changes nothing.
IGNORED_IF_TRUE = frozenset({"ha", "reconnectSupported"})

REFUSED = {
    "ha": "only true; write maxReconnectAttempts=0 for no failover",
    "reconnectSupported": "only true; write maxReconnectAttempts=0 for no failover",
    "reconnectDelay": "write initialReconnectDelay",
    "backOffMultiplier": "write reconnectDelayExponent",
    "nested": "write nested.NAME=VALUE",
}

Options = type[TransportOptions] | type[FailoverOptions]


def declared(options: Options) -> dict[str, dataclasses.Field[Any]]:
    """URL name → field, in the order of the declaration."""
    return {field.metadata["name"] or option_name(field.name): field for field in dataclasses.fields(options)}


def text(value: object) -> str:
    """A default as one writes it in a URL."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def reference(options: Options) -> Iterator[str]:
    """Lines of the Markdown table for docs/failover-url.md."""
    yield "| option | default | in ActiveMQ | meaning |"
    yield "|---|---|---|---|"
    for name, field in declared(options).items():
        default = text(field.default) or "empty"
        yield f"| `{name}` | {default} | {field.metadata['activemq']} | {field.metadata['meaning']} |"


def tables() -> Iterator[str]:
    """Lines of all tables of docs/failover-url.md."""
    for options, title in (
        (FailoverOptions, "Options of `failover:`"),
        (TransportOptions, "Options of one broker's URI"),
    ):
        yield f"## {title}\n"
        yield from reference(options)
        yield ""
    yield "## Options that change nothing\n"
    yield "| accepted, with a warning | why it changes nothing |"
    yield "|---|---|"
    for name, why in IGNORED.items():
        yield f"| `{name}{'=true' if name in IGNORED_IF_TRUE else ''}` | {why} |"
    yield ""
    yield "## Refused on purpose\n"
    yield "| refused | why, and what to write |"
    yield "|---|---|"
    for name, why in REFUSED.items():
        yield f"| `{name}` | {why} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(tables()) + "\n")
