"""The locker on a shared file system. Spec and argument: docs/master-slave.md.

    STORE/lock      byte 2^40: the exclusive lock
                    offset 0: heartbeat of the holder; offset 64 KiB: release mark, the last act of a master
    STORE/claim     the broker that got the lock last, written once by each candidate
    STORE/epochs/   see `epoch`

Invariants:
- The claim of a master is written before its epoch exists and never again. So once a candidate's claim is durable, no
  check that the master starts later succeeds, whatever happens to the lock or to its file.
- The candidate reads the newest epoch number before it claims and links exactly the next one.
- A descriptor on which ownership was lost is closed, never locked or written again.
- One descriptor of `lock` stays open between polls: its close would wake every other slave through inotify.
"""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from amq.core.errors import AmqError, CorruptError, NewerFormatError, OwnershipLostError, StoreError, StoreFullError
from amq.doors.clock import Clock
from amq.store.document import decode, encode, read_all
from amq.store.epoch import (
    EPOCHS_DIRECTORY,
    Epoch,
    link_epoch,
    make_epochs_directory,
    newest_number,
    prune_epochs,
    read_newest_epoch,
)
from amq.store.files.vfs import FULL_ERRNOS, LOCKLESS_ERRNOS, LockPlace, Vfs, write_all
from amq.store.host import Host, Owner, is_here, provably_gone
from amq.store.lease import Lease
from amq.store.locker import LockerEvent, LockerState, Term, next_state
from amq.store.segment_log import NotAFileError

LOCK_FILE = "lock"
CLAIM_FILE = "claim"
RECORD_BYTES = 4096
HEARTBEAT_OFFSET = 0
RELEASE_OFFSET = 64 << 10
CLOCK_DRIFT_MAX = 0.01
GONE_POLL_S = 0.01
_UNUSABLE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


class SharedFileLocker:
    """Locker on `store_directory`, for the broker `owner`. One thread at a time, except `abandon`.

    An owner that finds its own uuid in the newest epoch does not wait: make a second locker for one owner only when the
    first was released or abandoned.
    """

    def __init__(
        self,
        vfs: Vfs,
        clock: Clock,
        host: Host,
        store_directory: str,
        owner: Owner,
        door_to: Callable[[LockPlace], Vfs] | None = None,
    ) -> None:
        """`door_to(place)` leads to the store as brokers see it whose lock is there; it may raise ConfigError."""
        self.owner = owner
        self._vfs = vfs
        self._door_to = door_to or (lambda _place: vfs)
        self._clock = clock
        self._host = host
        self._store = store_directory
        self._lock_path = os.path.join(store_directory, LOCK_FILE)
        self._claim_path = os.path.join(store_directory, CLAIM_FILE)
        self._state = LockerState.UNLOCKED
        self._fd: int | None = None
        self._claim = b""
        self._epoch: Epoch | None = None
        self._lease: Lease | None = None
        self._attempts = 0
        self._heartbeats = 0
        self._missing_since: float | None = None
        self._replaced = ""  # why this lock file is not the one of the last master
        self._signed = -math.inf
        self._doomed = False
        self._busy = threading.Lock()  # held while a call of this locker runs; never waited for

    @property
    def state(self) -> LockerState:
        return self._state

    def try_acquire(self) -> bool:
        """Try once, without waiting, to get the lock; False where somebody else has it.

        Raises StoreError where a person must act, OSError where it may work later.
        """
        with self._call():
            next_state(self._state, LockerEvent.LOCK)
            try:
                for _ in range(2):
                    if not self._open() or not self._try_lock(self._held_fd()):
                        return False
                    if self._in_place(self._held_fd()):
                        self._replaced = ""
                        self._enter(LockerEvent.LOCK)
                        return True
                    self._close()  # we locked a file that is no longer at the path
            except BaseException:
                self._close()
                raise
            return False

    def check_place(self) -> None:
        """Raises StoreError where brokers of this store may have their lock elsewhere, OSError."""
        with suppress(CorruptError, NewerFormatError):  # the takeover judges it
            previous = read_newest_epoch(self._vfs, self._store)
            self._check_place(previous, self._wait_for(previous)[0])

    def can_replace(self) -> bool:
        """Whether `replace` works on this file system. Raises OSError."""
        return self._vfs.frees_names(self._store)

    def replace(self, silent_s: float, goes_on: Callable[[], bool]) -> bool:
        """Put a separate lock file in the place of one whose holder has given no sign of life for `silent_s` seconds.
        True = the lock is ours; False where the holder, or another broker, was quicker.

        `goes_on()` looks once more, after this broker has proved its own view: the store takes a name that it makes,
        and lists the epochs afresh. Raises StoreError, OSError.
        """
        with self._call():
            next_state(self._state, LockerEvent.LOCK)
            try:
                newest = read_newest_epoch(self._vfs, self._store, f".{self.owner.uuid}.probe")
                if not goes_on():
                    return False
                self._close()
                with suppress(FileNotFoundError):
                    self._vfs.unlink(self._lock_path)
                self._fd = self._make_locked()
                if self._fd is None:
                    return False
                self._vfs.fsync_directory(self._store)
            except BaseException:
                self._close()
                raise
            who = newest.owner.describe() if newest is not None else "its holder"
            self._replaced = f"{who} gave no sign of life for {silent_s:.1f} s: its lock file was replaced"
            self._enter(LockerEvent.LOCK)
            return True

    def holder(self) -> str:
        """The writer of the last heartbeat, for the log; "" = unknown."""
        try:
            body = read_record(self._vfs, self._lock_path, "heartbeat", HEARTBEAT_OFFSET)
            return Owner.from_json(body["owner"], self._lock_path).describe(self.owner) if body else ""
        except (AmqError, OSError, LookupError, AttributeError):
            return ""  # being written just now, or not ours to judge: the caller only wants a name to print

    def release_mark(self) -> dict[str, Any] | None:
        """The release mark of the newest epoch, where it says more than that the epoch is over; None = no such mark, or
        none that can be read. Raises OSError.
        """
        try:
            mark = read_record(self._vfs, self._lock_path, "release", RELEASE_OFFSET)
            if mark is None or not (mark.get("to") or mark.get("failover") is False):
                return None
            newest = read_newest_epoch(self._vfs, self._store)
        except (FileNotFoundError, AmqError):
            return None
        if newest is None or (mark.get("epoch"), mark.get("uuid")) != (newest.number, newest.owner.uuid):
            return None
        return mark

    def take_over(
        self, pause: Callable[[float], bool], seal: Callable[[Epoch | None], Mapping[str, int]]
    ) -> Term | None:
        """With the lock: claim, wait, seal, link the next epoch. None where `pause(seconds)` returned True.

        `seal(previous)` returns {segment name: sealed length} of every segment in the store, each fsynced before it was
        measured; what `previous.sealed` names keeps its length, what is older than `previous` and not named there has
        length 0. Raises OwnershipLostError (another broker won), StoreError, OSError. Unless a Term is returned
        the lock is given up.
        """
        with self._call():
            next_state(self._state, LockerEvent.CLAIM)
            mastership = None
            try:
                mastership = self._take_over(pause, seal)
            except OSError as error:
                if error.errno in FULL_ERRNOS:
                    raise StoreFullError(
                        f"no room in {self._store} for a claim and an epoch file: free some space there and try again"
                    ) from error
                raise
            finally:
                if mastership is None:
                    self._let_go()
        if mastership is not None:
            try:
                mastership.lease.check()
                prune_epochs(self._vfs, self._store, mastership.epoch)
            except BaseException:
                self.abandon()
                raise
        return mastership

    def claim(self) -> None:
        """With the lock, before a takeover: make a claim of ours the newest one. No check of an older master that
        starts later succeeds, and a store that fences takes changes of this broker from now on. The takeover claims
        again. Raises OwnershipLostError, OSError.
        """
        with self._call():
            next_state(self._state, LockerEvent.CLAIM)
            self._attempts += 1
            self._put_claim(0, f"{self.owner.uuid}-{self._attempts}")

    def sign(self) -> None:
        """A sign of life of a candidate that waits or seals, to be called now and then: a heartbeat, three times a
        period at most. Raises OwnershipLostError, OSError.
        """
        assert self._state in (LockerState.CLAIMED, LockerState.EXPIRED)
        now = self._clock.monotonic()
        if now >= self._signed + self.owner.lock_keep_alive_period_s / 3:
            self._signed = now
            self._heartbeat()

    def prove(self) -> None:
        """A lease check proves, in this order: the path leads to our lock (else it is regained), a heartbeat goes
        through the locked descriptor, the newest claim is ours, no newer epoch exists. Raises OwnershipLostError,
        OSError.
        """
        with self._call():
            self._prove()

    def release(self, to: str = "", failover: bool = True) -> None:
        """Hand over: as master leave the durable mark "epoch over, all is written", then unlock. The mark also says to
        which broker, "" = any, and whether slaves may take over. Raises OwnershipLostError, OSError; the lock is given
        up in any case."""
        with self._call():
            next_state(self._state, LockerEvent.RELEASE)
            try:
                if self._lease is not None:
                    self._lease.revoke()
                if self._state is LockerState.MASTER and self._epoch is not None:
                    body = {
                        "epoch": self._epoch.number,
                        "uuid": self.owner.uuid,
                        "wall_ms": self._clock.wall_ms(),
                        "to": to,
                        "failover": failover,
                    }
                    self._write_record(self._held_fd(), "release", body, RELEASE_OFFSET)
            finally:
                self._let_go(LockerEvent.RELEASE)

    def abandon(self) -> bool:
        """Fence: revoke the lease at once, then close all and write nothing. Any thread; never waits for a call that
        hangs.

        False = such a call still hangs in the store: replace the process, or wait until it returns and closes by
        itself. The close itself may hang, too: where that must not be, call `lease.revoke()` first, which touches no
        store.
        """
        lease = self._lease
        if lease is not None:
            lease.revoke()
        self._doomed = True
        return self._bury()

    # -- takeover ----------------------------------------------------------------------------------------------------

    def _take_over(
        self, pause: Callable[[float], bool], seal: Callable[[Epoch | None], Mapping[str, int]]
    ) -> Term | None:
        self._attempts += 1
        attempt = f"{self.owner.uuid}-{self._attempts}"
        make_epochs_directory(self._vfs, self._store)
        previous = read_newest_epoch(self._vfs, self._store, f".{self.owner.uuid}.probe")  # before the claim
        number = previous.number + 1 if previous is not None else 1
        wait_s, reason = self._wait_for(previous)
        place = self._check_place(previous, wait_s)
        self._write_claim(number, attempt)
        claimed = self._clock.monotonic()
        # A killed process frees its lock a moment before it is gone: on one host look again instead of waiting it out.
        old = previous.owner if previous is not None and is_here(previous.owner, self._host) else None
        step_s = GONE_POLL_S if old is not None else self.owner.lock_keep_alive_period_s / 3
        while (left_s := claimed + wait_s - self._clock.monotonic()) > 0:
            self.sign()  # the lease that it waits for may be longer than the time-out of others
            if pause(min(left_s, step_s)):
                return None
            self._go_on()
            if old is not None and provably_gone(old, self._host):
                reason = f"{old.describe()} is gone from this host"
                break
        waited_s = self._clock.monotonic() - claimed
        self._prove()
        self._enter(LockerEvent.EXPIRE)
        try:
            sealed = dict(seal(previous))
        except StoreError:
            # Somebody who overtook us changes the store, before our claim or after it: no damage, but our loss.
            self._prove()
            newest = read_newest_epoch(self._vfs, self._store, f".{self.owner.uuid}.probe")
            if newest is not None and newest.number >= number:
                raise OwnershipLostError(f"another broker took epoch {newest.number}") from None
            raise
        if previous is not None:
            assert all(previous.sealed.get(name, end) == end for name, end in sealed.items()), "a seal was broken"
        self._go_on()
        reason = "; ".join(filter(None, (self._replaced, reason)))
        epoch = Epoch(number, self.owner, sealed, self._clock.wall_ms(), reason, lock=place)
        if not link_epoch(self._vfs, self._store, epoch, attempt):
            raise OwnershipLostError(f"another broker took epoch {number}")
        self._epoch = epoch
        self._enter(LockerEvent.LINK)
        self._lease = Lease(self.prove, self._clock, self.owner.lock_keep_alive_period_s)
        return Term(epoch, previous, self._lease, waited_s if wait_s else 0.0)

    def _wait_for(self, previous: Epoch | None) -> tuple[float, str]:
        """Seconds after our claim until the owner of `previous` can confirm nothing any more, and why so."""
        if previous is None:
            return 0.0, "first start of this store"
        owner = previous.owner
        if owner.uuid == self.owner.uuid:
            return 0.0, "this broker gave its own last epoch up"  # `_let_go` revoked that lease
        if self._released(previous):
            return 0.0, f"{owner.describe()} released epoch {previous.number}"
        if provably_gone(owner, self._host):
            return 0.0, f"{owner.describe()} is gone from this host"
        if self._vfs.fences(self._store):
            return 0.0, f"the claim shuts {owner.describe()} out of the store"
        wait_s = owner.lock_keep_alive_period_s * (1 + CLOCK_DRIFT_MAX)
        return wait_s, f"the lease of {owner.describe()} ran out"

    def _check_place(self, previous: Epoch | None, wait_s: float) -> LockPlace:
        """Where our claim stands. A master that looks for claims elsewhere does not see it, so its lease would not end:
        it must be over, which `wait_s` = 0 says. Raises StoreError, OSError."""
        place = self._vfs.lock_place(self._store)
        if previous is not None and wait_s and previous.lock.identity != place.identity:
            raise StoreError(
                f"the last master of {self._store}, {previous.owner.describe(self.owner)}, had its lock in "
                f"{previous.lock.describe()}, this broker has it in {place.describe()}: give all brokers the same "
                "`locker`; to change it, stop all of them in good order first",
                code="LOCK_ELSEWHERE",
            )
        return place

    def _released(self, epoch: Epoch) -> bool:
        """Whether the owner of `epoch` left its mark. A mark that cannot be read is none: we wait."""
        same = epoch.lock.identity == self._vfs.lock_place(self._store).identity
        try:
            vfs = self._vfs if same else self._door_to(epoch.lock)
            body = read_record(vfs, self._lock_path, "release", RELEASE_OFFSET)
        except (AmqError, FileNotFoundError):
            return False
        except OSError:
            if same:
                raise
            return False  # that database may be gone for ever
        return body is not None and (body.get("epoch"), body.get("uuid")) == (epoch.number, epoch.owner.uuid)

    def _write_claim(self, number: int, attempt: str) -> None:
        self._put_claim(number, attempt)
        self._enter(LockerEvent.CLAIM)
        self._go_on()

    def _put_claim(self, number: int, attempt: str) -> None:
        """Make our claim the newest one, durably."""
        self._claim = encode("claim", {"epoch": number, "attempt": attempt, "name": self.owner.name}, RECORD_BYTES)
        assert len(self._claim) == RECORD_BYTES
        created = False
        try:
            fd = self._vfs.open(self._claim_path, os.O_WRONLY)
        except FileNotFoundError:
            fd = self._vfs.open(self._claim_path, os.O_WRONLY | os.O_CREAT)
            created = True
        try:
            write_all(self._vfs, fd, self._claim, 0)
            self._vfs.fsync(fd)
        finally:
            self._vfs.close(fd)
        if created:
            self._vfs.fsync_directory(self._store)

    # -- proof -------------------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        if not self._in_place(self._held_fd()):
            self._regain()
        self._heartbeat()
        self._check_claim()
        if self._epoch is not None:
            self._check_epoch(self._epoch.number)
        self._go_on()

    def _heartbeat(self) -> None:
        self._go_on()
        self._heartbeats += 1
        body = {
            "owner": self.owner.to_json() | {"transport_urls": []},
            "epoch": self._epoch.number if self._epoch is not None else 0,
            "count": self._heartbeats,
            "wall_ms": self._clock.wall_ms(),
        }
        self._write_record(self._held_fd(), "heartbeat", body, HEARTBEAT_OFFSET)

    def _check_claim(self) -> None:
        """Any byte that is not of our claim is somebody else's claim, or the torn beginning of one."""
        self._go_on()
        try:
            fd = self._vfs.open(self._claim_path, os.O_RDONLY)
        except FileNotFoundError:
            raise OwnershipLostError(f"{self._claim_path} was removed: nobody can tell who claimed the store") from None
        try:
            found = read_all(self._vfs, fd, RECORD_BYTES, 0)
        finally:
            self._vfs.close(fd)
        if found != self._claim:
            raise OwnershipLostError(f"another broker claimed the store: {_claimant(found, self._claim_path)}")

    def _check_epoch(self, own: int) -> None:
        self._go_on()
        number = newest_number(self._vfs.listdir(os.path.join(self._store, EPOCHS_DIRECTORY)))
        if number != own:
            raise OwnershipLostError(f"newest epoch is {number}, ours is {own}: another broker is master")

    def _regain(self) -> None:
        """The path leads to no file or another one than we hold: get the lock of the file that is there. The claim,
        which is checked next, decides whether another broker was quicker and acts on it."""
        if self._state is not LockerState.MASTER:
            raise OwnershipLostError(f"{self._lock_path} was removed or replaced while this broker took over")
        self._go_on()
        self._close()
        self._fd = self._make_locked()
        if self._fd is None:
            self._fd = self._vfs.open(self._lock_path, os.O_RDWR | os.O_CREAT)
        if not self._try_lock(self._fd) or not self._in_place(self._fd):
            raise OwnershipLostError(f"{self._lock_path} was removed or replaced and another broker locked it first")
        self._vfs.fsync_directory(self._store)
        self._enter(LockerEvent.REGAIN)

    def _make_locked(self) -> int | None:
        """A new lock file that is locked before it has its name: slaves that wake when it appears come too late. None =
        there is one already."""
        temporary = f"{self._lock_path}.{self.owner.uuid}"
        fd = self._vfs.open(temporary, os.O_RDWR | os.O_CREAT)
        try:
            if self._try_lock(fd):
                self._vfs.link(temporary, self._lock_path)
                return fd
        except FileExistsError:
            pass
        except BaseException:
            self._vfs.close(fd)
            raise
        finally:
            self._vfs.unlink(temporary)
        self._vfs.close(fd)
        return None

    # -- the lock file -----------------------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Hold a descriptor of the file to which the path leads. False = missing, and left to its master for now."""
        try:
            found = self._vfs.stat(self._lock_path)
        except FileNotFoundError:
            found = None
        if self._fd is not None and (found is None or _identity(found) != _identity(self._vfs.fstat(self._fd))):
            self._close()
        if self._fd is None:
            if found is None and self._leave_to_master():
                return False
            self._fd = self._open_or_create()
        self._missing_since = None
        return True

    def _leave_to_master(self) -> bool:
        """A master whose lock file was removed makes it again within a period: do not race with it for that long."""
        newest = read_newest_epoch(self._vfs, self._store)
        if newest is None or newest.owner.uuid == self.owner.uuid or provably_gone(newest.owner, self._host):
            return False
        now = self._clock.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since < newest.owner.lock_keep_alive_period_s

    def _open_or_create(self) -> int:
        try:
            try:
                return self._vfs.open(self._lock_path, os.O_RDWR)
            except FileNotFoundError:
                fd = self._vfs.open(self._lock_path, os.O_RDWR | os.O_CREAT)
                self._vfs.fsync_directory(self._store)
                return fd
        except NotAFileError as error:
            raise StoreError(f"{self._lock_path} {error.strerror}", code="LOCK_FILE_UNUSABLE") from error
        except OSError as error:
            if error.errno in _UNUSABLE_ERRNOS:
                raise StoreError(
                    f"{self._lock_path} cannot be opened for writing ({error.strerror}): give this broker's user write "
                    f"access to the store, and mount it read-write",
                    code="LOCK_FILE_UNUSABLE",
                ) from error
            raise

    def _try_lock(self, fd: int) -> bool:
        try:
            return self._vfs.try_lock(fd)
        except OSError as error:
            if error.errno in LOCKLESS_ERRNOS:
                raise StoreError(
                    f"the file system of {self._lock_path} refuses locks ({error.strerror}): mount it with locking "
                    f"(NFSv4 brings its own; NFSv3 needs statd, and no 'nolock')",
                    code="LOCKS_UNSUPPORTED",
                ) from error
            raise

    def _in_place(self, fd: int) -> bool:
        """Whether the path leads to the file of `fd`. Opened afresh: `stat` may answer from a cache."""
        try:
            fresh = self._vfs.open(self._lock_path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return _identity(self._vfs.fstat(fresh)) == _identity(self._vfs.fstat(fd))
        finally:
            self._vfs.close(fresh)

    def _write_record(self, fd: int, kind: str, body: Mapping[str, object], offset: int) -> None:
        data = encode(kind, body, RECORD_BYTES)
        assert len(data) == RECORD_BYTES
        write_all(self._vfs, fd, data, offset)
        self._vfs.fsync(fd)

    # -- one call at a time, and its end -----------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise OwnershipLostError("an earlier call of this locker still hangs in the store")
        try:
            self._go_on()
            yield
        finally:
            self._busy.release()
            if self._doomed:
                self._bury()

    def _go_on(self) -> None:
        if self._doomed:
            raise OwnershipLostError("this broker was fenced")

    def _bury(self) -> bool:
        """Close what a doomed locker holds, unless a call is running: that one does it at its end."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            if self._doomed:
                self._let_go()
                self._doomed = False
        finally:
            self._busy.release()
        return True

    def _let_go(self, event: LockerEvent = LockerEvent.ABANDON) -> None:
        if self._lease is not None:
            self._lease.revoke()
        self._lease = None
        self._epoch = None
        self._claim = b""
        self._close()
        self._enter(event)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):  # the descriptor is gone either way, and what it could still write does not count
                self._vfs.close(fd)

    def _held_fd(self) -> int:
        if self._fd is None:
            raise OwnershipLostError("the lock was given up")
        return self._fd

    def _enter(self, event: LockerEvent) -> None:
        self._state = next_state(self._state, event)


def read_record(vfs: Vfs, path: str, kind: str, offset: int) -> dict[str, Any] | None:
    """The record of `kind` at `offset` of `path`, opened afresh; None where none was written.

    Raises CorruptError (torn, or being written just now), NewerFormatError, OSError.
    """
    fd = vfs.open(path, os.O_RDONLY)
    try:
        data = read_all(vfs, fd, RECORD_BYTES, offset)
    finally:
        vfs.close(fd)
    return decode(kind, data, path, offset) if data.strip(b"\0") else None


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _claimant(data: bytes, path: str) -> str:
    try:
        body = decode("claim", data, path)
    except CorruptError:
        return "the claim is not whole"
    except StoreError as error:
        return error.description
    return f"broker {body.get('name')!r} for epoch {body.get('epoch')}"
