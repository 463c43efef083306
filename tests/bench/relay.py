"""The fastest "broker" that Python can be: a producer's bytes become a consumer's by a handful of bytes methods.

Stores nothing, checks nothing, one consumer per destination, ignores acknowledgements. Its only use is to find the
ceiling of the load generator: what the generator reaches against this is more than any broker of ours can give.
"""

from __future__ import annotations

import asyncio
import re
import sys

RECEIPT = re.compile(rb"\nreceipt:(\d+)\n")
CONNECTED = b"CONNECTED\nversion:1.2\n\n\0"
SEND = b"SEND\ndestination:"
MESSAGE = b"MESSAGE\nsubscription:0\nmessage-id:1\nack:12345\ndestination:"


class Relay(asyncio.Protocol):
    consumers: dict[bytes, asyncio.Transport] = {}  # noqa: RUF012 (one relay per process)

    def __init__(self) -> None:
        self.held = b""
        self.target: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(1 << 24)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"ACK\n") and not self.held:
            return
        data = self.held + data
        end = data.rfind(b"\0") + 1
        self.held = data[end:]
        data = data[:end]
        if data.startswith(SEND):
            if self.target is None:
                self.target = self.consumers[data[len(SEND) : data.index(b"\n", len(SEND))]]
            receipts = RECEIPT.findall(data)
            self.transport.write(b"RECEIPT\nreceipt-id:" + b"\n\n\0RECEIPT\nreceipt-id:".join(receipts) + b"\n\n\0")
            self.target.write(data.replace(SEND, MESSAGE))
        elif data.startswith(b"CONNECT\n"):
            self.transport.write(CONNECTED)
        elif data.startswith(b"SUBSCRIBE\n"):
            match = re.search(rb"\ndestination:([^\n]*)\n", data)
            assert match
            self.consumers[match[1]] = self.transport
            self.transport.write(b"RECEIPT\nreceipt-id:subscribed\n\n\0")
        elif b"DISCONNECT\n" in data:
            self.transport.write(b"RECEIPT\nreceipt-id:bye\n\n\0")


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Relay, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
