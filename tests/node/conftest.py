"""A node that runs in the process of the tests leaves what is loaded there alone."""

from __future__ import annotations

import pytest

from amq.node import process


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the node would have done with the objects of the process. The end of a mastership collects garbage among all
    of them: here those of all tests, for a second, and from then on for each test that comes later."""
    done: list[str] = []
    monkeypatch.setattr(process, "keep_loaded_objects", lambda: done.append("keep"))
    monkeypatch.setattr(process, "drop_loaded_objects", lambda: done.append("drop"))
    return done
