"""Hello: how a link begins. Both ends say their version and a nonce, then prove that they know the secret.

    gateway → home   MAGIC, version, nonce
    home → gateway   MAGIC, version, nonce
    gateway → home   HMAC-SHA256 over both nonces
    home → gateway   HMAC-SHA256 over both nonces, and frames from then on

A manager, which asks the management interface of the home, says `MANAGER` in place of MAGIC; behind its hello is HTTP.

Invariants: an end proves nothing to one of another version; the home proves itself only to a gateway that has; nobody
can use the proof of one end as that of the other. Until then a hello holds `HELLO_BYTES` and `PROOF_BYTES`, and what
one read brings. Behind it frames have checksums and no proofs: between hosts use TLS.
"""

from __future__ import annotations

import ssl
import struct
from typing import Final

from amq.core.proof import NONCE_BYTES, PROOF_BYTES, SECRET_BYTES_MIN, is_proof, proof
from amq.link.framing import LinkError

VERSION: Final = 2
MAGIC: Final = b"AMQLINK\n"
MANAGER: Final = b"AMQMNGT\n"
_HELLO: Final = struct.Struct(f"<{len(MAGIC)}sH{NONCE_BYTES}s")
HELLO_BYTES: Final = _HELLO.size
_RENEW: Final = "renew it, or look at the clock of this host"
_RENAME: Final = "give that node a certificate for this name, or name its host in linkListen as its certificate does"
_TRUST: Final = "set trust of this node to a PEM file with the CA that signed it"
_CURES: Final = {9: _RENEW, 10: _RENEW, 62: _RENAME, 64: _RENAME}  # by number of what OpenSSL finds


class LinkHello:
    """One end's part. `is_home` tells which end; `nonce` is 32 random bytes of this end. `manages`: the end that begins
    is a manager; the home knows that when it `is_done`."""

    def __init__(self, is_home: bool, secret: bytes, nonce: bytes, manages: bool = False) -> None:
        assert len(nonce) == NONCE_BYTES
        assert len(secret.strip()) >= SECRET_BYTES_MIN
        self._is_home = is_home
        self._secret = secret.strip()
        self._nonce = nonce
        self._their_nonce = b""
        self._rest = b""
        self.manages = manages
        self.is_done = False

    def begin(self) -> bytes:
        """The first bytes of the gateway, and the answer of the home to those."""
        return _HELLO.pack(self._magic, VERSION, self._nonce)

    @property
    def has_heard(self) -> bool:
        """Has the other end begun?"""
        return bool(self._their_nonce)

    @property
    def _magic(self) -> bytes:
        return MANAGER if self.manages else MAGIC

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns the answer, and once `is_done` the bytes behind the hello. Where it raises LinkError, `begin` may
        have to be sent before the end, so that the other one learns the version."""
        self._rest += data
        answer = b""
        if not self._their_nonce:
            begins, known = self._rest[: len(MAGIC)], (MAGIC, MANAGER) if self._is_home else (self._magic,)
            if not any(each.startswith(begins) for each in known):
                raise LinkError("the other end is not one of a link: look at linkListen", code="LINK_REFUSED")
            if len(self._rest) < HELLO_BYTES:
                return b"", b""
            self.manages = begins == MANAGER
            _, version, nonce = _HELLO.unpack(self._rest[:HELLO_BYTES])
            if version != VERSION:
                raise LinkError(
                    f"this end of the link speaks version {VERSION} and the other one version {version}: run the same "
                    "version of amq on all nodes of the cluster",
                    code="LINK_VERSION",
                )
            self._rest, self._their_nonce = self._rest[HELLO_BYTES:], nonce
            answer = self.begin() if self._is_home else proof(self._secret, *self._part(self._is_home))
        if len(self._rest) < PROOF_BYTES:
            return answer, b""
        if not is_proof(self._rest[:PROOF_BYTES], self._secret, *self._part(not self._is_home)):
            raise LinkError(
                "the other end of the link does not know the secret: give all nodes of the cluster the same "
                "linkSecretFile",
                code="LINK_REFUSED",
            )
        self.is_done = True
        rest, self._rest = self._rest[PROOF_BYTES:], b""
        return answer + (proof(self._secret, *self._part(True)) if self._is_home else b""), rest

    def _part(self, of_home: bool) -> tuple[bytes, bytes]:
        """Role and nonces in the proof of the home, or in that of the gateway."""
        mine, theirs = self._nonce, self._their_nonce
        nonces = theirs + mine if self._is_home else mine + theirs  # the gateway's first
        other = b"manager" if self.manages else b"gateway"
        return b"home" if of_home else other, nonces


def certificate_refused(address: str, error: ssl.SSLCertVerificationError) -> LinkError:
    """This end does not accept the certificate of the home at `address`, and says what to do."""
    found, cure = error.verify_message.rstrip("."), _CURES.get(error.verify_code, _TRUST)
    return LinkError(f"the certificate of {address} is refused: {found}; {cure}", code="LINK_REFUSED")
