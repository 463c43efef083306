"""Parcels between two stores, in random steps, with masters that die and links that break at any moment; and what
happens without each rule that `amq.broker.transfer` rests on."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from amq.config.destination_options import DestinationOptions
from tests.broker import test_broker_outbox
from tests.broker.outboxes import Stores, names_of
from tests.mutant import Mutant, mutants
from tests.sampling import sampled

(OURS, *_), (THEIRS, *_) = names_of("s1"), names_of("s2")
SEEDS = range(24)
STEPS = 150
MUTANTS = mutants(
    r"""
messages leave before the other store has confirmed them [walk]
    amq.broker.transfer.channel.Channel._recorded: self._ask(transfer) => self._ask(transfer); self._come()
a parcel is sent before it is recorded [walk]
    amq.broker.transfer.channel.Channel.send: core.wake() => self._recorded()
a parcel without an answer is sent again [walk]
    amq.broker.transfer.channel.Channel._close: self._ask( => self._free(self._error) if self._tries > 1 else self._ask(
a parcel without an answer is taken for one that did not come [walk]
    amq.broker.transfer.channel.Channel._doubt: self._core.wake() => self._free(error)
a new master forgets the parcel that is open [walk]
    amq.broker.transfer.channel.Channel.begin: last.store => False
the number is recorded apart from the messages [walk]
    amq.broker.transfer.arrivals.Arrivals.take: [*self.taken(transfer, [message.seq for message in messages]),
        parcel] => []
a number that came before is taken [late]
    amq.broker.transfer.arrivals.Arrivals._check: last.number >= number => False
a parcel is closed without a record [walk]
    amq.broker.transfer.arrivals.Arrivals.close: self._core.journal.append_record(parcel) => pass
a parcel that is on its way to the journal is taken for one that did not come [walk]
    amq.broker.transfer.arrivals.Arrivals._last: self._coming.get(channel) or => None or
""".replace("\n    [walk]", " [walk]")
)


def walk(path: Path, seed: int) -> None:
    random = Random(seed)
    stores = Stores(path, destinations=(DestinationOptions(OURS, {"divert": THEIRS, "divert_exclusive": True}),))
    confirmed: set[bytes] = set()
    pending: dict[str, bytes] = {}
    client, sent = stores.worlds["s1"].connect(), 0
    try:
        for _ in range(STEPS):
            store = random.choice(("s1", "s2"))
            world = stores.worlds[store]
            match random.randrange(10):
                case 0 | 1:
                    pending[client.send(b"%d" % sent, OURS)] = b"%d" % sent
                    sent += 1
                case 2 | 3:
                    world.turn()
                    for way in stores.ways.open_ways:
                        if way.store == store:
                            way.leave()
                case 4 | 5:
                    world.runner.step()
                case 6 | 7:
                    for way in [*stores.ways.open_ways]:
                        way.carry()
                case 8:
                    stores.ways.come_late()
                case _ if random.randrange(3):
                    for way in [*stores.ways.open_ways]:
                        way.lose(comes_late=random.randrange(2) == 0)
                    world.clock.advance(random.choice((0.1, 1.0, 5.0)))
                    world.broker.sweep()
                case _:
                    confirmed |= {pending.pop(token) for token in client.confirmed if token in pending}
                    stores.crash(store, jobs=random.randrange(4), torn=random.choice((None, 0.5)))
                    if store == "s1":
                        client, pending = stores.worlds["s1"].connect(), {}
            confirmed |= {pending.pop(token) for token in client.confirmed if token in pending}
        stores.settle(60.0)
        confirmed |= {pending.pop(token) for token in client.confirmed if token in pending}
        arrived = [int(body) for body in stores.worlds["s2"].stored(THEIRS)]
        assert arrived == sorted(set(arrived)), "doubled, or out of order"
        assert confirmed <= {b"%d" % number for number in arrived}, "lost"
        assert not pending
        for world in stores.worlds.values():
            world.check()
    finally:
        stores.close()


@pytest.mark.parametrize("seed", sampled(SEEDS, 4))
def test_every_message_arrives_once(tmp_path: Path, seed: int) -> None:
    walk(tmp_path, seed)


def walks(path: Path) -> None:
    for seed in SEEDS:
        walk(path / str(seed), seed)


def late(path: Path) -> None:
    stores = Stores(path)
    try:
        test_broker_outbox.test_a_parcel_that_was_closed_is_refused_however_late_it_comes(stores)
    finally:
        stores.close()


@pytest.mark.deep
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_rule_that_is_missing_is_seen(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        {"walk": walks, "late": late}[mutant.seen_by](tmp_path)
