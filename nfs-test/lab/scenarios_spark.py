"""Spark beside the brokers: its tasks read the store through the mounts of their hosts."""

from __future__ import annotations

import threading

from lab import spark
from lab.scenario import scenario
from lab.world import World
from tests.spark.session import why_no_spark

BEFORE, SHARED, AROUND, AFTER = 1000, 50, 2000, 1000  # rows that are sent before, around and after the fault
SHOWN_MAX = 10


@scenario(
    "spark",
    "Spark on the brokers' hosts reads the store directly; the host of the master loses its power",
    230,
    obstacle=why_no_spark,
    memory=spark.MEMORY,
    options={"directReads": "*"},
)
def direct_reads(world: World) -> None:
    stream = spark.Stream(world)
    world.boot()
    world.say("starting Spark")
    stream.start()
    world.serve()
    world.say("waiting for executors")
    stream.wait_executors()
    stream.send(BEFORE)
    stream.wait_rows(BEFORE)
    stream.send(SHARED, spark.SHARED)
    stream.wait_rows(BEFORE + SHARED)
    first = stream.reads()
    world.say(f"{first[0]} rows read from the store, {first[1]} not")
    sender = threading.Thread(target=stream.send, args=(AROUND,), daemon=True)
    sender.start()
    stream.wait_rows(BEFORE + SHARED + 1)
    epoch, since_s = world.epoch, world.fault("power off")
    world.master.guest.power_off()
    world.wait_takeover(since_s, epoch)
    sender.join(60)
    stream.send(AFTER)
    stream.end()
    second = stream.reads()
    world.say(f"{second[0]} rows read from the store by the next master's leases, {second[1]} not")
    rows = stream.rows()
    lost, doubled = set(range(stream.sent)) - rows.keys(), [number for number, times in rows.items() if times > 1]
    world.expect(stream.sent == BEFORE + SHARED + AROUND + AFTER, f"only {stream.sent} rows were confirmed")
    world.expect(not lost, f"{len(lost)} rows lost: {sorted(lost)[:SHOWN_MAX]}")
    world.expect(not doubled, f"{len(doubled)} rows came more than once: {sorted(doubled)[:SHOWN_MAX]}")
    world.expect(first[0] >= BEFORE, f"only {first[0]} rows of {BEFORE} were read from the store")
    world.expect(first[1] >= SHARED, f"of {SHARED} rows that only the broker can give {first[1]} are counted")
    world.expect(second[0] > second[1], "after the takeover most rows came through the broker")
    world.measures |= {"direct rows": first[0] + second[0], "fallback rows": first[1] + second[1]}
