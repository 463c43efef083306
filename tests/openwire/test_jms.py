"""The unmodified Java client, case by case: see java/suite."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import maven_client
import pytest
from java_suite import Program, cases, compiled

from tests.sampling import thorough

CASES = cases()
# With other clients, and on the broker that these cases were taken from: each so many-th case, and by `make
# test-thorough` each.
ALL_OR_SAMPLE = pytest.mark.parametrize("every", [pytest.param(7, marks=pytest.mark.deep), *thorough(1)])
*OLDER, NEWEST = maven_client.VERSIONS  # Debian's client, of all other tests, is older than both
PAGE = Path(__file__).resolve().parents[2] / "docs" / "openwire.md"
# Where ActiveMQ does otherwise: the case → how its row of the page begins.
ROWS = {
    "Headers.timesInTheBroker": "times at which a message entered and left the broker",
    "Producers.persistenceMixed": "order of persistent messages and others in one queue",
    "Scheduling.browsed": "browsing scheduled messages",
    "Selectors.redelivered": "selector on `JMSRedelivered`",
    "Xa.committedAgain": "second commit of a branch",
    "Xa.forgetPrepared": "forget of a prepared XA transaction",
    "Xa.preparedNotPersistent": "prepare of an XA transaction with messages for topics, or that are not persistent",
    "Xa.preparedToADurableSubscriber": "prepare of an XA transaction with messages for topics",
    "Xa.preparedToATopic": "prepare of an XA transaction with messages for topics",
    "Xa.unknownPrepared": "prepare of a transaction that is not known",
}

# ActiveMQ browses what it has in memory at that moment: 752 of 1,000 messages were seen once, on a loaded machine.
UNSURE = {"Browsers.aThousand"}


def test_each_difference_from_activemq_is_in_the_table_of_the_page() -> None:
    _, _, table = PAGE.read_text().partition("\n## Differences\n")
    rows = [line.removeprefix("| ") for line in table.strip().split("\n\n")[0].splitlines()[2:]]
    assert ROWS.keys() == {case.name for case in CASES if case.differs}
    for beginning in ROWS.values():
        assert sum(row.startswith(beginning) for row in rows) == 1, beginning


class Results:
    """The results of the suite on one broker. The cases that were selected run in one JVM, when the first is asked for:
    each JVM takes a second of processor time before it does anything."""

    def __init__(self, program: Program, url: str, names: list[str]) -> None:
        self._program = program
        self._url = url
        self._names = names
        self._lines: dict[str, dict[str, Any]] = {}

    def check(self, name: str) -> None:
        """Fail with what the case said."""
        if not self._lines:
            self._lines = self._program.run(self._url, [pattern(self._names)])
        line = self._lines[name]
        assert line["ok"], line["detail"]


def pattern(names: Iterable[str]) -> str:
    """For `Program.run`: these cases."""
    return "|".join(re.escape(name) for name in names)


@pytest.fixture(scope="module")
def results(java: Program, amq_url: str, request: pytest.FixtureRequest) -> Results:
    selected = [item for item in request.session.items if getattr(item, "function", None) is test_a_case]
    return Results(java, amq_url, [item.callspec.params["name"] for item in selected])


@pytest.mark.deep
def test_the_sources_declare_what_the_suite_lists(java: Program) -> None:
    listed = {line["case"]: line["differs"] for line in java.listed()}
    assert listed == {case.name: case.differs for case in CASES}
    assert len(CASES) >= 150


@pytest.mark.deep
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_a_case(results: Results, name: str) -> None:
    results.check(name)


@ALL_OR_SAMPLE
def test_activemq_does_the_same(java: Program, activemq_url: str, every: int) -> None:
    """Each case holds on ActiveMQ too, except those that say why it does otherwise."""
    chosen = [case for case in CASES[::every] if case.name not in UNSURE]
    lines = java.run(activemq_url, [pattern(case.name for case in chosen)])
    expected = {case.name: case.differs == "" for case in chosen}
    others = {name: line["detail"] for name, line in lines.items() if line["ok"] != expected[name]}
    assert others == {}
    assert lines.keys() == expected.keys()


@ALL_OR_SAMPLE
@pytest.mark.parametrize("version", [NEWEST, *thorough(*OLDER)])
def test_other_versions_of_the_client(java: Program, amq_url: str, version: str, every: int) -> None:
    """The suite with an older or newer client of Maven Central, where it can be reached."""
    try:
        jars = maven_client.jars(version)
    except maven_client.Unreachable as problem:
        pytest.skip(str(problem))
    chosen = [case.name for case in CASES[::every]]
    package = maven_client.VERSIONS[version]
    program = java.with_client(jars) if package == "javax.jms" else compiled(jars, package)
    lines = program.run(amq_url, [pattern(chosen)])
    failed = {name: line["detail"] for name, line in lines.items() if not line["ok"]}
    assert failed == {}
    assert lines.keys() == {*chosen}
