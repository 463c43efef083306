"""Members: the brokers that one connection may try, those that its URL names and those that it has learned of. Pure.

Three may tell of brokers: the broker to which the client is connected, the list at `updateURIsURL`, and the file in
which an earlier client kept what a broker had told. Invariants: the members of the URL are always there, first and in
their order; what was learned is bounded, and each list takes the place of the one before it; a learned member brings
an address and no more trust than the URL gives: no scheme that the URL does not use, no login but the one that the URL
gives all its members, and no loopback address from a broker that was not reached at one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator

from amq.client.errors import UriError
from amq.client.uri import BrokerUri, BrokerUrl, member

LEARNED_MAX = 64
LIST_CHARACTERS_MAX = 65_536  # of a file; more is not a list of brokers
REFUSED_SHOWN_MAX = 5
_HEAD = "# Brokers of the group, as one of them has told. Written by the client of amq, and read at its next start.\n"


class Members:
    """`uris` = all that may be tried. `refused` = why parts of the latest list are not used."""

    def __init__(self, url: BrokerUrl) -> None:
        self.url = url
        self.uris = url.uris
        self.refused: tuple[str, ...] = ()
        self._schemes = frozenset(uri.scheme for uri in url.uris)
        self._told: tuple[BrokerUri, ...] = ()
        self._listed: tuple[BrokerUri, ...] = ()
        self._is_told = False  # by a broker, so what a file says is older

    def told(self, text: str, teller: BrokerUri) -> bool:
        """The broker at `teller` names all of its group. True where `uris` are others now."""
        self._told = self._read(text, bare=True, loopback=is_loopback(teller.host))
        self._is_told = True
        return self._change()

    def remembered(self, text: str) -> bool:
        """A file says what a broker had told an earlier client. True where `uris` are others now."""
        if self._is_told:
            return False
        self._told = self._read(text, bare=True, loopback=True)
        return self._change()

    def listed(self, text: str) -> bool:
        """The list at `updateURIsURL`, whose URIs may have options. True where `uris` are others now."""
        self._listed = self._read(text, bare=False, loopback=True)
        return self._change()

    def usable(self, urls: Iterable[str], teller: BrokerUri) -> tuple[BrokerUri, ...]:
        """Those of `urls` that the URL would try if the broker at `teller` told of them. They become no members."""
        return self._read(",".join(urls), bare=True, loopback=is_loopback(teller.host))

    def text(self) -> str:
        """The content of the file for `remembered`: what a broker has told."""
        return _HEAD + "".join(f"{uri}\n" for uri in self._told)

    def _change(self) -> bool:
        uris = {uri.address: uri for uri in self.url.uris}
        for uri in (*self._told, *self._listed):
            if len(uris) < len(self.url.uris) + LEARNED_MAX:
                uris.setdefault(uri.address, uri)
        before, self.uris = self.uris, tuple(uris.values())
        return self.uris != before

    def _read(self, text: str, bare: bool, loopback: bool) -> tuple[BrokerUri, ...]:
        """`bare`: addresses only; `loopback`: also those that only this host can reach."""
        found: dict[tuple[str, int], BrokerUri] = {}
        refused: list[str] = []
        if len(text) > LIST_CHARACTERS_MAX:
            refused.append(f"the list has {len(text)} characters, more than {LIST_CHARACTERS_MAX}")
            text = ""
        for name in _names(text):
            if len(found) == LEARNED_MAX:
                refused.append(f"there are more than {LEARNED_MAX}")
                break
            try:
                uri = member(name, self.url, bare)
            except UriError as error:
                refused.append(error.description)
                continue
            if uri.scheme not in self._schemes:
                refused.append(f"{uri}: the broker URL has no {uri.scheme}://")
            elif not loopback and is_loopback(uri.host):
                refused.append(f"{uri}: an address of another host")
            else:
                found.setdefault(uri.address, uri)
        self.refused = tuple(refused[:REFUSED_SHOWN_MAX])
        return tuple(found.values())


def shown(uris: Iterable[BrokerUri]) -> str:
    """The addresses as the log shows them."""
    return ", ".join(str(uri) for uri in uris)


def is_loopback(host: str) -> bool:
    """True where `host`, as somebody wrote it, means the host on which it is used."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool(address.is_loopback or address.is_unspecified or (mapped is not None and mapped.is_loopback))


def _names(text: str) -> Iterator[str]:
    """URIs, with commas or white space between; a line that begins with # is a remark."""
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            yield from filter(None, re.split(r"[,\s]+", line))
