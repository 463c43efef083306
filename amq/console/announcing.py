"""Announcing: the console says to its broker where people reach it, so that the pages of other consoles link to it.

The broker passes the URL on in `brokers/NAME.json` for as long as it hears it again (`amq.management.consoles`). A
broker that hangs, or is of a version that does not know of consoles, is asked again later; nothing depends on it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

import structlog

from amq.console.link import Link
from amq.core.errors import AmqError
from amq.management.consoles import ANNOUNCE_S

RETRY_S: Final = 3.0
EVERYWHERE: Final = ("", "0.0.0.0", "::")
_log = structlog.get_logger("amq.console")


def own_url(host: str, port: int, is_tls: bool) -> str:
    """The URL of a console that listens at `host`, an address or a name; on all addresses, it is that of this host."""
    name = os.uname().nodename if host in EVERYWHERE else host
    return f"{'https' if is_tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"


async def announce(link: Link, url: str) -> None:
    """Say it until this task is cancelled."""
    trouble = ""
    while True:
        try:
            await link.announce(url)
            pause_s, trouble = ANNOUNCE_S, ""
        except AmqError as error:
            pause_s = RETRY_S
            if str(error) != trouble:
                trouble = str(error)
                _log.info("the broker does not learn where its console is", url=url, reason=trouble)
        await asyncio.sleep(pause_s)
