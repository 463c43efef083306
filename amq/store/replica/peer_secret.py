"""The secret that the members of a group share: in a file, or at the coordinator.

A reader of the coordinator can write its record, too, unless its operator divides these rights: so the secret there
admits only those who could get in without it.
"""

from __future__ import annotations

import os
from random import Random
from typing import Final

from amq.core.errors import ConfigError, StoreError
from amq.core.proof import SECRET_BYTES_MIN
from amq.store.coordinator import ABSENT, Coordinator

SECRET: Final = "secret"
_BYTES_MAX: Final = 4096
_SHARED: Final = 0o077
_NEW_BYTES: Final = 32


def secret_in(path: str) -> bytes:
    """The content of secretFile without blanks around it. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(_BYTES_MAX + 1).strip()
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}. Let all members run as its owner") from error
    if mode & _SHARED:
        raise _unusable(path, f"can be read by others, who could then act as a member: chmod 600 {path}")
    if not SECRET_BYTES_MIN <= len(secret) <= _BYTES_MAX:
        raise _unusable(path, f"has {len(secret)} bytes, and {SECRET_BYTES_MIN} to {_BYTES_MAX} are needed")
    return secret


def secret_at(coordinator: Coordinator, entropy: Random) -> bytes:
    """The secret of the group; the first member makes it. Raises StoreError, OSError."""
    for _ in range(2):
        found = coordinator.read(SECRET)
        if found is not None:
            if len(found.value) < SECRET_BYTES_MIN:
                raise StoreError(f"{coordinator.url}: {SECRET} has {len(found.value)} bytes: remove that entry")
            return found.value
        made = entropy.randbytes(_NEW_BYTES).hex().encode()
        if coordinator.compare_and_set(SECRET, made, ABSENT) is not None:
            return made
    raise StoreError(f"{coordinator.url}: {SECRET} comes and goes: another program uses this namespace")


def _unusable(path: str, why: str) -> ConfigError:
    return ConfigError(f"{path} (secretFile of the replicated store) {why}", code="STORE_URL_INVALID")
