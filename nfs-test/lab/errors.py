"""What can go wrong: the lab itself, or what is tested in it."""

from __future__ import annotations


class LabError(Exception):
    """The lab could not do what a scenario asked for. Says nothing about the broker; nothing passes by it."""


class ExpectationError(Exception):
    """Brokers or clients did not do in time what they must do: a finding."""
