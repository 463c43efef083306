"""The tests of the broker that speak through the contract, and what is different in them through a gateway.

`python -m tests.gateway.suites` runs all of them in front of three stores; words behind it are options of pytest. Tests
of destinations that live elsewhere are left out, because a gateway finds the home.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
MODULES: Final = (
    "binary_xids",
    "consumers",
    "credit",
    "dead_letters",
    "duplicates",
    "durables",
    "extend",
    "failed_commands",
    "leasing",
    "pulling",
    "queues",
    "redelivers",
    "retained",
    "runs",
    "scheduling",
    "sessions",
    "temporary",
    "transactions",
    "two_phase",
    "wildcards",
)
WINDOW: Final = "a client that does not read has what the window of its connection holds"
INSIDE: Final = "it looks at the broker's side of a connection, whose numbers and sessions are others"
PREFETCH, BROWSE, LEASES = "its prefetch or credit", "browse of several stores", "leases through a gateway"
TEMPORARY, TRANSACTION = "temporary destination", "transaction"
# The test → the row of docs/cluster.md that says what is different, or why the test means a broker without a gateway.
DIFFERENT: Final = {
    "consumers.py::test_a_lower_priority_gets_what_waits_on_disk": WINDOW,
    "consumers.py::test_an_auto_consumer_of_a_higher_priority_is_overtaken_when_its_socket_is_full": WINDOW,
    "extend.py::test_room_grows_and_shrinks[False-wildcard]": PREFETCH,
    "leasing.py::test_refused[runs-fields4-DESTINATION_REFUSED]": LEASES,
    "leasing.py::test_refused[single-fields4-DESTINATION_REFUSED]": LEASES,
    "queues.py::test_a_slow_consumer_gets_nothing_and_the_others_go_on": WINDOW,
    "redelivers.py::test_what_was_acknowledged_in_a_transaction_that_fails_stays_with_its_consumer[abort-wildcard]": (
        PREFETCH
    ),
    "redelivers.py::test_what_was_acknowledged_in_a_transaction_that_fails_stays_with_its_consumer[commit-wildcard]": (
        PREFETCH
    ),
    "redelivers.py::test_what_was_acknowledged_in_a_transaction_that_fails_stays_with_its_consumer[send-wildcard]": (
        PREFETCH
    ),
    "runs.py::test_a_browse_of_a_pattern_names_the_queue_of_each_run": BROWSE,
    "sessions.py::test_an_idle_transaction_is_told_once": TRANSACTION,
    "sessions.py::test_there_are_so_many_and_no_more": INSIDE,
    "sessions.py::test_unknown_deliveries_leave_everything_as_it_was": INSIDE,
    "sessions.py::test_what_comes_behind_a_commit_that_waits_is_no_part_of_it": INSIDE,
    "temporary.py::test_a_connection_has_a_bounded_number_of_queues": TEMPORARY,
    "temporary.py::test_replies_wait_for_a_consumer": TEMPORARY,
    "two_phase.py::test_a_batch_is_committed_once": TRANSACTION,
    "two_phase.py::test_a_batch_is_committed_whole_or_not_at_all": TRANSACTION,
    "two_phase.py::test_an_answer_that_was_lost": TRANSACTION,
    "wildcards.py::test_a_slow_socket_gets_nothing_and_others_share": WINDOW,
    "wildcards.py::test_at_random": INSIDE,
    "wildcards.py::test_the_prefetch_is_that_of_all_together": PREFETCH,
    "wildcards.py::test_wildcards_of_many_kinds_lose_and_double_nothing": INSIDE,
}


def reason_of(nodeid: str) -> str:
    """Why that test is different through a gateway, "" = it is not. A name in the table means each of its cases."""
    name = nodeid.removeprefix("tests/broker/test_broker_")
    return DIFFERENT.get(name) or DIFFERENT.get(name.partition("[")[0], "")


def run(*options: str) -> subprocess.CompletedProcess[str]:
    files = [f"tests/broker/test_broker_{name}.py" for name in MODULES]
    words = ["-q", "-p", "tests.gateway.through", "-p", "no:cacheprovider", "-m", "not deep", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *words, *options, *files]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    ended = run(*sys.argv[1:])
    print(ended.stdout, ended.stderr)
    sys.exit(ended.returncode)
