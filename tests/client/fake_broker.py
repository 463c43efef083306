"""A broker that speaks STOMP 1.2 and keeps its promises, for tests of the client: scripted faults at any frame or byte.

`Store` is what a master/slave group shares; `Conversation` is one connection, bytes in and bytes out, no I/O; `Broker`
serves conversations on a real socket. Several brokers on one store are a group, of which one at a time should run.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable
from typing import Any

from amq.protocols.stomp.frame import Frame, FrameReader, encode


class Stored:
    def __init__(self, seq: int, frame: Frame) -> None:
        self.seq = seq
        self.body = frame.body
        self.headers = {n: v for n, v in frame.headers.items() if n not in ("receipt", "transaction", "destination")}
        self.redelivered = 0


class Store:
    """Durable state. `lock` guards it and every conversation over it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.queues: dict[str, list[Stored]] = {}
        self.duplicate_ids: set[str] = set()
        self.outcomes: set[str] = set()
        self.seq = itertools.count(1)
        self.conversations: list[Conversation] = []
        self.frames: list[Frame] = []  # everything that was received, by whichever broker
        self.acknowledged: list[bytes] = []
        self.added: dict[str, list[bytes]] = {}  # by destination, in the order of storing

    def bodies(self, destination: str) -> list[bytes]:
        with self.lock:
            return [message.body for message in self.queues.get(destination, [])]

    def add(self, frame: Frame) -> None:
        duplicate_id = frame.headers.get("_AMQ_DUPL_ID")
        if duplicate_id in self.duplicate_ids:
            return
        if duplicate_id:
            self.duplicate_ids.add(duplicate_id)
        self.queues.setdefault(frame.headers["destination"], []).append(Stored(next(self.seq), frame))
        self.added.setdefault(frame.headers["destination"], []).append(frame.body)

    def dispatch(self) -> None:
        for conversation in self.conversations:
            conversation.dispatch()


class FakeSubscription:
    def __init__(self, frame: Frame) -> None:
        self.id = frame.headers["id"]
        self.destination = frame.headers["destination"]
        self.ack = frame.headers["ack"]
        self.prefetch = int(frame.headers.get("activemq.prefetchSize", 1))
        self.credit = int(frame.headers["credit"]) if "credit" in frame.headers else None
        self.unacked: dict[int, Stored] = {}

    def has_room(self) -> bool:
        """For one more message, which now comes."""
        if self.credit is None:
            return len(self.unacked) < self.prefetch
        self.credit = max(-1, self.credit - 1)
        return self.credit >= 0


# What a script says about a frame: carry it out (None), or one of these.
IGNORE, CUT, CARRY_OUT_AND_CUT = "ignore", "cut", "carry out and cut"
Script = Callable[["Conversation", Frame], str | bytes | None]


class Conversation:
    """The broker's side of one connection. `script` may answer a frame itself (bytes), or order a fault."""

    def __init__(self, store: Store, script: Script | None = None, passcode: str | None = None) -> None:
        self.store = store
        self.script = script
        self.passcode = passcode
        self.out = bytearray()
        self.closed = False
        self.subscriptions: dict[str, FakeSubscription] = {}
        self.transactions: dict[str, list[Frame]] = {}
        self.taken: dict[str, list[tuple[str, Stored]]] = {}  # transaction → what was acknowledged in it
        self.server_header = "fake/1"
        self.heart_beat = "0,0"
        self._reader = FrameReader()
        store.conversations.append(self)

    def feed(self, data: bytes) -> None:
        self._reader.push(data)
        while not self.closed:
            frame = self._reader.next_frame()
            if frame is None:
                if self._reader.error is not None:
                    self.error("PROTOCOL_ERROR", str(self._reader.error))
                return
            self._on(frame)
            self.store.dispatch()

    def _on(self, frame: Frame) -> None:
        verdict = self.script(self, frame) if self.script else None
        if isinstance(verdict, bytes):
            self.out += verdict
            if verdict.startswith(b"ERROR"):
                self.lose()
            return
        if verdict == IGNORE:
            return
        if verdict == CUT:
            self.lose()
            return
        self.store.frames.append(frame)
        before = len(self.out)
        getattr(self, "on_" + frame.command.lower())(frame)
        if verdict == CARRY_OUT_AND_CUT:
            del self.out[before:]
            self.lose()
            return
        if "receipt" in frame.headers and not self.closed:
            self.out += encode("RECEIPT", [("receipt-id", frame.headers["receipt"])])
        if frame.command == "DISCONNECT":
            self.lose()

    def error(self, code: str, message: str, receipt: str = "") -> None:
        headers = [("message", message), ("code", code)] if code else [("message", message)]
        self.out += encode("ERROR", headers + ([("receipt-id", receipt)] if receipt else []))
        self.lose()

    def lose(self) -> None:
        """The connection is gone: what it held goes back."""
        if self.closed:
            return
        self.closed = True
        self.store.conversations.remove(self)
        for name in list(self.transactions):
            self._give_back(self.taken.pop(name, []))
        self.transactions.clear()
        for subscription in self.subscriptions.values():
            self._give_back([(subscription.destination, stored) for stored in subscription.unacked.values()])
        self.subscriptions.clear()
        self.store.dispatch()

    def _give_back(self, held: list[tuple[str, Stored]]) -> None:
        for destination, stored in held:
            stored.redelivered += 1
            queue = self.store.queues.setdefault(destination, [])
            queue.append(stored)
            queue.sort(key=lambda one: one.seq)

    def dispatch(self) -> None:
        for subscription in self.subscriptions.values():
            queue = self.store.queues.get(subscription.destination, [])
            while queue and subscription.has_room():
                stored = queue.pop(0)
                subscription.unacked[stored.seq] = stored
                headers = [("subscription", subscription.id), ("message-id", f"ID:{stored.seq}")]
                headers += [("destination", subscription.destination), ("ack", f"{subscription.id}:{stored.seq}")]
                headers += [("content-length", str(len(stored.body)))]
                headers += [("redelivered", "true")] if stored.redelivered else []
                headers += [(n, v) for n, v in stored.headers.items() if n != "content-length"]
                self.out += encode("MESSAGE", headers, stored.body)

    # ---- frames

    def on_connect(self, frame: Frame) -> None:
        if self.passcode is not None and frame.headers.get("passcode") != self.passcode:
            self.error("LOGIN_REFUSED", "login or passcode is wrong")
            return
        headers = [("version", "1.2"), ("heart-beat", self.heart_beat), ("server", self.server_header)]
        self.out += encode("CONNECTED", headers)

    def on_send(self, frame: Frame) -> None:
        if "transaction" in frame.headers:
            self.transactions[frame.headers["transaction"]].append(frame)
        else:
            self.store.add(frame)

    def on_subscribe(self, frame: Frame) -> None:
        assert frame.headers["id"] not in self.subscriptions
        self.subscriptions[frame.headers["id"]] = FakeSubscription(frame)

    def on_credit(self, frame: Frame) -> None:
        self.subscriptions[frame.headers["id"]].credit = int(frame.headers["credit"])

    def on_unsubscribe(self, frame: Frame) -> None:
        subscription = self.subscriptions.pop(frame.headers["id"])
        self._give_back([(subscription.destination, stored) for stored in subscription.unacked.values()])

    def on_ack(self, frame: Frame) -> None:
        id, _, seq = frame.headers["id"].rpartition(":")
        subscription = self.subscriptions[id]
        seqs = [int(seq)]
        if subscription.ack == "client":
            seqs = [held for held in subscription.unacked if held <= int(seq)]
        for one in seqs:
            stored = subscription.unacked.pop(one)
            if "transaction" in frame.headers:
                self.taken.setdefault(frame.headers["transaction"], []).append((subscription.destination, stored))
            else:
                self.store.acknowledged.append(stored.body)

    def on_nack(self, frame: Frame) -> None:
        id, _, seq = frame.headers["id"].rpartition(":")
        subscription = self.subscriptions[id]
        stored = subscription.unacked.pop(int(seq))
        if frame.headers.get("requeue") == "true":
            self._give_back([(subscription.destination, stored)])
        else:
            self.store.queues.setdefault("/queue/DLQ", []).append(stored)

    def on_begin(self, frame: Frame) -> None:
        assert frame.headers["transaction"] not in self.transactions
        self.transactions[frame.headers["transaction"]] = []

    def on_commit(self, frame: Frame) -> None:
        name, outcome = frame.headers["transaction"], frame.headers["amq-outcome-id"]
        frames = self.transactions.pop(name, None)
        if frames is not None and outcome in self.store.outcomes:
            self._give_back(self.taken.pop(name, []))
            self.error("ALREADY_COMMITTED", "it took place before", frame.headers["receipt"])
            return
        if frames is None:
            if outcome not in self.store.outcomes:
                self.error("TRANSACTION_ROLLED_BACK", "it did not take place", frame.headers["receipt"])
            return
        for sent in frames:
            self.store.add(sent)
        self.store.acknowledged += [stored.body for _, stored in self.taken.pop(name, [])]
        self.store.outcomes.add(outcome)

    def on_abort(self, frame: Frame) -> None:
        del self.transactions[frame.headers["transaction"]]
        self._give_back(self.taken.pop(frame.headers["transaction"], []))

    def on_disconnect(self, frame: Frame) -> None:
        pass


class Broker:
    """Serves conversations over `store` on 127.0.0.1, until `kill`. Threads end with it."""

    def __init__(
        self,
        store: Store,
        script: Script | None = None,
        passcode: str | None = None,
        port: int = 0,
        cut_sent: int | None = None,
        cut_received: int | None = None,
        heart_beat: str = "0,0",
    ) -> None:
        """`cut_sent`, `cut_received`: the first connection is reset after so many bytes in that direction."""
        self.store = store
        self.script = script
        self.passcode = passcode
        self.heart_beat = heart_beat
        self.accepted = 0
        self._cuts: list[tuple[int | None, int | None]] = [(cut_sent, cut_received)]
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._alive = True
        self._spawn(self._accept)

    @property
    def uri(self) -> str:
        return f"stomp://127.0.0.1:{self.port}"

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="fake-broker")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self.store.lock:
                if not self._alive:
                    sock.close()
                    return
                self.accepted += 1
                self._sockets.add(sock)
                conversation = Conversation(self.store, self.script, self.passcode)
                conversation.heart_beat = self.heart_beat
                wake_in, wake_out = socket.socketpair()
            cuts = self._cuts.pop() if self._cuts else (None, None)
            self._spawn(self._serve, sock, conversation, wake_in, wake_out, *cuts)

    def _serve(
        self,
        sock: socket.socket,
        conversation: Conversation,
        wake_in: socket.socket,
        wake_out: socket.socket,
        cut_sent: int | None,
        cut_received: int | None,
    ) -> None:
        writer = threading.Thread(target=self._write, args=(sock, conversation, wake_in, cut_sent), name="fake-writer")
        writer.start()
        received = 0
        try:
            while data := sock.recv(65536):
                if cut_received is not None and received + len(data) >= cut_received:
                    data = data[: cut_received - received]
                received += len(data)
                with self.store.lock:
                    conversation.feed(data)
                    wakes.add(wake_out)
                    self.wake_all()
                if conversation.closed or received == cut_received:
                    break
        except OSError:
            pass
        finally:
            with self.store.lock:
                conversation.lose()
                self._sockets.discard(sock)
            wake_out.close()
            writer.join()
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def wake_all(self) -> None:
        for wake in list(wakes):
            try:
                wake.send(b"\0")
            except OSError:
                wakes.discard(wake)

    def _write(self, sock: socket.socket, conversation: Conversation, wake_in: socket.socket, cut: int | None) -> None:
        sent = 0
        with wake_in:
            while True:
                more = wake_in.recv(4096)
                with self.store.lock:
                    data = bytes(conversation.out)
                    conversation.out.clear()
                if cut is not None and sent + len(data) >= cut:
                    data, more = data[: cut - sent], b""
                try:
                    sock.sendall(data)
                except OSError:
                    return
                sent += len(data)
                if not more:
                    break
            with self.store.lock:  # before the client sees the end: it may be back before our reader notices
                conversation.lose()
                self.wake_all()
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def drop_connections(self) -> None:
        """Reset every connection; go on listening."""
        with self.store.lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Stop listening, reset every connection, wait for the threads."""
        with self.store.lock:
            self._alive = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


wakes: set[socket.socket] = set()  # of the writers of every connection in this process


class Group:
    """Two addresses, one store, one master."""

    def __init__(self, **broker: Any) -> None:
        self.store = Store()
        self.broker_options = broker
        first, second = Broker(self.store), Broker(self.store)
        self.ports = [first.port, second.port]
        first.kill()
        second.kill()
        self.master = Broker(self.store, port=self.ports[0], **broker)

    @property
    def url(self) -> str:
        uris = ",".join(f"stomp://127.0.0.1:{port}" for port in self.ports)
        return f"failover:({uris})?randomize=false&nested.heartBeat=0"

    def take_over(self) -> None:
        self.master.kill()
        self.start()

    def start(self) -> None:
        self.ports.reverse()
        self.master = Broker(self.store, port=self.ports[0], **self.broker_options)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.master.kill()
