"""Node: this process, with a member for each store in which it takes part, and with all that its members share.

Besides what every service has (`amq.node.service`), the node owns garbage collection, permissions, the management
sockets, the log context, and the end of the process. A member owns nothing of that (`amq.node.member`).

With one member the node does for it what the safety argument wants: where a thread hangs in the store, or fails by a
bug, the whole process ends, and with it every lock. Invariant with several: no member ends another one. Where a thread
of one hangs, its clients are cut off as ever, and the process is replaced as soon as no other member is master; where a
thread of one fails, that member stops. Lines of the log then say of which store they speak.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from amq.broker.events import JournalRead, RoleChanged
from amq.config.option import OptionScope
from amq.config.schema import OPTIONS, BrokerConfig
from amq.core.errors import AmqError, ConfigError
from amq.doors.threads import SystemThreads
from amq.node import permissions, process
from amq.node.live import Files
from amq.node.management import OwnManagement
from amq.node.member import Hosting, Member, Role
from amq.node.permissions import OwnPermissions
from amq.node.probes import OwnProbes, worst
from amq.node.service import PLAIN, Readers, Service, Source
from amq.security.permissions import Permissions
from amq.store.name import full_name

_log = structlog.get_logger("amq.process")


class _Resident(NamedTuple):
    """A member, and its log context, which names its store where there are several."""

    member: Member
    context: Context


class Node(Service):
    """`members` by the names of their stores, from the first to the last one. Used on one event loop.

    `doors` = by name of the store, those of its member that are not the usual ones.
    """

    def __init__(
        self,
        configs: Sequence[BrokerConfig],
        sources: Sequence[Source] = (),
        readers: Readers = PLAIN,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        configure_log: Callable[[BrokerConfig], None] = lambda _: None,
        doors: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """The options of the node are those of the first of `configs`. Raises ConfigError."""
        check_shared(configs)
        super().__init__(configs[0], readers, configure_log)
        self.members: dict[str, Member] = {}
        self._permissions = OwnPermissions(self.config, self._post_permit, readers.permissions)
        self._files["permissions"] = Files(
            permissions.KEYS, self._permissions.read, lambda config: (config.permissions_file,)
        )
        self._residents: list[_Resident] = []
        self._hung: dict[Member, None] = {}
        for config, name in zip(configs, store_names(configs), strict=True):
            source = sources[len(self.members)] if sources else None
            self._add(name, config, source, len(configs) == 1, doors.get(name, {}))
        self.management = OwnManagement(
            self.config, self.members, environment, self._gate.authenticate, lambda: self._gate.names
        )
        self._probes = OwnProbes(self.config.probe_listen, partial(worst, tuple(self.members.values())))
        self._ready = False

    def _add(
        self,
        name: str,
        config: BrokerConfig,
        source: Source | None,
        alone: bool,
        doors: Mapping[str, Any],
    ) -> None:
        threads = SystemThreads() if alone else process.GuardedThreads(lambda thread: member.thread_failed(thread))
        hosting = Hosting(
            lambda: self._hangs(member),
            process.no_collection,
            self._entrance,
            alone,
            self._certificate.credentials,
            self._permissions.current,
        )
        member: Member = Member(config, self._gate.authenticate, **{"threads": threads, "hosting": hosting, **doors})
        member.events.listen(RoleChanged, partial(self._on_role, member))
        member.events.listen(JournalRead, partial(self._on_reading, f"{name}: " if not alone else ""))
        context = copy_context()
        if not alone:
            context.run(structlog.contextvars.bind_contextvars, store=config.store, broker=config.name)
        self._read_again(config, source, partial(self._post_apply, len(self._residents)))
        self._residents.append(_Resident(member, context))
        self.members[name] = member

    # -- from start to end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Every member begins to compete for its store."""
        self._loop = asyncio.get_running_loop()
        rights = self._permissions.current
        self._warn(rights.warnings if rights is not None else ())
        await self._probes.start()
        await self.management.start()
        for each in self._residents:
            await self._loop.create_task(each.member.start(), context=each.context)

    async def _begin_to_stop(self) -> None:
        await asyncio.gather(*(member.stop() for member in self.members.values()))

    async def ended(self) -> AmqError | None:
        """Wait until all members have stopped. Returns why the first one did that failed, None = none has."""
        await asyncio.gather(*(member.wait_for(Role.STOPPED) for member in self.members.values()))
        await self._probes.close()
        await self.management.close()
        self._gate.close()
        return next((member.failure for member in self.members.values() if member.failure is not None), None)

    # -- what members do to the process -------------------------------------------------------------------------------

    def _on_role(self, member: Member, event: RoleChanged) -> None:
        role = Role(event.role)
        if role is Role.MASTER:
            process.keep_loaded_objects()
        elif role is Role.SLAVE or len(self.members) > 1:
            process.drop_loaded_objects()
            if self._masters():
                process.keep_loaded_objects()
        if role is not Role.MASTER:
            self._hung.pop(member, None)
        if self._hung:
            self._replace_process()
        if role is Role.STOPPED and member.failure is not None and len(self.members) > 1:
            _log.error("member stopped", reason=member.failure.description, code=member.failure.code)
        self._report(f"STATUS={'; '.join(map(self._status, self.members))}")

    def _masters(self) -> list[str]:
        """Names of the stores that are served."""
        return [name for name, each in self.members.items() if each.role is Role.MASTER and each not in self._hung]

    def _hangs(self, member: Member) -> None:
        """A thread of `member` hangs in its store. Called by the watchdog of the member."""
        self._hung[member] = None
        self._replace_process()

    def _replace_process(self) -> None:
        others = self._masters()
        if others:
            _log.critical("a thread hangs in a store: the process stays for the others that it serves", others=others)
        else:
            _log.critical("a thread hangs in the store: replacing the process")
            process.replace_process()

    # -- the service manager ------------------------------------------------------------------------------------------

    def _status(self, name: str) -> str:
        member = self.members[name]
        text = member.role.value
        if member.role is Role.MASTER and member.master is not None:
            text = f"master, serving {', '.join(member.master.urls)}"
        elif member.role is Role.SLAVE:
            text = "slave, waiting for the lock"
        return text if len(self.members) == 1 else f"{name}: {text}"

    def _report(self, status: str) -> None:
        roles = {member.role for member in self.members.values()} - {Role.STOPPED}
        if not roles:
            return
        wanted = {Role.MASTER} if self.config.wait_for_activation else {Role.MASTER, Role.SLAVE}
        ready = not self._ready and roles <= wanted
        process.notify(f"READY=1\n{status}" if ready else status)
        self._ready = self._ready or ready

    def _on_reading(self, whose: str, event: JournalRead) -> None:
        percent = min(100, 100 * event.read_bytes // max(1, event.of_bytes))
        left = f"about {event.left_s:.0f} s left"
        process.notify(f"STATUS={whose}taking over: {percent} % of the journal is read, {left}")

    # -- files that are read again ------------------------------------------------------------------------------------

    def _post_permit(self, permissions: Permissions | None) -> None:
        with suppress(RuntimeError):  # as below
            for each in self._residents:
                self._loop.call_soon_threadsafe(each.member.permit, permissions, context=each.context)

    def _post_apply(self, index: int, config: BrokerConfig) -> None:
        with suppress(RuntimeError):  # the event loop is closed: the broker has ended meanwhile
            self._loop.call_soon_threadsafe(self._apply, index, config, context=self._residents[index].context)

    def _apply(self, index: int, config: BrokerConfig) -> None:
        if index == 0:
            self._take(config)
        self._residents[index].member.reconfigure(config)


def check_shared(configs: Sequence[BrokerConfig]) -> None:
    """Raises ConfigError where configurations of one node want different things of it."""
    own = {"transports", "advertisedTransports"}  # each member has its own
    shared = [option for option in OPTIONS if option.scope is OptionScope.NODE and option.key not in own]
    for config in configs[1:]:
        differ = [option.key for option in shared if config.get(option) != configs[0].get(option)]
        if differ:
            raise ConfigError(
                f"the brokers on {configs[0].store} and {config.store} share a process: give both the same value of "
                f"{', '.join(differ)}"
            )


def store_names(configs: Sequence[BrokerConfig]) -> list[str]:
    """How the stores are called in this process: by the last part of their names. Raises ConfigError."""
    paths = [full_name(config.store) for config in configs]
    found = [os.path.basename(path.partition("?")[0].rstrip("/")) or path for path in paths]
    for name in found:
        if found.count(name) > 1:
            raise ConfigError(f"two stores of one process are called {name!r}: give each another name, or its process")
    return found
