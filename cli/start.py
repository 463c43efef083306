"""`amq start`: one broker in the foreground, from its configuration to its exit code."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict

import click
import structlog
import uvloop

import amq
from amq.broker.events import JournalRead, RoleChanged
from amq.cli import exits, logs, store_check
from amq.cli.foreign import properties_of, property_option, read_foreign, read_permissions, read_users
from amq.cli.output import examples, reading_text
from amq.config import BrokerConfig, load
from amq.config.reload import Reload
from amq.config.watch import FileWatcher
from amq.core.errors import AmqError, ConfigError
from amq.node import logins as own_logins
from amq.node import permissions as own_permissions
from amq.node import process
from amq.node.certificate import KEYS, OwnCertificate
from amq.node.live import Files, Live
from amq.node.logins import OwnLogins
from amq.node.management import OwnManagement
from amq.node.member import Member, Role
from amq.node.permissions import OwnPermissions
from amq.node.probes import OwnProbes
from amq.security import LoginGate
from amq.security.permissions import Permissions
from amq.transports.places import FILES_MIN, files_warning

_log = structlog.get_logger("amq.process")
_EPILOG = examples(
    "amq start --store /mnt/shared/amq --name a --transport stomp://0.0.0.0:61613",
    "amq start /etc/amq/amq.toml",
    "amq start amq.toml -o lockKeepAlivePeriod=5s -o log.logLevel=debug",
    "amq start --store 'postgresql://amq@db/amq?sslmode=verify-full' --name a",
    "AMQ_STORE=/mnt/shared/amq amq start",
    "amq start amq.toml --name b -o priority=10 --wait-for-activation",
    "amq start activemq.xml --property activemq.data=/mnt/shared/amq",
)


@click.command(epilog=f"{_EPILOG}\n\n{exits.table()}")
@click.argument("config_file", metavar="[CONFIG]", required=False, type=click.Path())
@click.option(
    "--store",
    metavar="DIR|URL",
    help="Store directory on the shared file system, or the URL of a database; the same for all brokers.",
)
@click.option("--name", metavar="NAME", help="Name of this broker, unique on the store. Default: the host name.")
@click.option(
    "--transport",
    "transports",
    metavar="URL",
    multiple=True,
    help="Where to serve clients while master: stomp://HOST:PORT, with TLS stomp+ssl://HOST:PORT. May be repeated. "
    "Port 0: any free one.",
)
@click.option(
    "-o",
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Any option of the configuration, see `amq config show`. May be repeated; wins over file and environment.",
)
@click.option(
    "--wait-for-activation",
    is_flag=True,
    help="Report to the service manager that the broker is ready only once it is master.",
)
@property_option
@click.option("--allow-unsafe-store", is_flag=True, help="Start also on a store that `amq doctor` finds unfit.")
def start(
    config_file: str | None,
    store: str | None,
    name: str | None,
    transports: tuple[str, ...],
    options: tuple[str, ...],
    properties: tuple[str, ...],
    wait_for_activation: bool,
    allow_unsafe_store: bool,
) -> None:
    """Run a broker in the foreground.

    All brokers on one store form a group. The broker that gets the lock is the master and serves clients. The others
    are slaves and take over when it goes. The broker logs to stderr. It refuses a store on which two brokers could be
    master, or none (exit code 4), with the reason and the cure; `amq doctor` tells more.

    CONFIG is a TOML file, or the configuration of ActiveMQ or Artemis (activemq.xml, broker.xml). The log then warns of
    each part that amq does not support; `amq config import` shows the whole report.

    SIGTERM or SIGINT: commit what came in, hand the store over, exit. A second signal ends the process at once, as
    safely as any crash does. SIGHUP: read the configuration, the users file, the certificates and the permissions
    again. The broker also watches these files. Under systemd (Type=notify) it reports which role it has, and that it is
    ready: as soon as it competes for the store, as slave or master, or with --wait-for-activation when it is master.
    """
    if wait_for_activation:
        options = (*options, "waitForActivation=true")
    given = properties_of(properties)

    def read() -> BrokerConfig:
        return load(
            config_file,
            os.environ,
            options,
            store=store,
            name=name,
            transports=transports,
            allow_unsafe_store=allow_unsafe_store or None,
            require_store=True,
            properties=given,
            read_foreign=read_foreign,
        )

    config = read()
    logs.configure(config)
    process.tune()
    files = process.raise_file_limit()
    _log.info("starting", version=amq.__version__, pid=os.getpid(), store=config.store, config=config_file or "")
    for warning in config.warnings:
        _log.warning(warning)
    if told := files_warning(config.max_connections, files):
        _log.warning(told)
    failure = _too_few(files) or store_check.refusal(config)
    if failure is None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failure = runner.run(_Run(config, read, config_file, given).until_stopped())
    if failure is not None:
        code = exits.exit_code(failure)
        _log.error("stopped", reason=exits.told(failure), code=failure.code, exit_code=code)
        raise click.exceptions.Exit(code)
    _log.info("stopped", exit_code=0)


def _too_few(files: int) -> AmqError | None:
    if files >= FILES_MIN:
        return None
    return ConfigError(
        f"this process may open {files} files, a broker needs at least {FILES_MIN}: raise `ulimit -n` "
        "(LimitNOFILE of a service)",
        code="FILES_LIMIT",
    )


class _Run:
    """The broker of this process, its signals and its live configuration. Everything runs on the event loop, except
    `_changed`, which the file watcher's thread calls, and what `Live` reads."""

    def __init__(
        self, config: BrokerConfig, read: Callable[[], BrokerConfig], path: str | None, properties: Mapping[str, str]
    ) -> None:
        self._config = config
        self._gate = LoginGate(config.users_file, config.anonymous, lambda file: read_users(file, path, properties))
        self._certificate = OwnCertificate(config, self._gate)
        self._logins = OwnLogins(config, self._gate)
        self._permissions = OwnPermissions(
            config, self._post_permit, lambda file, generation: read_permissions(file, path, properties, generation)
        )
        self._service = Member(
            config,
            self._gate.authenticate,
            replace_process=process.replace_process,
            credentials=self._certificate.credentials,
            permissions=self._permissions.current,
        )
        self._management = OwnManagement(
            config, self._service, os.environ, self._gate.authenticate, lambda: self._gate.names
        )
        self._probes = OwnProbes(config, self._service)
        self._service.events.listen(RoleChanged, self._on_role)
        self._service.events.listen(JournalRead, self._on_reading)
        files = {
            "certificates": Files(KEYS, self._certificate.read),
            "logins": Files(own_logins.KEYS, self._logins.read),
            "permissions": Files(own_permissions.KEYS, self._permissions.read),
        }
        self._live = Live(Reload(config, read), self._gate, self._post_apply, files)
        self._config_file = path
        self._watchers = ExitStack()
        self._watched: set[str] = set()
        self._stop: asyncio.Task[None] | None = None
        self._ready = False

    async def until_stopped(self) -> AmqError | None:
        """Serve until told to stop (None) or until the service gives up (why)."""
        self._loop = asyncio.get_running_loop()
        rights = self._permissions.current
        mine = rights.warnings if rights is not None else ()
        for warning in (*self._gate.warnings, *self._certificate.warnings(self._config), *mine):
            _log.warning(warning)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hang_up)
        self._certificate.watch_expiry(self._loop)
        self._feed_watchdog(process.watchdog_interval_s())
        with self._watchers:
            self._watch()
            await self._management.start()
            await self._probes.start()
            await self._service.start()
            await self._service.wait_for(Role.STOPPED)
            await self._probes.close()
            await self._management.close()
        self._gate.close()
        return self._service.failure

    def _watch(self) -> None:
        """Watch the files that there are, also one that came with a reload, until the end."""
        named = (
            self._config_file,
            self._config.users_file,
            self._config.permissions_file,
            *self._certificate.paths(self._config),
            *self._logins.paths(self._config),
        )
        paths = [path for path in dict.fromkeys(named) if path and path not in self._watched]
        if not paths:
            return
        try:
            self._watchers.enter_context(FileWatcher(paths, self._changed))
            self._watched.update(paths)
        except (ConfigError, OSError) as error:
            _log.warning("changed files are not noticed here; SIGHUP makes the broker look", reason=str(error))

    def _on_stop(self, number: int) -> None:
        for other in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)  # works also where the event loop is stuck
        _log.info("told to stop: handing over; a second signal ends the process", signal=signal.Signals(number).name)
        process.notify("STOPPING=1\nSTATUS=handing over")
        self._stop = self._loop.create_task(self._service.stop())

    def _on_role(self, event: RoleChanged) -> None:
        role = Role(event.role)
        if role is Role.MASTER:
            process.keep_loaded_objects()
            master = self._service.master
            status = f"master, serving {', '.join(master.urls)}" if master is not None else "master"
        elif role is Role.SLAVE:
            process.drop_loaded_objects()
            status = "slave, waiting for the lock"
        else:
            return
        ready = not self._ready and (role is Role.MASTER or not self._config.wait_for_activation)
        process.notify(f"READY=1\nSTATUS={status}" if ready else f"STATUS={status}")
        self._ready = self._ready or ready

    def _on_reading(self, event: JournalRead) -> None:
        process.notify(f"STATUS=taking over: reads the journal, {reading_text(asdict(event))}")

    def _feed_watchdog(self, interval_s: float | None) -> None:
        """An event loop that stands still feeds nobody: the service manager then ends a master that serves no one."""
        if interval_s is not None:
            process.notify("WATCHDOG=1")
            self._loop.call_later(interval_s, self._feed_watchdog, interval_s)

    # -- live configuration -------------------------------------------------------------------------------------------

    def _on_hang_up(self) -> None:
        _log.info("SIGHUP: reading configuration, users, certificates, logins and permissions again")
        self._live.ask("configuration", "users", "certificates", "logins", "permissions", by_hand=True)

    def _changed(self, path: str) -> None:
        if path == self._config_file:
            self._live.ask("configuration")
        if path == self._config.users_file:
            self._live.ask("users")
        if path in self._certificate.paths(self._config):
            self._live.ask("certificates")
        if path in self._logins.paths(self._config):
            self._live.ask("logins")
        if path == self._config.permissions_file:
            self._live.ask("permissions")

    def _post_permit(self, permissions: Permissions | None) -> None:
        with suppress(RuntimeError):  # as below
            self._loop.call_soon_threadsafe(self._service.permit, permissions)

    def _post_apply(self, config: BrokerConfig) -> None:
        with suppress(RuntimeError):  # the event loop is closed: the broker has ended meanwhile
            self._loop.call_soon_threadsafe(self._apply, config)

    def _apply(self, config: BrokerConfig) -> None:
        self._config = config
        logs.configure(config)
        self._service.reconfigure(config)
        self._watch()
