"""The load generator of `amq perf` (amq.cli.load) for the benchmarks: any STOMP broker at HOST:PORT."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from amq.cli.load import ACKS, MODES, Load, LoadError, LoadResult, run

__all__ = ["ACKS", "MODES", "Load", "LoadError", "LoadResult", "run"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  python -m bench.load 127.0.0.1:61613 --quick\n"
        "  python -m bench.load 127.0.0.1:61613 -p 4 -c 4 -n 100000 -w 256 --json\n"
        "  python -m bench.load 127.0.0.1:61613 -p 4 --mode send -n 50000 && "
        "python -m bench.load 127.0.0.1:61613 -c 4 --mode recv -n 50000",
    )
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("-p", "--producers", type=int, default=1)
    parser.add_argument("-c", "--consumers", type=int, default=1)
    parser.add_argument("-n", "--messages", type=int, default=100_000)
    parser.add_argument("-s", "--size", type=int, default=1024, metavar="BYTES")
    parser.add_argument("-w", "--window", type=int, default=256, help="unconfirmed sends of one producer (default 256)")
    parser.add_argument("--non-persistent", action="store_true")
    parser.add_argument("--ack", choices=ACKS, default="client-individual")
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--prefetch", type=int, default=1000)
    parser.add_argument("--destination", default="/queue/bench")
    parser.add_argument("--login", default="")
    parser.add_argument("--passcode", default="")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="longest time without progress")
    parser.add_argument("--quick", action="store_true", help="5,000 messages")
    parser.add_argument("--json", action="store_true", help="one JSON line instead of text")
    args = parser.parse_args()
    host, _, port = args.address.rpartition(":")
    if not port.isdecimal():
        parser.error(f"{args.address!r}: write HOST:PORT")
    try:
        result = run(
            Load(
                int(port),
                host or "127.0.0.1",
                args.producers,
                args.consumers,
                5000 if args.quick else args.messages,
                args.size,
                args.window,
                not args.non_persistent,
                args.ack,
                args.mode,
                args.prefetch,
                args.destination,
                args.login,
                args.passcode,
                args.timeout,
            )
        )
    except LoadError as error:
        sys.exit(f"failed: {error}")
    if args.json:
        print(json.dumps(dataclasses.asdict(result)))
        return
    print(f"{result.messages} messages in {result.seconds:.3f} s: {result.per_s:,.0f}/s")
    for name, latencies in (("send to delivery", result.delivery_us), ("send to receipt", result.confirm_us)):
        if latencies:
            print(f"{name}: " + ", ".join(f"{key} {value / 1000:.2f} ms" for key, value in latencies.items()))
    print(f"the generator used {result.generator_cpu_us:.1f} µs of CPU a message")


if __name__ == "__main__":
    main()
