"""Hello: how a connection between two members begins. Both say version, nonce, group and id, then prove the secret.

    dialler  → listener   MAGIC, version, nonce, group, id, id of the member that it wants
    listener → dialler    the same, with the dialler's id
    dialler  → listener   proof over both
    listener → dialler    proof over both, and messages from then on; or `NO_PROOF`

Invariants: an end proves nothing to one of another version or group; the listener proves itself only to a dialler that
has; a proof is of one end, one direction and these two members. Until then an end takes `HELLO_BYTES` and `PROOF_BYTES`
of the other, and no more. Behind it messages have checksums and no proofs: between hosts use TLS.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from amq.core.proof import NONCE_BYTES, PROOF_BYTES, is_proof, proof
from amq.store.replica.wire import ID, ID_BYTES_MAX, PeerWireError

VERSION: Final = 1
MAGIC: Final = b"AMQCOPY\n"
NO_PROOF: Final = bytes(PROOF_BYTES)
_HELLO: Final = struct.Struct(f"<{len(MAGIC)}sH{NONCE_BYTES}s{ID_BYTES_MAX}s{ID_BYTES_MAX}s{ID_BYTES_MAX}s")
HELLO_BYTES: Final = _HELLO.size
_SECRET: Final = "give all members of the group the same secretFile"


@dataclass(frozen=True, slots=True)
class MemberName:
    """The name of an end: group and id."""

    group: str
    id: str


class OtherMemberError(PeerWireError):
    """Another member answers at that address: the address was old."""


class PeerHello:
    """One end's part. `wanted` = the id of the member that the dialler wants; "" = this is the listener. `secret` may
    be empty where TLS proves both ends."""

    def __init__(self, me: MemberName, secret: bytes, nonce: bytes, wanted: str = "") -> None:
        assert len(nonce) == NONCE_BYTES
        self._me, self._secret, self._nonce = me, secret.strip(), nonce
        self._dials = bool(wanted)
        self._to = wanted
        self._said = b""
        self._heard = b""
        self.other: MemberName | None = None

    def begin(self) -> bytes:
        """The hello of this end; the listener calls this after `hear`, also where that raised an error: so the
        other one learns why."""
        names = (self._me.group.encode(), self._me.id.encode(), self._to.encode())
        self._said = _HELLO.pack(MAGIC, VERSION, self._nonce, *names)
        return self._said

    def hear(self, data: bytes) -> None:
        """The other end's hello, of HELLO_BYTES. Raises PeerWireError."""
        magic, version, _, *names = _HELLO.unpack(data)
        if magic != MAGIC:
            raise PeerWireError("the other end is not a member of a replicated store", code="PEER_REFUSED")
        if version != VERSION:
            raise PeerWireError(
                f"this member speaks version {VERSION} and the other one version {version}: run the same version of "
                "amq at all members of the group, and upgrade its slaves first, its master last",
                code="PEER_VERSION",
            )
        group, member, to = (each.rstrip(b"\0").decode("ascii", "replace") for each in names)
        if group != self._me.group:
            shown = repr(group) if ID.fullmatch(group) else "another one"
            raise PeerWireError(
                f"this member is of group {self._me.group!r} and the other one of {shown}: give both the same group, "
                "or another coordinator namespace",
                code="PEER_REFUSED",
            )
        if not ID.fullmatch(member):
            raise PeerWireError("the other member has an id that cannot be", code="PEER_REFUSED")
        if self._dials and member != self._to:
            raise OtherMemberError(f"member {member} answers there, not {self._to}", code="PEER_REFUSED")
        if not self._dials:
            if to != self._me.id or member == self._me.id:
                raise OtherMemberError(f"{member} looks for {to} here", code="PEER_REFUSED")
            self._to = member
        self._heard = data
        self.other = MemberName(group, member)

    @staticmethod
    def is_of_a_member(data: bytes) -> bool:
        """Whether that hello begins as one of any version does."""
        return data.startswith(MAGIC)

    def prove(self) -> bytes:
        """The proof of this end."""
        return proof(self._secret, *self._part(self._dials))

    def check(self, data: bytes) -> None:
        """The other end's proof, of PROOF_BYTES. Raises PeerWireError."""
        if data == NO_PROOF:
            raise PeerWireError(f"the other member does not accept this one's secret: {_SECRET}", code="PEER_REFUSED")
        if not is_proof(data, self._secret, *self._part(not self._dials)):
            raise PeerWireError(f"the other member does not know the secret: {_SECRET}", code="PEER_REFUSED")

    def _part(self, of_dialler: bool) -> tuple[bytes, bytes]:
        both = self._said + self._heard if self._dials else self._heard + self._said
        return b"dialler" if of_dialler else b"listener", both
