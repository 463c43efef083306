"""Is a directory fit to be a store? Reads what the kernel knows of its mount, and tries what the broker relies on.

Invariant: what is tried is tried through the same `Vfs` that the broker uses, on files of its own; no file of a store
is opened, and nothing stays behind.
"""

from amq.doctor.examine import examine, examine_quickly
from amq.doctor.finding import Finding, Level, Report

__all__ = ["Finding", "Level", "Report", "examine", "examine_quickly"]
