"""One home for each destination, in several stores at once, while tables change and masters die; and what happens
without each rule that it rests on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker import test_broker_homes
from tests.broker.cluster import ClusterOfWorlds
from tests.broker.world import World
from tests.mutant import Mutant, mutants
from tests.sampling import sampled

SEEDS = range(24)
STEPS = 120
MUTANTS = mutants(r"""
a table is told before its record is durable [walk]
    amq.broker.homes.Homes.offer: self._journal.append_record(found) =>
        self._journal.append_record(found); self.facts = {"number": found.number, "since": placement.since, "held": []}
a table is told with the record of an older one [told]
    amq.broker.homes.Homes._tell: self._placements[0] => self._placements[-1]
an older table after a takeover [records]
    amq.broker.state.obeyed.Obeyed.apply: before.number > record.number => False
a table of the node wins over the recorded one [walk]
    amq.broker.homes.Homes.begin: record is not None => False
an older table of the node is obeyed [takeover]
    amq.broker.homes.Homes.offer: newest.number >= found.number => False
the table is not recorded [walk]
    amq.broker.homes.Homes.offer: self._journal.append_record(found) => self.recorded(found)
homes are not asked for a command [walk]
    amq.broker.access.Access.let_in: self._check_home(each) => pass
homes are not asked for a message whose destination was used before [again]
    amq.broker.access.Access._forget_all: remembered.clear() => pass
a transaction is committed where its destinations lived [transaction]
    amq.broker.transactions.transaction.Transaction.check_homes: homes.check(home_name(name)) => pass
what moves belongs to its new home at once [walk]
    amq.cluster.placement.Placement._in_force: self.before is None => True
a table settles before all stores have it [walk]
    amq.cluster.placing.decide: if late else => if False else
a table settles although something is held [walk]
    amq.cluster.placing.decide: if held: => if False:
""")


def walk(path: Path, seed: int) -> None:
    cluster = ClusterOfWorlds(path, seed)
    try:
        cluster.run(STEPS)
    finally:
        cluster.close()


@pytest.mark.parametrize("seed", sampled(SEEDS, 4))
def test_no_destination_has_two_homes(tmp_path: Path, seed: int) -> None:
    walk(tmp_path, seed)


def walks(path: Path) -> None:
    for seed in SEEDS:
        walk(path / str(seed), seed)


def records(_: Path) -> None:
    test_broker_homes.test_a_record_that_is_written_again_puts_no_older_table_in_force()


def told(path: Path) -> None:
    test_broker_homes.test_no_table_is_told_while_only_an_older_one_is_durable(lambda: World(path))


def _in_a_world(test: Callable[[World], None]) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        world = World(path, placed=test_broker_homes.content(test_broker_homes.TABLE))
        try:
            test(world)
        finally:
            world.close()

    return check


CHECKS = {
    "walk": walks,
    "records": records,
    "told": told,
    "takeover": _in_a_world(test_broker_homes.test_the_table_outlives_the_master_and_an_older_one_changes_nothing),
    "again": _in_a_world(test_broker_homes.test_a_client_that_has_sent_there_before_is_refused),
    "transaction": _in_a_world(test_broker_homes.test_a_transaction_that_sends_to_what_moved_is_rolled_back),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_is_seen(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        CHECKS[mutant.seen_by](tmp_path)
