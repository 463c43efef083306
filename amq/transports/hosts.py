"""Hosts: how the addresses of clients are counted, and how the log shows them.

Invariant: an address that its owner can change at will counts together with those that it can be changed to. The
owner of one IPv6 address has all 2^64 of its network (RFC 6177), so IPv6 addresses count by their first 64 bits. An
IPv4 address counts alone, also where a socket for both writes it as an IPv6 address (`::ffff:10.0.0.1`).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

NETWORK_BITS: Final = 64


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address; None = it is not one."""
    try:
        found = ip_address(address)
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def counted(address: str) -> str:
    """The name under which `address` counts: `10.0.0.1`, `2001:db8::/64`, `fe80::%eth0/64`. Text that is no address,
    such as "" of a socket that has none, stays as it is."""
    found = _parse(address)
    if not isinstance(found, IPv6Address):
        return address if found is None else str(found)
    network = IPv6Address(found.packed[: NETWORK_BITS // 8] + bytes(16 - NETWORK_BITS // 8))
    zone = f"%{found.scope_id}" if found.scope_id else ""
    return f"{network}{zone}/{NETWORK_BITS}"


def shown(peer: Sequence[Any]) -> str:
    """A socket's peer, as a person reads it: `10.0.0.1:5`, `[2001:db8::1]:5`."""
    found = _parse(peer[0])
    host = peer[0] if found is None else str(found)
    return f"[{host}]:{peer[1]}" if isinstance(found, IPv6Address) else f"{host}:{peer[1]}"


def is_loopback(address: str) -> bool:
    """Is a connection from `address`, an IPv4 or IPv6 address, one from this host?"""
    found = _parse(address)
    return found is not None and found.is_loopback
