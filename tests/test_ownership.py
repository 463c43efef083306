"""Whose a name is that a client chooses: the table of all of them, and how an owner is written."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from hypothesis import given as for_all
from hypothesis import strategies as st

from amq.core.ownership import NAMES, SEPARATOR, given, owned, owner_of
from amq.protocols import commands

PAGE = Path(__file__).resolve().parent.parent / "docs/security.md"
USERS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)
# Fields of commands that choose no name: numbers, flags, what is read and not kept, and names of destinations.
PLAIN = {
    "Command.receipt",
    "Connect.exclusive",
    "Connect.login",
    "Connect.passcode",
    "LoginStep.mechanism",
    "LoginStep.response",
    "SendToMany.destinations",
    "SendMany.bodies",
    "SendRun.bodies",
    "SendRun.receipts",
    "SendMany.headers",
    "SendMany.natives",
    "SendRun.natives",
    "Subscribe.filter",
    "Subscribe.flow",
    "Subscribe.mode",
    "Subscribe.sources",
    "Subscribe.token",
    "Mode.acknowledges",
    "Mode.exclusive",
    "Mode.priority",
    "Mode.redelivers",
    "Mode.shared",
    "Flow.credit",
    "Flow.pending_limit",
    "Flow.prefetch",
    "Filter.ids",
    "Filter.no_local",
    "Filter.retroactive",
    "Filter.selector",
    "Browse.bounds",
    "Browse.in_runs",
    "Browse.places",
    "Browse.range",
    "Browse.reading",  # its cursor is that of `Subscribe.browse`
    "Credit.credit",
    "Credit.drain",
    "Credit.wait_ms",
    "Extend.change",
    "Settle.first",
    "Settle.outcome",
    "Settle.reason",
    "Settle.seq",
    "SettleSet.seqs",
    "SettleRun.seqs",
    "Prepare.batch",
    "Prepare.timeout_ms",
    "Prepare.may_be_read_only",
    "Finish.commit",
    "CommitBatch.batch",
    "CommitBatch.content",
    "AbortBatch.batch",
    "OpenProducer.destination",
    "DeleteDestination.name",
    "LeaseMessages.after",
    "LeaseMessages.epoch",
    "LeaseMessages.messages",
    "LeaseMessages.places",
    "LeaseMessages.reads",
    "LeaseMessages.size",
    "LeaseMessages.skip",
    "LeaseMessages.sources",
    "LeaseMessages.take",
    "LeaseMessages.timeout_ms",
    "SettleLeases.commit",
    "SettleLeases.epoch",
    "SettleLeases.sources",
    "SettleLeases.through",
    "Locate.sources",
    "AskDecision.user",  # these are said by gateways and stores, for the user of the transaction
    "Decide.stores",
    "Prepare.stores",
    "EndPart.commit",
    "EndPart.user",
    "Transfer.channel",  # and these by stores alone
    "Transfer.extra",
    "Transfer.messages",
    "Transfer.number",
    "Transfer.queue",
    "TakeCopies.channel",
    "TakeCopies.extra",
    "TakeCopies.number",
    "TakeCopies.queue",
    "TakeCopies.ranges",
    "CloseParcel.channel",
    "CloseParcel.number",
    "Malformed.error",
    "Invalid.error",
}


def test_every_field_of_a_command_is_a_name_with_a_scope_or_no_name() -> None:
    kinds = [kind for _, kind in inspect.getmembers(commands, inspect.isclass) if issubclass(kind, commands.Command)]
    fields = {f"{kind.__name__}.{name}" for kind in kinds for name in kind.__dict__["__slots__"]}
    parts = commands.Mode, commands.Flow, commands.Filter, commands.Browse
    fields |= {f"{part.__name__}.{name}" for part in parts for name in part._fields}
    named = {field for name in NAMES for field in name.fields}
    assert fields == named | PLAIN
    assert not named & PLAIN


def test_the_page_has_the_same_table() -> None:
    section = PAGE.read_text().partition("## Names that clients choose\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    assert rows[1:] == [(name.what, ", ".join(within.value for within in name.scope)) for name in NAMES]


@for_all(USERS, st.text())
def test_owner_and_name_are_read_as_they_were_written(user: str, name: str) -> None:
    text = owned(user, name)
    assert (owner_of(text), given(text)) == (user, name)


@for_all(USERS, st.text(), USERS, st.text())
def test_two_users_never_have_the_same_name(user: str, name: str, other: str, same: str) -> None:
    assert (owned(user, name) == owned(other, same)) == ((user, name) == (other, same))


@for_all(st.text().filter(lambda name: not name.startswith(SEPARATOR)))
def test_a_name_without_an_owner_is_whole(name: str) -> None:
    assert (owned("", name), owner_of(name), given(name)) == (name, "", name)
