"""Consoles: the URL under which people reach the console of this broker, as that console announces it again and again.

Invariant: one URL is kept. It counts for `VALID_S` after its console last said it; until then no other console replaces
it, so that two consoles of one broker do not take turns. Others read it in `brokers/NAME.json`, where every writer of
the store could put something: `web_url` is asked on both sides.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from amq.doors.clock import Clock

ANNOUNCE_S: Final = 15.0  # between two announcements of a console
VALID_S: Final = 3 * ANNOUNCE_S
URL_CHARS_MAX: Final = 300
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def web_url(text: object) -> str:
    """`text` where it is a URL of a web server that may be linked, without a final slash; "" = it is not."""
    if not isinstance(text, str) or len(text) > URL_CHARS_MAX or not text.isascii() or not text.isprintable():
        return ""
    try:
        url = urlsplit(text)
        good = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:  # of a port or an address that is none
        return ""
    bare = "@" not in url.netloc and not url.query and not url.fragment and not set(text) & set(" \"'<>\\`{}")
    return text.rstrip("/") if good and bare else ""


def is_loopback(url: str) -> bool:
    """Does `url` lead only from its own host to its console?"""
    return urlsplit(url).hostname in LOOPBACK


class Announced:
    """The URL of the console of this broker. Written and read in different threads: it is replaced as a whole."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: tuple[str, float] = "", 0.0

    def say(self, url: str) -> None:
        """A console says that it serves at `url`."""
        now, known = self._clock.monotonic(), self.url()
        if known in ("", url):
            self._said = url, now + VALID_S

    def url(self) -> str:
        """ "" = no console has said one lately."""
        url, until = self._said
        return url if self._clock.monotonic() < until else ""
