"""Examines the clocks on which leases run (assumption A1): their source and their rate."""

from __future__ import annotations

from collections.abc import Iterator

from amq.doctor.finding import Finding, Level, unfit
from amq.doctor.hands import Hands
from amq.doctor.machine import ThisHost

DRIFT_MAX = 0.01
MEASURED_S_MIN = 0.2
COMPARED_S = 0.5  # two hosts: long beside the time that a question takes
_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_COARSE = ("jiffies", "refined-jiffies", "pit")
_WHY = "leases use it: it must run on while the machine is suspended, and two hosts may differ by at most 1 %"


def judge_clocks(machine: ThisHost) -> Iterator[Finding]:
    """Judge the clocks without waiting."""
    source = machine.read(_SOURCE).strip()
    ahead_s = machine.clock_s("CLOCK_BOOTTIME") - machine.clock_s("CLOCK_MONOTONIC")
    suspended = f", was suspended for {ahead_s:.0f} s since boot" if ahead_s >= 1 else ""
    found = f"CLOCK_BOOTTIME from {source or 'an unknown source'}{suspended}"
    if source in _COARSE:
        cure = "find out why the kernel uses no better clock source"
        yield Finding(Level.WARNING, "clock", found, "it loses time when interrupts are late", cure)
    else:
        yield Finding(Level.OK, "clock", found, _WHY)
    if " hypervisor" in machine.read("/proc/cpuinfo"):
        yield Finding(
            Level.NOTE,
            "virtual machine",
            "yes",
            "while a hypervisor pauses it (snapshot, stop), its clock may stop too; when it wakes, its lease still "
            "seems valid",
            "stop the broker before you pause or snapshot the virtual machine of a master",
        )


class Rate:
    """Compares the rate of the lease clock with the hardware clock, from construction to `judge`."""

    def __init__(self, machine: ThisHost) -> None:
        self._machine = machine
        self._started = self._read()

    def _read(self) -> tuple[float, float]:
        return self._machine.clock_s("CLOCK_BOOTTIME"), self._machine.clock_s("CLOCK_MONOTONIC_RAW")

    def judge(self) -> Iterator[Finding]:
        boot_s, raw_s = (now - then for now, then in zip(self._read(), self._started, strict=True))
        if raw_s < MEASURED_S_MIN:
            return
        off = boot_s / raw_s - 1
        if abs(off) > DRIFT_MAX:
            why = "time synchronisation corrects it, or a clock is broken: leases of two hosts run at different rates"
            yield unfit("clock rate", f"{off * 100:+.2f} %", why, "check chrony or ntpd, and the hypervisor")


class PeerRate:
    """Compares the rate of another host's clock with ours, from construction to `judge`."""

    def __init__(self, machine: ThisHost, peer: Hands) -> None:
        self._machine = machine
        self._peer = peer
        self._started = self._read()

    def _read(self) -> tuple[float, float, float]:
        """(our reading, their reading, uncertainty), in seconds."""
        before = self._machine.clock_s("CLOCK_BOOTTIME")
        theirs = float(self._peer.call("time"))
        after = self._machine.clock_s("CLOCK_BOOTTIME")
        return (before + after) / 2, theirs, (after - before) / 2

    def left_s(self) -> float:
        """Seconds to wait before `judge` can tell."""
        return max(0.0, self._started[0] + COMPARED_S - self._machine.clock_s("CLOCK_BOOTTIME"))

    def judge(self, who: str) -> Finding:
        ours, theirs, doubt = self._read()
        ours_s, theirs_s = ours - self._started[0], theirs - self._started[1]
        assert ours_s > 0
        off, doubt = theirs_s / ours_s - 1, (doubt + self._started[2]) / ours_s
        found = f"{off * 100:+.2f} % ± {doubt * 100:.2f} % in {ours_s:.1f} s"
        if abs(off) - doubt > DRIFT_MAX:
            why = "two masters may confirm at the same time for the difference"
            return unfit(f"clock rate, {who}", found, why, "check chrony or ntpd, and the hypervisors")
        return Finding(Level.OK, f"clock rate, {who}", found, _WHY)
