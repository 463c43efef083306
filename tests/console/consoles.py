"""A console for a broker in this process, asked without a socket between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from amq.console.app import Console
from amq.console.link import Link
from amq.core.errors import AccessError
from amq.doors.clock import SystemClock
from amq.security.login import Claim, Login, User
from tests.management.managed import Managed, managed

USERS = {"alice": "a", "root": "r", "eve": "e"}


async def by_password(claim: Claim) -> Login:
    if not claim.login:
        return Login(User("anonymous"), "none")
    if USERS.get(claim.login) != claim.passcode:
        raise AccessError("login refused", code="LOGIN_REFUSED")
    return Login(User(claim.login), "password")


def client_of(store: str, name: str = "", **options: Any) -> httpx.AsyncClient:
    clock = SystemClock()
    app = Console(Link(store, name, clock), clock, **options).app()
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://console")


@asynccontextmanager
async def with_console(folder: Path, **options: Any) -> AsyncIterator[tuple[Managed, httpx.AsyncClient]]:
    """A broker, and a client of its console."""
    broker = managed(folder, authenticate=by_password, **options)
    async with broker as made, client_of(made.config.store) as client:
        yield made, client
