"""Two bridges in the lab's own network namespace: data (guests and file server only) and control (guests and the lab).

Invariant: `cut` concerns the data network alone, so clients, agents and logs are reached while a host is cut off from
its store; `silence` concerns the control network alone. Everything here ends with the namespace.
"""

from __future__ import annotations

import subprocess

DATA, CONTROL = "data", "control"
LAB = "10.99.0.254"  # clients, logs and orders


def data_address(number: int) -> str:
    return f"10.98.0.{number}"


def control_address(number: int) -> str:
    return f"10.99.0.{number}"


def ip(*commands: str) -> None:
    """Run `ip` commands, without that word, one after the other."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands) + "\n", text=True, check=True, capture_output=True)


class Network:
    """The cables of guests 1, 2, …"""

    def __init__(self) -> None:
        ip(
            "link set lo up",
            f"link add {DATA} type bridge",
            f"link set {DATA} up",
            f"link add {CONTROL} type bridge",
            f"link set {CONTROL} up",
            f"addr add {LAB}/24 dev {CONTROL}",
        )
        self._plugged: set[int] = set()

    def plug(self, number: int) -> tuple[str, str]:
        """The two tap devices of a guest: (data, control)."""
        assert number not in self._plugged
        taps = f"d{number}", f"c{number}"
        for tap, bridge in zip(taps, (DATA, CONTROL), strict=True):
            ip(f"tuntap add {tap} mode tap", f"link set {tap} master {bridge}", f"link set {tap} up")
        self._plugged.add(number)
        return taps

    def unplug(self, number: int) -> None:
        self._plugged.remove(number)
        ip(f"link del d{number}", f"link del c{number}")

    def cut(self, number: int) -> None:
        """No packet between guest `number` and the data network. Not `link down`: the guest's card never recovers."""
        ip(f"link set d{number} nomaster")

    def heal(self, number: int) -> None:
        ip(f"link set d{number} master {DATA}")

    def silence(self, number: int) -> None:
        """No packet between guest `number` and clients, nor the lab. Nobody is told."""
        ip(f"link set c{number} nomaster")

    def unsilence(self, number: int) -> None:
        ip(f"link set c{number} master {CONTROL}")
