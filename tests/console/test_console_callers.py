"""The address of a caller: what proxies say is believed of declared ones alone, and makes nobody local."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from amq.console.callers import NAMED, checked
from amq.core.errors import AccessError
from amq.security.login import Authenticate, Claim, Login, User
from tests.cli.amq_process import amq
from tests.console.consoles import by_password, client_of
from tests.management.managed import Managed, managed

PROXY, NETWORK = "10.0.0.1", "10.1.0.0/16"
ALICE = httpx.BasicAuth("alice", "a")
From = Callable[[str], httpx.AsyncClient]  # a client with that address


def behind(
    folder: Path,
    test: Callable[[Managed, From], Awaitable[None]],
    *proxies: str,
    authenticate: Authenticate = by_password,
) -> None:
    async def main() -> None:
        broker = managed(folder, authenticate=authenticate, failed_logins_per_minute=2)
        async with broker as made, client_of(made.config.store, proxies=proxies) as first:
            app = first._transport.app  # type: ignore[attr-defined]

            def at(address: str) -> httpx.AsyncClient:
                return httpx.AsyncClient(
                    transport=httpx.ASGITransport(app, client=(address, 5)), base_url="http://console"
                )

            await test(made, at)

    asyncio.run(main())


def denied(made: Managed, address: str) -> bool:
    """Do guesses of that address lock it?"""
    assert made.service.master is not None
    try:
        made.service.master.door.check(address)
    except AccessError:
        return True
    return False


@pytest.mark.parametrize(
    ("proxies", "peer", "named", "guilty"),
    [
        ((), "10.0.0.1", "192.0.2.7", "10.0.0.1"),  # nobody is believed unless declared
        ((PROXY,), "10.0.0.2", "192.0.2.7", "10.0.0.2"),  # nor somebody else
        ((PROXY,), PROXY, "192.0.2.7", "192.0.2.7"),
        ((PROXY,), PROXY, "192.0.2.7:4711", "192.0.2.7"),
        ((PROXY,), PROXY, "[2001:db8::7]:4711", "2001:db8::7"),
        ((PROXY,), PROXY, "2001:db8::8", "2001:db8::9"),  # the same network
        ((PROXY,), PROXY, "", PROXY),  # it names nobody
        ((PROXY,), PROXY, "unknown", PROXY),
        ((PROXY,), PROXY, "' OR 1=1", PROXY),
        # What the caller has written itself is on the left of what the proxy adds.
        ((PROXY,), PROXY, "127.0.0.1, 192.0.2.8, 192.0.2.7", "192.0.2.7"),
        ((PROXY,), PROXY, "192.0.2.8, 10.0.0.1, 192.0.2.7", "192.0.2.7"),
        ((PROXY, NETWORK), PROXY, "192.0.2.8, 192.0.2.7, 10.1.2.3", "192.0.2.7"),  # two proxies in a row
    ],
)
def test_guesses_are_those_of_the_caller(
    tmp_path: Path, proxies: tuple[str, ...], peer: str, named: str, guilty: str
) -> None:
    async def test(made: Managed, at: From) -> None:
        headers = {"x-forwarded-for": named} if named else {}
        async with at(peer) as client:
            wrong = httpx.BasicAuth("alice", "no")
            assert (await client.get("/api/v1/queues", auth=wrong, headers=headers)).status_code == 401
            form = {"login": "alice", "passcode": "no"}
            assert (await client.post("/login", data=form, headers=headers)).status_code == 401
            assert (await client.get("/api/v1/queues", auth=ALICE, headers=headers)).status_code == 429
            if guilty != peer:
                other = {"x-forwarded-for": "192.0.2.99"}
                assert (await client.get("/api/v1/queues", auth=ALICE, headers=other)).status_code == 200
        for each in {guilty, peer, "192.0.2.7", "192.0.2.8", "127.0.0.1"}:
            assert denied(made, each) == (each == guilty), each

    behind(tmp_path, test, *proxies)


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",), ("127.0.0.1", "192.0.2.0/24")])
def test_nobody_is_local_through_a_proxy(tmp_path: Path, proxies: tuple[str, ...]) -> None:
    """`anonymous = "loopback"` lets callers on this host in without a login."""

    async def only_local(claim: Claim) -> Login:
        if not claim.loopback:
            raise AccessError("login required", code="LOGIN_REQUIRED")
        return Login(User("anonymous"), "none")

    async def test(_: Managed, at: From) -> None:
        async with at("127.0.0.1") as client:
            for named in ("127.0.0.1", "192.0.2.7", "127.0.0.1, 192.0.2.7", "::1", "unknown"):
                headers = {"x-forwarded-for": named}
                assert (await client.get("/api/v1/queues", headers=headers)).status_code == 401, named
                assert (await client.post("/login", data={}, headers=headers)).status_code == 401, named
            for header in sorted(NAMED):  # proxies that do not write X-Forwarded-For
                told = await client.get("/api/v1/queues", headers={header: "for=192.0.2.7"})
                assert told.status_code == 401, header
            assert (await client.get("/api/v1/queues")).status_code == 200

    behind(tmp_path, test, *proxies, authenticate=only_local)


@pytest.mark.parametrize(
    ("lines", "guilty"),
    [
        (["192.0.2.8", "192.0.2.7"], "192.0.2.7"),  # a proxy that adds a separate line adds the last one
        (["127.0.0.1", "192.0.2.7"], "192.0.2.7"),
        ([""], PROXY),
        ([" , ,"], PROXY),
        (["192.0.2.007"], PROXY),
        (["192.0.2.8 192.0.2.7"], PROXY),  # a folded line
        (["0x7f.1"], PROXY),
        (["3221225991"], PROXY),
        (["192.0.2.7\t"], "192.0.2.7"),
        (["192.0.2.7, "], PROXY),
    ],
    ids=str,
)
def test_what_a_caller_writes_itself_chooses_no_address(tmp_path: Path, lines: list[str], guilty: str) -> None:
    async def test(made: Managed, at: From) -> None:
        async with at(PROXY) as client:
            headers = [("x-forwarded-for", line) for line in lines]
            for _ in range(2):
                answer = await client.get("/api/v1/queues", auth=httpx.BasicAuth("alice", "no"), headers=headers)
                assert answer.status_code == 401
        for each in {guilty, PROXY, "192.0.2.7", "192.0.2.8", "127.0.0.1"}:
            assert denied(made, each) == (each == guilty), each

    behind(tmp_path, test, PROXY)


@pytest.mark.parametrize("wrong", ["*", "proxy", "0.0.0.0/0", "::/0", "10.0.0.1/8", ""])
def test_a_proxy_that_is_none(wrong: str) -> None:
    with pytest.raises(ValueError, match="address"):
        checked([PROXY, wrong])


@pytest.mark.deep
def test_the_command_says_so() -> None:
    done = amq("console", "--store", "/tmp", "--trusted-proxy", "0.0.0.0/0")
    assert (done.returncode, "0.0.0.0/0 is every address" in done.stderr) == (2, True)
