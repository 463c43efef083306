"""The simulation is tested too: it must find each hole that is made on purpose. `test_replicas.py` has those of a
replicated store."""

from __future__ import annotations

import pytest

from tests.simulation.pool import MUTANTS, first_caught
from tests.simulation.replica_mutants import CAUGHT_AT as REPLICAS
from tests.simulation.world import Result

SEEDS = range(1, 181)  # one seed in twenty or thirty catches a mutant that another rule is before, or that is rare
QUICK = (
    "claim_not_looked_at",
    "acknowledgements_not_in_the_journal",
    "a_message_comes_again_under_its_id",
    "any_server_is_as_good",
)

# Seeds that catch those that few seeds catch: tried first, which saves most of the time. Any other will do as well;
# with `pytest -s` a test prints where its mutant was caught, for when the histories of seeds have changed.
CAUGHT_AT = {
    "who_reads_a_lease_begins_anew_after_a_failover": 76,
    "lease_moved_from_the_end_of_the_check": 128,
    "torn_batch_accepted": 23,
    "a_replaced_lock_file_needs_no_claim": 23,
    "the_youngest_is_dropped": 19,
    "payload_not_summed": 18,
    "own_period_instead_of_the_old_masters": 14,
    "a_claim_is_not_the_fence": 13,
    "damage_taken_for_a_torn_tail": 22,
    "no_fence_in_the_database": 11,
    "journal_without_the_fence": 11,
    "a_warning_passed_over": 7,
    "clients_of_a_lost_link_stay": 7,
    "lease_on_the_wall_clock": 12,
    "pid_alone_proves_death": 5,
    "seal_measures_old_segments_again": 5,
    "master_reads_past_the_seal": 5,
    "epochs_look_like_those_of_0_1": 5,
    "what_is_written_looks_like_0_1": 5,
    "a_broker_of_0_1_does_not_refuse": 5,
    "a_lost_connection_gives_its_messages_back": 4,
    "a_transaction_stays_open_between_two_statements": 4,
    "what_was_copied_counts_though_it_has_left": 9,
    "what_moves_leaves_before_it_has_come": 7,
    "a_parcel_without_an_answer_is_sent_again": 14,
    "epoch_not_exclusive": 34,
    "memory_trusted_after_a_failed_sync": 3,
    "confirmed_at_once": 3,
    "a_prepared_transaction_gives_back_nothing_when_it_is_rolled_back": 3,
    "what_was_prefetched_counts_as_seen": 5,
    "confirmed_before_the_sync": 2,
    "nobody_replaces_a_master_that_hangs": 2,
    "a_table_is_told_before_its_record": 2,
    "a_client_takes_what_it_has": 2,
}


@pytest.mark.parametrize("name", QUICK)
def test_quick_ones_are_caught_at_once(name: str) -> None:
    assert first_caught(name, range(1, 11)) is not None


HUNTED = [name for name in MUTANTS if name not in QUICK and name not in REPLICAS]


@pytest.mark.deep
@pytest.mark.parametrize("name", HUNTED)
def test_every_mutant_is_caught(name: str) -> None:
    result = first_caught(name, _order(name))
    assert result is not None, f"not caught within {len(SEEDS)} seeds"
    print(f"caught at: {result.seed}")
    assert not _is_stale(result), f"no longer fits the code that it replaces, and fails by itself: {result.violation}"


def test_seeds_are_of_mutants() -> None:
    assert set(CAUGHT_AT) <= set(HUNTED)


def _order(name: str) -> list[int]:
    return sorted(SEEDS, key=lambda seed: seed != CAUGHT_AT.get(name))


def _is_stale(result: Result) -> bool:
    return any(error in result.violation for error in ("TypeError", "AttributeError", "NameError", "argument"))
