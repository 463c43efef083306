"""The bytes of a configuration file, ours or another broker's. Reading ends whatever the file is, and is bounded."""

from __future__ import annotations

from amq.config import names
from amq.core.errors import ConfigError

TOML_BYTES_MAX = 64 << 10  # see loader.LINE_CHARS_MAX
XML_BYTES_MAX = 1 << 20
_UTF_16 = (b"\xfe\xff\0<", b"\xff\xfe<\0")


def read_bytes(path: str) -> bytes:
    """The content of the file. Raises ConfigError if it cannot be read, or is too large for its kind."""
    try:
        with open(path, "rb") as file:
            data = file.read(XML_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: the name holds a zero byte
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{names.shorten(path)}: the configuration file cannot be read: {why}") from error
    most = XML_BYTES_MAX if is_xml(data) else TOML_BYTES_MAX
    if len(data) > most:
        raise ConfigError(f"{path}: is larger than {most} bytes: not a configuration file")
    return data


def is_xml(data: bytes) -> bool:
    """Is a file that begins like this XML? No TOML begins so."""
    return data.startswith(_UTF_16) or data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<"
