"""The permissions file while the broker runs: read when it changes, and then in force for everybody who is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from amq.config.node_options import NodeOptions
from amq.security.permissions import Permissions

KEYS: Final = frozenset(("permissionsFile",))
_log = structlog.get_logger("amq.process")


class OwnPermissions:
    """`current` = those in force, None = there is no file: everybody may do everything."""

    def __init__(
        self,
        config: NodeOptions,
        use: Callable[[Permissions | None], None],
        read: Callable[[str, int], Permissions] = Permissions.read,
    ) -> None:
        """`use` is called, in any thread, with others; `read` reads a file as that generation. Raises ConfigError if
        the file cannot be used.
        """
        self._use = use
        self._read = read
        self._generation = 0
        self.current = self._load(config)
        self._generation = 1

    def _load(self, config: NodeOptions) -> Permissions | None:
        if not config.permissions_file:
            return None
        return self._read(config.permissions_file, self._generation + 1)

    def read(self, config: NodeOptions, current: Callable[[], bool]) -> None:
        """Use the file as it is now. Raises ConfigError if it cannot be used: then nothing changes."""
        found = self._load(config)
        if not current():
            return
        self.current = found
        self._generation += 1
        self._use(found)
        if found is None:
            _log.warning("no permissions file: every user may do everything")
            return
        _log.info(
            "permissions read",
            permissions_file=config.permissions_file,
            entries=len(found),
            generation=found.generation,
        )
        for warning in found.warnings:
            _log.warning(warning)
