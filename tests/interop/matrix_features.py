"""What every feature must keep when the master dies before, during or after its use: queues and what is around them.

Each story prepares, yields BEFORE, acts (`During`), yields AFTER, and compares the whole of what there is then with
what must have survived. `peer.in_flight` says that the master dies in the middle of the action, `peer.unread` that this
was not carried out then; our client, and what users of the others have to write, ask again what may be asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from matrix_clients import Consumer, Link, Received, RolledBack, Transaction, Work
from matrix_group import AFTER, BEFORE, During, Moment, Peer, Story

from tests.patience import DEADLINE_S

POLL_S = 0.05


# -- steps that stories share ------------------------------------------------------------------------------------------


def send(link: Link, destination: str, numbers: Iterable[object], **headers: object) -> None:
    for number in numbers:
        link.send(destination, str(number), **headers)


def receive(consumer: Consumer) -> Received:
    message = consumer.receive()
    assert message is not None, "no message came"
    return message


def take(consumer: Consumer, count: int) -> list[str]:
    """Receive and acknowledge; only what is confirmed to be acknowledged counts."""
    found: list[str] = []
    while len(found) < count:
        message = consumer.receive()
        assert message is not None, f"after {found} no message comes"
        if message.ack():
            found.append(message.body)
    return found


def take_until(consumer: Consumer, last: str) -> list[str]:
    found: list[str] = []
    while found[-1:] != [last]:
        found += take(consumer, 1)
    return found


def take_all(consumers: list[Consumer], count: int) -> list[tuple[int, Received]]:
    """`count` messages, whichever consumer gets them: (which, message), in the order of acknowledgement."""
    found: list[tuple[int, Received]] = []
    give_up_at = time.monotonic() + DEADLINE_S
    while len(found) < count:
        for which, consumer in enumerate(consumers):
            message = consumer.receive(POLL_S) if len(found) < count else None
            if message is not None and message.ack():
                found.append((which, message))
        assert time.monotonic() < give_up_at, f"only {[message.body for _, message in found]} of {count}"
    return found


def strings(numbers: Iterable[int]) -> list[str]:
    return [str(number) for number in numbers]


def wait_for(read: Callable[[], object], expected: object) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while (found := read()) != expected:
        assert time.monotonic() < give_up_at, f"{found} and not {expected}"
        time.sleep(POLL_S)


def attempt(link: Link, work: Work) -> bool:
    """Run `work` in a transaction: did it take place?"""
    try:
        transaction = link.begin()
        work(transaction)
    except RolledBack:
        return False
    return transaction.commit()


def until_done(link: Link, work: Work) -> None:
    while not attempt(link, work):
        pass


# -- queues ------------------------------------------------------------------------------------------------------------


def sends(peer: Peer) -> Story:
    """Confirmed persistent messages are there, once, in order; others are gone with the master."""
    link, queue = peer.connect(), peer.unique("/queue/matrix")
    send(link, queue, range(4))
    link.send(queue, "in memory", persistent="false")
    yield BEFORE
    send(link, queue, [4])
    yield During(lambda: link.send(queue, "5"))
    send(link, queue, [6, 7])
    yield AFTER
    assert link.browse(queue) == strings(range(8))
    assert take(link.consumer(queue), 8) == strings(range(8))
    assert link.browse(queue) == []


def acknowledgements(peer: Peer) -> Story:
    """What was confirmed to be acknowledged never comes back, the rest does, in its old order."""
    link, queue = peer.connect(), peer.unique("/queue/matrix")
    send(link, queue, range(8))
    consumer = link.consumer(queue)
    done = take(consumer, 2)
    yield BEFORE
    done += take(consumer, 1)
    message = receive(consumer)
    assert (yield During(message.ack)) is not peer.in_flight
    done += [] if peer.unread else [message.body]
    done += take(consumer, 2)
    yield AFTER
    link.send(queue, "end")
    done += take_until(consumer, "end")
    assert done == [*strings(range(8)), "end"]
    assert link.browse(queue) == []


def browsing(peer: Peer) -> Story:
    """A browse shows everything, through the master's death, and takes nothing."""
    link, queue = peer.connect(), peer.unique("/queue/matrix")
    send(link, queue, range(20))
    assert link.browse(queue) == strings(range(20))
    yield BEFORE
    assert (yield During(lambda: link.browse(queue))) == strings(range(20))
    yield AFTER
    assert link.browse(queue) == strings(range(20))
    consumer = link.consumer(queue)
    for number in range(20):
        message = receive(consumer)
        assert message.body == str(number)
        assert "redelivered" not in message.headers
        assert message.ack()
    assert link.browse(queue) == []


def pulling(peer: Peer) -> Story:
    """Who asks for each message holds none that it did not ask for, so that the others get them."""
    link, other, queue = peer.connect(), peer.connect(), peer.unique("/queue/matrix")
    send(link, queue, range(6))
    consumer, rival = link.consumer(queue, pull=True), other.consumer(queue, pull=True)
    assert take(consumer, 1) == ["0"]
    yield BEFORE
    message = receive(consumer)
    assert message.body == "1"
    yield During(message.ack)
    yield AFTER
    link.send(queue, "end")
    assert take_until(rival, "end") == [*strings(range(1 if peer.unread else 2, 6)), "end"]
    for asker in (consumer, rival):
        assert asker.receive(0) is None
    assert link.browse(queue) == []


def last_values(peer: Peer) -> Story:
    """The newest of each key waits, and no other."""
    link, queue = peer.connect(), peer.unique("/queue/matrix.values")
    other = peer.unique("/queue/matrix.other")

    def update(key: str, number: int) -> None:
        link.send(queue, f"{key}{number}", share=key)

    for key in "abc":
        update(key, 0)
    yield BEFORE
    for key in "abc":
        update(key, 1)
    yield During(lambda: update("a", 2))
    link.send(other, "behind it in the journal, which tells what was replaced")
    yield AFTER
    link.send(other, "so that the queue's keys are known")
    update("d", 0)
    link.send(other, "as above")
    assert link.browse(queue) == ["b1", "c1", "a2", "d0"]
    assert take(link.consumer(queue), 4) == ["b1", "c1", "a2", "d0"]
    assert link.browse(queue) == []


def rings(peer: Peer) -> Story:
    """The five newest wait, and no other."""
    link, queue = peer.connect(), peer.unique("/queue/matrix.ring")
    send(link, queue, range(7))
    yield BEFORE
    yield During(lambda: link.send(queue, "7"))
    send(link, queue, [8])
    yield AFTER
    link.send(peer.unique("/queue/matrix.other"), "behind it in the journal, which tells what was replaced")
    assert link.browse(queue) == strings(range(4, 9))
    assert take(link.consumer(queue), 5) == strings(range(4, 9))
    assert link.browse(queue) == []


# -- who gets it -------------------------------------------------------------------------------------------------------


def exclusive_consumers(peer: Peer) -> Story:
    """One consumer at a time gets everything; after a takeover too, whichever came back first."""
    links, queue = [peer.connect(), peer.connect()], peer.unique("/queue/matrix")
    send(links[0], queue, range(8))
    consumers = [link.consumer(queue, {"activemq.exclusive": "true"}) for link in links]
    found = take_all(consumers, 2)
    yield BEFORE
    found += take_all(consumers, 1)
    _, message = _held(consumers)
    yield During(message.ack)
    yield AFTER
    links[0].send(queue, "end")
    done = {each.body for _, each in found} | (set() if peer.unread else {message.body})
    rest: list[tuple[int, str]] = []
    while "end" not in {body for _, body in rest}:
        rest += [(which, each.body) for which, each in take_all(consumers, 1)]
    assert len({which for which, _ in rest}) == 1, f"two exclusive consumers: {rest}"
    assert [body for _, body in rest] == [*(body for body in strings(range(8)) if body not in done), "end"]
    assert links[0].browse(queue) == []


def consumer_priority(peer: Peer) -> Story:
    """The consumer of the higher priority gets what comes, as long as it has room."""
    links, queue = [peer.connect(), peer.connect()], peer.unique("/queue/matrix")
    low, high = (
        link.consumer(queue, {"activemq.priority": priority}) for link, priority in zip(links, ("0", "5"), strict=True)
    )
    send(links[0], queue, range(2))
    assert take(high, 2) == ["0", "1"]
    yield BEFORE
    send(links[0], queue, [2])
    assert take(high, 1) == ["2"]
    yield During(lambda: links[0].send(queue, "3"))
    if peer.in_flight:  # stored before the death, it may go to the low one, if that is back first
        assert [message.body for _, message in take_all([low, high], 1)] == ["3"]
    else:
        assert take(high, 1) == ["3"]
    yield AFTER
    send(links[0], queue, range(4, 8))
    assert take(high, 4) == strings(range(4, 8))
    assert links[0].browse(queue) == []


def message_groups(peer: Peer) -> Story:
    """A group is with one consumer at a time, and in order, whatever dies."""
    links, queue = [peer.connect(), peer.connect()], peer.unique("/queue/matrix")
    for number in range(24):
        links[0].send(queue, str(number), JMSXGroupID=f"g{number % 4}")
    consumers = [link.consumer(queue, {"activemq.prefetchSize": "4"}) for link in links]
    done: list[tuple[int, int, Received]] = []  # (deaths before, consumer, message)

    def work(count: int) -> None:
        done.extend((peer.kills, *each) for each in take_all(consumers, count))

    work(6)
    yield BEFORE
    work(4)
    kills, (which, message) = peer.kills, _held(consumers)
    yield During(message.ack)
    if not peer.unread:
        done.append((kills, which, message))
    work(2)
    yield AFTER
    work(24 - len(done))
    for group in range(4):
        mine = [each for each in done if each[2].headers["JMSXGroupID"] == f"g{group}"]
        assert [each.body for *_, each in mine] == strings(range(group, 24, 4))
        for kills in (0, 1):
            assert len({which for deaths, which, _ in mine if deaths == kills}) <= 1, "a group with two consumers"


def _held(consumers: list[Consumer]) -> tuple[int, Received]:
    """A message that is not acknowledged yet, and which of them has it."""
    give_up_at = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_at:
        for which, consumer in enumerate(consumers):
            message = consumer.receive(POLL_S)
            if message is not None:
                return which, message
    raise AssertionError("nobody gets a message")


def selectors(peer: Peer) -> Story:
    """Each consumer gets what it selects, what nobody selects stays."""
    links, queue = [peer.connect(), peer.connect()], peer.unique("/queue/matrix")
    red, blue = (
        link.consumer(queue, {"selector": f"colour = '{colour}' AND weight > 1"})
        for link, colour in zip(links, ("red", "blue"), strict=True)
    )

    def paint(number: int) -> None:
        colour = ("red", "blue", "green")[number % 3]
        links[0].send(queue, f"{colour}{number}", colour=colour, weight=number)

    for number in range(6):  # red 0 and blue 1 are not heavy enough
        paint(number)
    yield BEFORE
    assert take(red, 1) == ["red3"]
    yield During(lambda: paint(6))
    for number in range(7, 12):
        paint(number)
    yield AFTER
    assert take(red, 2) == ["red6", "red9"]
    assert take(blue, 3) == ["blue4", "blue7", "blue10"]
    assert links[0].browse(queue) == ["red0", "blue1", "green2", "green5", "green8", "green11"]


# -- transactions ------------------------------------------------------------------------------------------------------


def local_transactions(peer: Peer) -> Story:
    """All or nothing, over several queues; what was open when the master died is rolled back."""
    link, name = peer.connect(), peer.unique("/queue/matrix")
    consumer = link.consumer(f"{name}.in", transacted=True)
    send(link, f"{name}.in", range(5))

    def work(transaction: Transaction) -> None:
        body = transaction.take(consumer)
        for out in ("a", "b"):
            transaction.send(f"{name}.{out}", body)

    until_done(link, work)
    yield BEFORE
    until_done(link, work)
    transaction = link.begin()
    work(transaction)
    took_place = yield During(transaction.commit)
    assert took_place is not peer.unread
    if not took_place:
        until_done(link, work)
    left_open = link.begin()
    work(left_open)
    assert link.browse(f"{name}.a") == link.browse(f"{name}.b") == strings(range(3))
    yield AFTER
    if peer.moment is Moment.AFTER:
        assert not left_open.commit()
        until_done(link, work)
    else:
        assert left_open.commit()
    until_done(link, work)
    assert link.browse(f"{name}.a") == link.browse(f"{name}.b") == strings(range(5))
    assert link.browse(f"{name}.in") == []


def prepares(peer: Peer) -> Story:
    """What is prepared outlives connection and master, and another connection finishes it."""
    link, other, name = peer.connect(), peer.connect(), peer.unique("/queue/matrix")
    consumer = link.consumer(f"{name}.in", transacted=True)
    send(link, f"{name}.in", range(3))

    def work() -> Transaction:
        transaction = link.begin()
        transaction.send(f"{name}.out", transaction.take(consumer))
        return transaction

    xids = [f"{name}.0", f"{name}.1"]
    assert work().prepare(xids[0])
    yield BEFORE
    transaction = work()
    prepared = yield During(lambda: transaction.prepare(xids[1]))
    assert prepared is not peer.unread
    if not prepared:
        xids[1] = f"{name}.1.again"
        assert work().prepare(xids[1])
    assert link.browse(f"{name}.out") == []
    yield AFTER
    for xid in xids:
        other.finish("COMMIT", xid)
    assert link.browse(f"{name}.out") == ["0", "1"]
    assert link.browse(f"{name}.in") == ["2"]


def second_phases(peer: Peer) -> Story:
    """The end of what is prepared is there once confirmed, and may be asked again."""
    link, name = peer.connect(), peer.unique("/queue/matrix")
    consumer = link.consumer(f"{name}.in", transacted=True)
    send(link, f"{name}.in", range(2))
    for xid in ("commit", "rollback"):
        transaction = link.begin()
        transaction.send(f"{name}.out", transaction.take(consumer))
        assert transaction.prepare(f"{name}.{xid}")
    yield BEFORE
    assert link.browse(f"{name}.out") == []
    yield During(lambda: link.finish("COMMIT", f"{name}.commit"))
    link.finish("ABORT", f"{name}.rollback")
    yield AFTER
    link.finish("COMMIT", f"{name}.commit")
    link.finish("ABORT", f"{name}.rollback")
    assert link.browse(f"{name}.out") == ["0"]
    assert link.browse(f"{name}.in") == ["1"]


def batches(peer: Peer) -> Story:
    """A batch is committed whole and once, however often its coordinator asks."""
    link, name = peer.connect(), peer.unique("/queue/matrix")
    known = peer.name != "stompit"  # it does not tell the headers of a RECEIPT

    def prepare(batch: int) -> list[str]:
        xids = [f"{name}.{batch}.{part}" for part in range(3)]
        for part, xid in enumerate(xids):
            transaction = link.begin()
            transaction.send(f"{name}.rows", f"{batch}.{part}")
            assert transaction.prepare(xid, name, batch)
        return xids

    assert link.commit_batch(name, 0, prepare(0)) == ("committed" if known else "")
    xids = prepare(1)
    yield BEFORE
    outcome = yield During(lambda: link.commit_batch(name, 1, xids))
    assert outcome == (("duplicate" if peer.moment is Moment.UNTOLD else "committed") if known else "")
    yield AFTER
    assert link.commit_batch(name, 1, xids) == ("duplicate" if known else "")
    assert link.browse(f"{name}.rows") == [f"{batch}.{part}" for batch in range(2) for part in range(3)]


def exactly_once(peer: Peer) -> Story:
    """Work that bears a name takes place once, however often it is run."""
    link, name = peer.connect(), peer.unique("/queue/matrix")
    consumer = link.consumer(f"{name}.in", transacted=True)
    send(link, f"{name}.in", range(3))

    def move(transaction: Transaction) -> None:
        transaction.send(f"{name}.out", transaction.take(consumer))

    def load(transaction: Transaction) -> None:
        for part in "abc":
            transaction.send(f"{name}.out", part)

    link.once(move, f"{name}.move")
    yield BEFORE
    link.once(move, f"{name}.move")
    yield During(lambda: link.once(load, f"{name}.load"))
    yield AFTER
    for _ in range(2):
        link.once(load, f"{name}.load")
        link.once(move, f"{name}.move again")
    assert link.browse(f"{name}.out") == ["0", "a", "b", "c", "1"]
    assert link.browse(f"{name}.in") == ["2"]
