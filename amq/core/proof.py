"""The proof of a shared secret, with which two processes of one owner begin a connection: HMAC-SHA256 over what both
have said, with a nonce of each.

Invariant: a proof names the role of its end, so that nobody can send an end its own proof back.
"""

from __future__ import annotations

import hmac
from typing import Final

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16


def proof(secret: bytes, role: bytes, said: bytes) -> bytes:
    """The proof of the end with that `role`; `said` has the nonces of both."""
    return hmac.digest(secret, role + said, "sha256")


def is_proof(given: bytes, secret: bytes, role: bytes, said: bytes) -> bool:
    """Whether the other end, which has that `role`, knows the secret."""
    return hmac.compare_digest(given, proof(secret, role, said))
