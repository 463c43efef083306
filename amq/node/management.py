"""The management socket of this process: where it is, and what it tells of a broker that serves or waits."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus

import structlog

import amq
from amq.broker.events import RoleChanged
from amq.config import BrokerConfig
from amq.core.errors import AmqError, ConfigError
from amq.doors.clock import SystemClock
from amq.management.consoles import Announced
from amq.management.counting import Counting
from amq.management.history import History
from amq.management.listing import Row
from amq.management.probes import READY, Health, told
from amq.management.rates import EVERY_S, Rates
from amq.management.resources import Resources, Serving
from amq.management.routes import ROUTES
from amq.management.server import ManagementServer
from amq.management.slices import Slices
from amq.management.views import counted
from amq.node.member import Member
from amq.security.login import Authenticate, Claim, Login
from amq.security.permissions import Permissions
from amq.store.name import real_name

NONE, AUTO = "none", "auto"  # values of managementSocket
NAME_CHARS_MAX = 40
_log = structlog.get_logger("amq.management")


def socket_path(config: BrokerConfig, name: str, environment: Mapping[str, str]) -> str:
    """Where the socket of the broker `name` belongs; "" = nowhere."""
    if config.management_socket == NONE:
        return ""
    if config.management_socket != AUTO:
        return os.path.abspath(config.management_socket)
    directory = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0] or environment.get("XDG_RUNTIME_DIR", "")
    directory = os.path.join(directory, "amq") if directory else f"/tmp/amq-{os.geteuid()}"
    text = f"{os.path.realpath(config.store)}\0{name}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return os.path.join(directory, f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:NAME_CHARS_MAX]}-{digest}.sock")


class OwnManagement:
    """Made before the members start: others learn the path from `brokers/NAME.json`."""

    def __init__(
        self,
        config: BrokerConfig,
        members: Mapping[str, Member],
        environment: Mapping[str, str],
        authenticate: Authenticate,
        users: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`members` by the names of their stores; `users()` = the names of the users file."""
        self._path = socket_path(config, config.name or os.uname().nodename, environment)
        self._is_own_choice = config.management_socket == AUTO
        self._slices = Slices(SystemClock())
        self.stores = {name: Managed(member, authenticate, users) for name, member in members.items()}
        self.resources = Resources(self.stores, self._slices, ROUTES)
        self._server: ManagementServer | None = None

    async def start(self) -> None:
        """Serve. A process that cannot goes on without."""
        if not self._path:
            return
        server = ManagementServer(self._path, self.resources, self._slices)
        try:
            if self._is_own_choice:
                make_directory(os.path.dirname(self._path))
            await server.start()
        except ConfigError as error:
            why = error.description
            _log.warning("no management socket: the commands of operators and the console cannot ask", reason=why)
            return
        self._server = server
        for name, store in self.stores.items():
            store.start(self._path, partial(server.forget, name), server.make_trusted)
        _log.info("management socket", path=self._path)

    async def close(self) -> None:
        for store in self.stores.values():
            await store.close()
        if self._server is not None:
            await self._server.close()


class Managed:
    """The view that management has of one member: a `ManagedMember` of `amq.management.resources`."""

    def __init__(self, member: Member, authenticate: Authenticate, users: Callable[[], Sequence[str]]) -> None:
        self._service = member
        self._authenticate = authenticate
        self._clock = SystemClock()
        self._users = users
        self._counting = Counting(member.events, self._clock)
        self.history = History(member.events, self._clock, self._epoch)
        self.rates = Rates(self._clock, Slices(self._clock))
        self.announced = Announced(self._clock)
        self._sampling: asyncio.Task[None] | None = None

    def start(self, path: str, forget: Callable[[], None], make: Callable[[], asyncio.Protocol]) -> None:
        """Its management is at the socket `path`, and `make` makes its protocol for those who know the secret of a
        cluster. `forget()` is called when its role changes."""
        self._counting.start()
        self._sampling = asyncio.create_task(self._sample())
        self._service.management = path
        self._service.manager = make
        self._service.console = self.announced.url
        self._service.events.listen(RoleChanged, lambda _: forget())

    async def close(self) -> None:
        self._counting.close()
        if self._sampling is not None:
            self._sampling.cancel()
            with suppress(asyncio.CancelledError):
                await self._sampling

    async def _sample(self) -> None:
        """Keep the history of the rates. It ends with an error where that is a bug: the broker goes on."""
        while True:
            await asyncio.sleep(EVERY_S - self._clock.monotonic() % EVERY_S)
            master, facts = self._service.master, self._counting.facts()
            try:
                if master is None:
                    await self.rates.sample(None, None, self._service.lag.messages)
                else:
                    forgotten = facts["forgotten_enqueued"], facts["forgotten_dequeued"]
                    await self.rates.sample(counted(master.broker), master.epoch, 0, forgotten)
            except Exception:
                _log.exception("the rates are not sampled any more")
                raise

    # -- ManagedMember ------------------------------------------------------------------------------------------------

    @property
    def serving(self) -> Serving | None:
        return self._service.master

    @property
    def config(self) -> BrokerConfig:
        return self._service.config

    @property
    def users(self) -> Sequence[str]:
        return self._users()

    @property
    def permissions(self) -> Permissions | None:
        return self._service.permissions

    def _epoch(self) -> int | None:
        return self._service.master.epoch if self._service.master is not None else None

    @property
    def audits(self) -> bool:
        return self._service.config.audit_log != "none"

    def facts(self) -> Row:
        service = self._service
        master, lease, found = service.master, service.lease, self._counting.facts()
        found["takeover"] = service.takeovers.to_json()
        if master is not None and lease is not None:
            found["lease_left_s"] = max(0.0, lease.deadline - self._clock.monotonic())
            found["lease_renewals"] = lease.renewals
            found["logins"], found["turned_away"] = dict(master.door.logins), dict(master.door.turned_away)
        return found

    async def login(self, claim: Claim, address: str) -> Login:
        """Wrong ones count as those at the ports of this broker do, and together with them."""
        door, peer = self._service.door, f"{address} (console)"
        check, missed = partial(door.check, address), partial(door.refused, claim.login, address, peer)
        try:
            check()
            return await self._authenticate(replace(claim, check=check, missed=missed))
        except AmqError as error:
            missed(error)
            raise

    def health(self) -> Row:
        service, role = self._service, self._service.role.value
        status, text = told(READY, Health(role, service.not_ready))
        is_well = status == HTTPStatus.OK
        return {
            "store": real_name(service.config.store),
            "broker": service.config.name or os.uname().nodename,
            "role": role,
            "healthy": is_well,
            "reason": "" if is_well else text,
        }

    def status(self) -> Row:
        service = self._service
        master, config = service.master, service.config
        found: Row = {
            "name": config.name or os.uname().nodename,
            "role": service.role.value,
            "store": config.store,
            "version": amq.__version__,
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "process": self._counting.process(),
        }
        if master is not None:
            return {
                **found,
                "epoch": master.epoch,
                "urls": list(master.urls),
                "store_full": master.full,
                "lease_left_s": service.lease_left_s,
            }
        lag = service.lag
        return {
            **found,
            "lag": {
                "place": lag.place,
                "messages": lag.messages,
                "caught_up_wall_ms": lag.caught_up_wall_ms,
            },
        }


def make_directory(path: str) -> None:
    """Make a directory that is ours alone, where it is missing. Raises ConfigError."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileExistsError):  # of an earlier start
            os.mkdir(path, 0o700)
        found = os.lstat(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; set managementSocket") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{path} must be a directory of this user alone (mode 700): correct it, or set managementSocket"
        )
