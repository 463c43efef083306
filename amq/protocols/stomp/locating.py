"""WHERE: a frame of ours by which a client asks a gateway where destinations live, and where the masters of these are.

The answer is the `outcome` of its RECEIPT, a JSON object; docs/stomp.md lists what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from amq.core.errors import ProtocolError
from amq.protocols.commands import Locate
from amq.protocols.stomp.destination import sources

CLUSTER: Final = "amq-cluster"  # header of CONNECTED of a gateway
WHERE: Final = "WHERE"


def where(headers: dict[str, str], receipt: object) -> Locate:
    """The command of a WHERE frame. Raises ProtocolError."""
    missing = "destination" if not headers.get("destination") else "receipt" if not receipt else ""
    if missing:
        raise ProtocolError(f"WHERE needs a {missing} header; its answer is the RECEIPT", code="HEADER_MISSING")
    return Locate(sources(headers["destination"], ""), receipt)


def own_urls(urls: Iterable[str]) -> list[str]:
    """Those of `urls` that a client of this protocol can use."""
    found = (f"stomp{url.removeprefix('auto')}" if url.startswith(("auto:", "auto+")) else url for url in urls)
    return [url for url in found if url.startswith(("stomp:", "stomp+"))]
