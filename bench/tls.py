"""Messages per second with TLS beside without: two ports of one broker in one run, row by row.

The certificate is one for ECDSA (P-256), the version TLS 1.3. The load generator encrypts on the same cores, and pays
about as much as the broker: where the cores are busy, the rate falls twice. So the processor time of both is shown
beside the rates. That of the broker is what TLS costs where clients have hosts of their own. The floor takes its turns
without TLS; with TLS its processor time is that and what OpenSSL takes to decrypt a message once and encrypt it once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from amq.client.uri import parse as parse_url
from bench import brokers, cli, host
from bench.load import Load, LoadError, LoadResult
from bench.throughput import (
    FLOOR,
    QUICK,
    ROWS,
    Bench,
    Effort,
    Row,
    RowRun,
    add_floor,
    add_turns,
    summarise,
    to_the_floor,
)

TARGET = 0.8
TLS, PLAIN = "TLS", "plain"
RECORD_BYTES = 16384  # the largest of TLS
RECORDS = 2000
NAMES = ("1/1 window 1", "4/4 window 256", "32/32 window 32", "4/4 window 256 non-persistent")
EXAMPLES = ("--quick", "--repeat 5 --json tls.json", "--row '4/4 window 256' --size 16384")


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate that is its own CA, for 127.0.0.1, and its key. Raises BrokerError without openssl."""
    pem, key = directory / "broker.pem", directory / "broker.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=bench",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(pem),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError as error:
        raise brokers.BrokerProcessError("no openssl here: apt-get install openssl") from error
    return pem, key


def cipher_us(pem: Path, key: Path, size_bytes: int) -> float:
    """Processor time to encrypt and to decrypt that many bytes in full records of TLS 1.3, in µs. No socket."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    at_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_server.load_cert_chain(pem, key)
    at_client = ssl.create_default_context(cafile=str(pem))
    server = at_server.wrap_bio(there, back, server_side=True)
    client = at_client.wrap_bio(back, there, server_hostname="127.0.0.1")
    for side in (client, server, client, server):  # greeting; certificate; Finished; both are done
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    record = bytes(RECORD_BYTES)
    begun = time.thread_time()
    for _ in range(RECORDS):
        client.write(record)
        got = 0
        while got < RECORD_BYTES:
            got += len(server.read(RECORD_BYTES))
    return (time.thread_time() - begun) * 1e6 / (RECORDS * RECORD_BYTES) * size_bytes


class TlsBench(Bench):
    """`masters` = the same broker twice, by what its clients speak, and the floor."""

    url = ""

    def _run(self, name: str, kind: str, load: Load, run: Callable[[Load], LoadResult]) -> RowRun:
        if kind == TLS:
            (uri,) = parse_url(self.url).uris
            load = dataclasses.replace(load, port=uri.port, tls=uri)
        return super()._run(name, kind, load, run)


def measure(
    rows: Sequence[Row],
    scale: Effort,
    size_bytes: int,
    directory: str | None,
    options: dict[str, str],
    progress: Callable[[str], None],
    with_floor: bool,
) -> dict[str, Any]:
    """Returns what `--json` writes."""
    before = host.describe(directory)
    kinds = [TLS, PLAIN] + [FLOOR] * with_floor
    with contextlib.ExitStack() as stack:
        pem, key = certificate(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        group = brokers.BrokerGroup("amq", directory=directory, options=options)
        broker = group.brokers[0]
        assert isinstance(broker, brokers.AmqBroker)
        port = brokers.free_port()
        secure = ("-o", f"certificate={pem}", "-o", f"certificateKey={key}")
        broker.more = ("--transport", f"stomp+ssl://127.0.0.1:{port}", *secure)
        stack.enter_context(group)
        masters: dict[str, brokers.BrokerProcess] = dict.fromkeys((TLS, PLAIN), broker)
        if with_floor:
            masters[FLOOR] = stack.enter_context(brokers.BrokerGroup(FLOOR, directory=directory)).brokers[0]
        bench = TlsBench(masters, scale.seconds, size_bytes, scale.backlog)
        bench.url = f"stomp+ssl://127.0.0.1:{port}?trust={pem}"
        bench.warm_up(scale.warm_up_s, progress)
        bench.measure(rows, scale.repeat, progress)
        cipher = cipher_us(pem, key, size_bytes)
    lines = summarise(bench.turns, rows, kinds)
    if with_floor:
        for line in lines:
            least = line["broker_cpu_us"][FLOOR]
            line["floor"][TLS]["cpu"] = line["broker_cpu_us"][TLS] / (least + cipher)
    return {
        "host": {"before": before, "after": host.describe(directory)},
        "kinds": kinds,
        "size_bytes": size_bytes,
        "cipher_us": cipher,
        "rows": lines,
        "turns": [dataclasses.asdict(turn) for turn in bench.turns],
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title=f"messages/s and CPU µs a message, {TLS} | {PLAIN}, and their ratio")
    for heading in ("producers/consumers", "messages/s", "ratio", "broker's CPU", "ratio", "generator's CPU", "ratio"):
        shown.add_column(heading, justify="left" if heading == "producers/consumers" else "right")
    if "floor" in rows[0]:
        shown.add_column("rate, CPU in the floor's", justify="right")
    for line in rows:
        cells = [f"{line['per_s'][TLS]['median']:,.0f} | {line['per_s'][PLAIN]['median']:,.0f}"]
        cells.append(f"[{'green' if line['met'] else 'red'}]{line['ratio']['median']:.2f}")
        for side in ("broker_cpu_us", "generator_cpu_us"):
            with_tls, without = line[side][TLS], line[side][PLAIN]
            cells += [f"{with_tls:.1f} | {without:.1f}", f"{with_tls / without:.2f}"]
        if "floor" in line:
            cells.append(" | ".join(to_the_floor(line["floor"][kind]) for kind in (TLS, PLAIN)))
        shown.add_row(line["row"], *cells)
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("tls", __doc__, EXAMPLES, peers=False)
    add_turns(parser, NAMES)
    add_floor(parser)
    return parser


def main() -> None:
    args = _parser().parse_args()
    cli.terminate_on_signal()
    rows = [dataclasses.replace(ROWS[name], target=TARGET) for name in args.row or NAMES]
    scale = QUICK if args.quick else Effort(args.repeat, args.seconds, args.warm_up)
    try:
        report = measure(rows, scale, args.size, args.dir, cli.amq_options(args), cli.progress, args.floor)
    except (LoadError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, report, table(report["rows"]), f"host: {report['host']}")
    if not all(line["met"] for line in report["rows"]):
        sys.exit("a target was missed")


if __name__ == "__main__":
    main()
