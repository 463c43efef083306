"""The secret that gateways must know: read from its file when a mastership begins."""

from __future__ import annotations

from typing import Final

from amq.core.errors import ConfigError, TransportError
from amq.core.proof import SECRET_BYTES_MIN
from amq.security import files

_BYTES_MAX: Final = 4096
_SHARED: Final = 0o077


def link_secret(path: str) -> bytes:
    """The content of linkSecretFile without blanks around it. Raises TransportError."""
    cure = "let all nodes of the cluster run as one user, and give them the same file"
    try:
        content, mode = files.read(path, f"linkSecretFile {path}", cure, "LINK_SECRET_UNUSABLE", _BYTES_MAX)
    except ConfigError as error:
        raise TransportError(error.description, code=error.code) from error
    secret = content.strip()
    if mode & _SHARED:
        raise TransportError(
            f"{path} (linkSecretFile) can be read by others, who could then act as a gateway: chmod 600 {path}",
            code="LINK_SECRET_UNUSABLE",
        )
    if not SECRET_BYTES_MIN <= len(secret) <= _BYTES_MAX:
        raise TransportError(
            f"{path} (linkSecretFile) has {len(secret)} bytes, and {SECRET_BYTES_MIN} to {_BYTES_MAX} are needed",
            code="LINK_SECRET_UNUSABLE",
        )
    return secret
