"""The unmodified Java client, case by case: see java/suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import maven_client
import pytest
from java_suite import Program, cases, compiled

CASES = cases()
BY_NAME = {case.name: case for case in CASES}
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


def test_each_difference_from_activemq_is_in_the_table_of_the_page() -> None:
    _, _, table = PAGE.read_text().partition("\n## Differences\n")
    rows = [line.removeprefix("| ") for line in table.strip().split("\n\n")[0].splitlines()[2:]]
    assert ROWS.keys() == {case.name for case in CASES if case.differs}
    for beginning in ROWS.values():
        assert sum(row.startswith(beginning) for row in rows) == 1, beginning


class Results:
    """The results of the suite on one broker. A theme's cases run together when the first of them is asked for."""

    def __init__(self, program: Program, url: str) -> None:
        self._program = program
        self._url = url
        self._lines: dict[str, dict[str, Any]] = {}

    def check(self, name: str, together: list[str]) -> None:
        """Fail with what the case said. `together` are the names of those that run with it."""
        if name not in self._lines:
            patterns = [each.replace(".", r"\.") for each in together]
            self._lines |= self._program.run(self._url, ["|".join(patterns)])
        line = self._lines[name]
        assert line["ok"], line["detail"]


@pytest.fixture(scope="module")
def results(java: Program, amq_url: str) -> Results:
    return Results(java, amq_url)


@pytest.mark.deep
def test_the_sources_declare_what_the_suite_lists(java: Program) -> None:
    listed = {line["case"]: line["differs"] for line in java.listed()}
    assert listed == {case.name: case.differs for case in CASES}
    assert len(CASES) >= 150


@pytest.mark.deep
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_a_case(results: Results, name: str) -> None:
    theme = BY_NAME[name].theme
    results.check(name, [case.name for case in CASES if case.theme == theme])


@pytest.mark.deep
def test_activemq_does_the_same(java: Program, activemq_url: str) -> None:
    """Each case holds on ActiveMQ too, except those that say why it does otherwise."""
    lines = java.run(activemq_url)
    expected = {case.name: case.differs == "" for case in CASES}
    others = {name: line["detail"] for name, line in lines.items() if line["ok"] != expected[name]}
    assert others == {}
    assert lines.keys() == expected.keys()


@pytest.mark.deep
@pytest.mark.parametrize("version", maven_client.VERSIONS)
def test_other_versions_of_the_client(java: Program, amq_url: str, version: str) -> None:
    """The whole suite with an older or newer client of Maven Central, where it can be reached."""
    assert java, "a compiler is there"
    try:
        jars = maven_client.jars(version)
    except maven_client.Unreachable as problem:
        pytest.skip(str(problem))
    lines = compiled(jars, maven_client.VERSIONS[version]).run(amq_url)
    failed = {name: line["detail"] for name, line in lines.items() if not line["ok"]}
    assert failed == {}
    assert lines.keys() == BY_NAME.keys()
