"""docs/master-slave.md says what the code does: the state table, and the names of the mutants' scenarios."""

from __future__ import annotations

from pathlib import Path

from amq.store.locker import TRANSITIONS, LockerEvent, LockerState

PAGE = Path(__file__).parents[2] / "docs" / "master-slave.md"


def state_table() -> str:
    """TRANSITIONS as the page shows it."""
    heads = ["state", *(event.value for event in LockerEvent)]
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for state in LockerState:
        cells = [TRANSITIONS[state].get(event) for event in LockerEvent]
        rows.append(f"| **{state.value}** | " + " | ".join(cell.value if cell else "" for cell in cells) + " |")
    return "\n".join(rows)


def test_state_table_of_the_page_is_the_one_of_the_code() -> None:
    begin, end = "test_master_slave_page.py -->\n", "\n<!-- end of the state table -->"
    assert PAGE.read_text().partition(begin)[2].partition(end)[0] == state_table()
