"""Holes in the protocol of a replicated store made on purpose, and two in the coordinator on which it rests."""

from __future__ import annotations

from tests import mutant
from tests.simulation.mutants import Mutant
from tests.simulation.replicas import NAME

TABLE = mutant.mutants(
    r"""
a_promise_is_not_synced [rival,kill when promised]
    amq.store.replica.keeper.Keeper._promise: return (self._mark(),) => return ()
a_promise_holds_nobody_back []
    amq.store.replica.keeper.Keeper.handle: if message.ballot < self.promised: => if False:
confirmed_by_one_copy_too_few []
    amq.store.replica.group.GroupRecord.reach:
    known[self.copies - 1] if len(known) >= self.copies => known[max(self.copies - 2, 0)] if known
fenced_by_one_copy_too_few []
    amq.store.replica.group.GroupRecord.fences: > len(self.members) - self.copies
    => >= len(self.members) - self.copies
lost_members_go_late [isolate,rival,kill when regrouped]
    amq.store.replica.leader.Leader._counting: [self.record] if self.pending is None else [self.record, self.pending]
    => [self.pending or self.record]
members_change_before_they_have_all [kill,destroy when regrouped,kill when regrouped]
    amq.store.replica.leader.Leader._propose: if reached is not None and reached >= self.confirmed: => if True:
sealed_by_a_copy_of_another_term [trip,kill,cut]
    amq.store.replica.candidate.Candidate._reached: if answer.whole and answer.term == record.term: => if answer.whole:
sealed_by_the_shortest_copy []
    amq.store.replica.candidate.Candidate._promised: self._source = max( => self._source = min(
served_before_the_seal_is_copied [kill,rival,destroy when sealed]
    amq.store.replica.candidate.Candidate._settle: if same.holds(having): => if True:
a_resync_joins_early []
    amq.store.replica.keeper.Keeper._take_piece: if not message.last: => if False:
a_copy_has_gaps []
    amq.store.replica.keeper.Keeper._append: or message.after > self.position: => :
what_was_not_sealed_stays []
    amq.store.replica.keeper.Keeper._adopt: (SetAside(record.sealed), self._mark()) => (self._mark(),)
a_mastership_is_proved_by_one_copy []
    amq.store.replica.leader.Leader._take_renewed: record.reach(self._renewed) or 0
    => max(self._renewed.values(), default=0)
an_old_answer_proves_a_mastership [rival,pause]
    amq.store.replica.leader.Leader._take_renewed: max(answer.number, self._renewed.get(member, 0)) => self._question
a_copy_that_promised_another_proves_it []
    amq.store.replica.keeper.Keeper.handle: if message.ballot < self.promised:
    => if message.ballot < self.promised and isinstance(message, Renew):
    \n\t\treturn CopyWork((), Renewed(*message))\n\tif message.ballot < self.promised:
the_coordinator_does_not_compare []
    tests.simulation.replicas.SimCoordinator.compare_and_set: if revision == self.revision: => if True:
the_coordinator_gives_a_claim_twice []
    tests.simulation.replicas.SimCoordinator.claim: self.claims += 1 => self.claims += self.claims <= self.record.term
"""
)
MUTANTS: dict[str, Mutant] = {each.what: each.applied for each in TABLE}
FOCUS: dict[str, tuple[str, ...]] = {each.what: tuple(filter(None, each.seen_by.split(","))) for each in TABLE}
CAUGHT_AT = {
    "a_promise_is_not_synced": 2420,
    "a_promise_holds_nobody_back": 2,
    "confirmed_by_one_copy_too_few": 1,
    "fenced_by_one_copy_too_few": 12,
    "lost_members_go_late": 3,
    "members_change_before_they_have_all": 79,
    "sealed_by_a_copy_of_another_term": 144,
    "sealed_by_the_shortest_copy": 2,
    "served_before_the_seal_is_copied": 4,
    "a_resync_joins_early": 20,
    "a_copy_has_gaps": 1,
    "what_was_not_sealed_stays": 24,
    "a_copy_that_promised_another_proves_it": 30,
    "a_mastership_is_proved_by_one_copy": 39,
    "an_old_answer_proves_a_mastership": 513,
    "the_coordinator_does_not_compare": 3,
    "the_coordinator_gives_a_claim_twice": 29,
}
FEATURES: dict[str, tuple[str, ...]] = dict.fromkeys(MUTANTS, (NAME,))
