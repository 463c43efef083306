"""Files that say who may do what: read whole, up to a bound."""

from __future__ import annotations

import os

from amq.core.errors import ConfigError


def why_not(error: OSError | ValueError) -> str:
    """Why a file could not be opened."""
    return error.strerror or str(error) if isinstance(error, OSError) else "its name holds a zero byte"


def read(path: str, what: str, cure: str, code: str, bytes_max: int) -> tuple[bytes, int]:
    """Content and mode of a file; of a content that is longer than `bytes_max` one byte more than that. Raises
    ConfigError with that code: "cannot read `what`: …; `cure`"."""
    try:
        with open(path, "rb") as file:
            return file.read(bytes_max + 1), os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {what}: {why_not(error)}; {cure}", code=code) from error
