"""Messages per second with TLS beside without: two ports of one broker in one run, row by row.

The certificate is one for ECDSA (P-256), the version TLS 1.3. The load generator speaks TLS in Python's `ssl`, which
costs about as much as the broker's side and takes it from the same cores: CPU µs a message are the broker's alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amq.client.uri import parse as parse_url
from bench import brokers, cli, host
from bench.load import Load, LoadError, Result
from bench.throughput import QUICK, ROWS, Bench, Row, Scale, Turn, add_turns, summarise, table

TARGET = 0.8
TLS, PLAIN = "TLS", "plain"
NAMES = ("1/1 window 1", "4/4 window 256", "32/32 window 32", "4/4 window 256 non-persistent")
EXAMPLES = ("--quick", "--repeat 5 --json tls.json", "--row '4/4 window 256' --size 16384")


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate that is its own CA, for 127.0.0.1, and its key. Raises BrokerError without openssl."""
    pem, key = directory / "broker.pem", directory / "broker.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(pem),
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError as error:
        raise brokers.BrokerError("no openssl here: apt-get install openssl") from error
    return pem, key


class TlsBench(Bench):
    """`masters` = the same broker twice, by what its clients speak."""

    url = ""

    def _run(self, name: str, kind: str, load: Load, run: Callable[[Load], Result]) -> Turn:
        if kind == TLS:
            (uri,) = parse_url(self.url).uris
            load = dataclasses.replace(load, port=uri.port, tls=uri)
        return super()._run(name, kind, load, run)


def measure(
    rows: Sequence[Row], scale: Scale, size_bytes: int, directory: str | None, options: dict[str, str],
    progress: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Returns what `--json` writes."""
    before = host.describe(directory)
    kinds = (TLS, PLAIN)
    with contextlib.ExitStack() as stack:
        pem, key = certificate(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        group = brokers.Group("amq", directory=directory, options=options)
        broker = group.brokers[0]
        assert isinstance(broker, brokers.AmqBroker)
        port = brokers.free_port()
        secure = ("-o", f"certificate={pem}", "-o", f"certificateKey={key}")
        broker.more = ("--transport", f"stomp+ssl://127.0.0.1:{port}", *secure)
        stack.enter_context(group)
        bench = TlsBench(dict.fromkeys(kinds, broker), scale.seconds, size_bytes, scale.backlog)
        bench.url = f"stomp+ssl://127.0.0.1:{port}?trust={pem}"
        bench.warm_up(scale.warm_up_s, progress)
        bench.measure(rows, scale.repeat, progress)
    return {
        "host": {"before": before, "after": host.describe(directory)}, "kinds": list(kinds), "size_bytes": size_bytes,
        "rows": summarise(bench.turns, rows, kinds), "turns": [dataclasses.asdict(turn) for turn in bench.turns],
    }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("tls", __doc__, EXAMPLES, peer=False)
    add_turns(parser, NAMES)
    return parser


def main() -> None:
    args = _parser().parse_args()
    cli.terminate_on_signal()
    rows = [dataclasses.replace(ROWS[name], target=TARGET) for name in args.row or NAMES]
    scale = QUICK if args.quick else Scale(args.repeat, args.seconds)
    try:
        report = measure(rows, scale, args.size, args.dir, cli.amq_options(args), cli.progress)
    except (LoadError, brokers.BrokerError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, report, table(report["rows"], report["kinds"]), f"host: {report['host']}")
    if not all(line["met"] for line in report["rows"]):
        sys.exit("a target was missed")


if __name__ == "__main__":
    main()
