"""The protocols that a broker's ports serve: each a name, how its first bytes look, and how its codec is made.

Invariant: nothing else in `amq/` knows which protocols there are. A new one is an entry of `PROTOCOLS`; whoever makes a
`Mastership` may pass another table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import amq
from amq.config.node_options import NodeOptions
from amq.core.errors import ProtocolError
from amq.protocols.codec import Codec
from amq.protocols.detect import SIGNATURES, Signature, detect
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.ids import Identity
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import FrameLimits


class Surroundings(NamedTuple):
    """The facts of its broker that a codec is told. `message_id_prefix` is before a message's seq in its id;
    `newest_seq` = of the messages that there are; `cluster` = the id of the cluster of a gateway, "" = a broker."""

    config: NodeOptions
    broker: str
    epoch: int
    message_id_prefix: str
    newest_seq: int = 0
    cluster: str = ""


class ServedProtocol(NamedTuple):
    """A protocol. `title` is its name for people; `make(surroundings, owner)` a codec for one new connection, whose
    temporary destinations have names that begin with `owner`, `3-17.`. `schemes` = those of the URLs at which it alone
    is served."""

    name: str
    title: str
    signatures: Sequence[Signature]
    make: Callable[[Surroundings, str], Codec]
    schemes: frozenset[str] = frozenset()


ANY: Final = "auto"  # the scheme of URLs at which all protocols are served


def served_at(table: Sequence[ServedProtocol], scheme: str) -> Sequence[ServedProtocol]:
    """Those of `table` that a port with a URL of that scheme serves; ANY = all."""
    return table if scheme == ANY else [each for each in table if not each.schemes or scheme in each.schemes]


class PortCodecs(NamedTuple):
    """Makes the codecs of a port, at which the protocols of `table` are served, at least one."""

    table: Sequence[ServedProtocol]
    surroundings: Callable[[], Surroundings]

    def codec(self, first: bytes, owner: str) -> Codec | None:
        """The codec for a connection that begins with the bytes `first`; None = more of them are needed. Raises
        ProtocolError where nothing of `table` begins so."""
        name = detect(first, [(each.name, signature) for each in self.table for signature in each.signatures])
        if name is None:
            return None
        for each in self.table:
            if each.name == name:
                return each.make(self.surroundings(), owner)
        titles = " and ".join(each.title for each in self.table)
        raise ProtocolError(f"this port speaks {titles}, the client speaks {name}", code="PROTOCOL_UNSUPPORTED")

    def answering(self, owner: str) -> Codec:
        """A codec that tells an error to a client whose protocol is not known."""
        return self.table[0].make(self.surroundings(), owner)


def _stomp(surroundings: Surroundings, owner: str) -> StompCodec:
    config = surroundings.config
    limits = FrameLimits(
        config.max_header_count,
        config.max_header_size_bytes,
        config.max_header_block_size_bytes,
        config.max_frame_size_bytes,
    )
    return StompCodec(
        limits,
        surroundings.message_id_prefix,
        f"amq/{amq.__version__}",
        config.stomp_default_persistent,
        (("amq-broker", surroundings.broker), ("amq-epoch", str(surroundings.epoch))),
        owner,
        config.stomp_strict_destinations,
        (round(config.heart_beat_send_s * 1000), round(config.heart_beat_receive_s * 1000)),
        surroundings.cluster,
    )


def _openwire(surroundings: Surroundings, owner: str) -> OpenWireCodec:
    config = surroundings.config
    identity = Identity(
        surroundings.broker,
        surroundings.message_id_prefix.removesuffix("-"),
        surroundings.epoch,
        owner.removesuffix("."),
        surroundings.newest_seq,
    )
    return OpenWireCodec(
        config.max_frame_size_bytes,
        identity,
        f"amq/{amq.__version__}",
        config.rebalance_cluster_clients,
        config.max_header_count,
    )


# The first one also answers strangers: it is the nearest thing to an answer that they can read.
PROTOCOLS: Final = (
    ServedProtocol("stomp", "STOMP", SIGNATURES["stomp"], _stomp, frozenset({"stomp"})),
    ServedProtocol("openwire", "OpenWire", SIGNATURES["openwire"], _openwire, frozenset({"openwire", "tcp"})),
)
