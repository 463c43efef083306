"""Metrics, read by the parser of prometheus-client and by promtool."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import resource
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as Oracle
from prometheus_client.parser import text_string_to_metric_families

from amq.console import cluster_metrics, metrics
from amq.console.metrics import MetricsText
from amq.core.errors import AccessError
from amq.core.histogram import BOUNDS_S, Histogram
from amq.security.login import Claim
from tests.console.consoles import client_of, with_console
from tests.patience import DEADLINE_S
from tests.service_world import Client

ROOT = Path(__file__).resolve().parent.parent.parent
ALERTS = ROOT / "conf" / "prometheus-alerts.yml"
DASHBOARD = ROOT / "conf" / "grafana-dashboard.json"


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """{name of a sample: {labels: value}}"""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def promtool(*words: str, data: str = "") -> subprocess.CompletedProcess[str]:
    tool = shutil.which("promtool")
    if tool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is missing: apt-get install prometheus")
        pytest.skip("no promtool here: apt-get install prometheus")
    return subprocess.run([tool, *words], input=data, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize("seed", range(10))
def test_the_writer_writes_as_prometheus_client_does(seed: int) -> None:
    chance = random.Random(seed)
    registry = CollectorRegistry()
    letters = 'ab\\"\n{}=, ü🐇\t'
    names = ["".join(chance.choices(letters, k=chance.randrange(1, 8))) for _ in range(20)]
    gauge, counter = Gauge("g", "h\\\nh", ["a", "b"], registry=registry), Counter("c", "h", ["a"], registry=registry)
    oracle = Oracle("h", "h", buckets=BOUNDS_S, registry=registry)
    ours, text = Histogram(), MetricsText()
    values = {name: chance.choice([chance.random() * 1e6, 0.1, 5.0, math.inf]) for name in names}
    for name, value in values.items():
        gauge.labels(name, name[::-1]).set(value)
        counter.labels(name).inc(7)
    for _ in range(50):
        seconds = chance.choice([chance.random() * 20, *BOUNDS_S])
        ours.add(seconds)
        oracle.observe(seconds)
    text.family("g", "gauge", "h\\\nh", [({"a": name, "b": name[::-1]}, value) for name, value in values.items()])
    text.family("c_total", "counter", "h", [({"a": name}, 7) for name in values])
    text.histogram("h", "h", [({}, ours.to_json())])
    expected = {
        name: found
        for name, found in samples(generate_latest(registry).decode()).items()
        if not name.endswith("_created")
    }
    assert samples(str(text)) == expected


async def test_the_figures_are_those_of_the_broker(tmp_path: Path) -> None:
    hostile = 'a"b\\c{d}<script>'
    async with with_console(tmp_path) as (made, client):
        await made.fill("orders", 3)
        await made.ask("POST", "/queues/x/messages", {"body": "x"})
        made.broker.state.queue(f"queue://{hostile}").stays = True
        answer = await client.get("/metrics")
        assert answer.headers["content-type"] == metrics.CONTENT_TYPE
        found = samples(answer.text)
        assert found["amq_role"][("role", "master"),] == 1
        assert found["amq_role"][("role", "slave"),] == 0
        expected = {
            "amq_up": 1,
            "amq_messages": 4,
            "amq_messages_enqueued_total": 4,
            "amq_epoch": 1,
            "amq_queues_without_consumers": 2,
            "amq_group_has_master": 1,
            "amq_transactions_in_doubt": 0,
            "amq_transactions_in_doubt_oldest_seconds": 0,
        }
        assert {name: found[name][()] for name in expected} == expected
        assert found["amq_journal_sync_seconds_count"][()] >= 1
        assert found["amq_disk_free_bytes"][()] > 0
        assert found["amq_takeover_seconds_count"][()] == 1
        assert 0 < found["amq_lease_remaining_seconds"][()] <= made.config.lock_keep_alive_period_s
        assert found["amq_lease_renewals_total"][()] >= 1
        per_object = samples((await client.get("/metrics/per-object")).text)
        assert per_object["amq_queue_messages"] == {
            (("destination", "orders"),): 3,
            (("destination", "x"),): 1,
            (("destination", hostile),): 0,
        }
        assert 0 <= per_object["amq_queue_oldest_message_age_seconds"][("destination", "orders"),] < 60
        some = samples((await client.get("/metrics/detailed?family=queue_consumers&family=amq_queue_bytes")).text)
        assert set(some) == {"amq_queue_consumers", "amq_queue_bytes"}
        for wrong in ("", "?family=no", "?family=queue_bytes" + "&family=queue_bytes" * 30):
            assert (await client.get("/metrics/detailed" + wrong)).status_code == 400
        await made.broker_stops()
        while samples((await client.get("/metrics")).text)["amq_group_has_master"][()]:
            await asyncio.sleep(0.05)
        assert samples((await client.get("/metrics")).text)["amq_up"][()] == 0


async def test_clients_are_counted_by_protocol_and_logins_by_their_end(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        subscriber = await made.client()
        await subscriber.send("SUBSCRIBE", ("destination", "/topic/prices"), ("id", "1"), ("receipt", "r"))
        assert (await subscriber.receive()).command == "RECEIPT"
        with pytest.raises(AccessError):
            await made.managed.login(Claim("alice", "no"), "10.0.0.1")
        found = samples((await client.get("/metrics")).text)
        assert found["amq_connections_by_protocol"] == {(("protocol", "stomp"),): 1}
        assert found["amq_logins_total"] == {(("result", "ok"),): 1, (("result", "LOGIN_REFUSED"),): 1}
        per_object = samples((await client.get("/metrics/per-object")).text)
        assert per_object["amq_topic_consumers"] == {(("destination", "prices"),): 1}
        some = samples((await client.get("/metrics/detailed?family=topic_durable_subscriptions")).text)
        assert some == {"amq_topic_durable_subscriptions": {(("destination", "prices"),): 0}}


async def test_messages_are_counted_by_protocol_also_of_clients_that_are_gone(tmp_path: Path) -> None:
    stomp = (("protocol", "stomp"),)
    async with with_console(tmp_path) as (made, client):
        await made.fill("orders", 3)
        sender = await made.client()
        for number in range(2):
            await sender.send("SEND", ("destination", "/queue/orders"), ("receipt", str(number)), body=b"x")
            assert (await sender.receive()).command == "RECEIPT"
        await sender.send("SEND", ("destination", "/queue/orders,topic://prices"), ("receipt", "many"), body=b"x")
        assert (await sender.receive()).command == "RECEIPT"
        found = samples((await client.get("/metrics")).text)
        assert found["amq_messages_received_total"] == {stomp: 6}
        await sender.send("SEND", ("destination", "/queue/orders"), ("transaction", "none"), body=b"x")
        assert (await sender.receive()).command == "ERROR"
        while samples((await client.get("/metrics")).text)["amq_connections"][()]:
            await asyncio.sleep(0.05)
        found = samples((await client.get("/metrics")).text)
        assert found["amq_messages_received_total"] == {stomp: 6}, "what was refused does not count"


async def test_deliveries_and_acknowledgements_are_counted_by_protocol(tmp_path: Path) -> None:
    stomp = (("protocol", "stomp"),)
    names = [f"amq_messages_{part}_total" for part in ("received", "delivered", "acknowledged")]
    async with with_console(tmp_path) as (made, client):

        async def counted() -> list[float]:
            found = samples((await client.get("/metrics")).text)
            return [found[name][stomp] for name in names]

        async def confirmed(some: Client, command: str, *headers: tuple[str, str]) -> None:
            await some.send(command, *headers, ("receipt", "done"))
            assert (await some.receive()).headers["receipt-id"] == "done"

        await made.fill("orders", 6)
        consumer = await made.client()
        assert await counted() == [6, 0, 0]
        await consumer.send("SUBSCRIBE", ("destination", "/queue/orders"), ("id", "1"), ("ack", "client"))
        ids = [(await consumer.receive()).headers["ack"] for _ in range(6)]
        assert await counted() == [6, 6, 0]
        await confirmed(consumer, "ACK", ("id", ids[1]))
        assert await counted() == [6, 6, 2], "cumulative"
        await confirmed(consumer, "BEGIN", ("transaction", "t"))
        await confirmed(consumer, "ACK", ("id", ids[2]), ("transaction", "t"))
        assert await counted() == [6, 6, 3]
        await confirmed(consumer, "DISCONNECT")
        again = await made.client()
        await again.send("SUBSCRIBE", ("destination", "/queue/orders"), ("id", "1"), ("ack", "client-individual"))
        back = [(await again.receive()).headers["ack"] for _ in range(4)]
        assert await counted() == [6, 10, 3], "each time"
        await confirmed(again, "ACK", ("id", back[0]))
        await confirmed(again, "NACK", ("id", back[1]))
        assert (await counted())[2] == 4, "what is refused is not acknowledged"


async def test_messages_of_a_client_that_may_come_back_stay_counted(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        hello = b"CONNECT\naccept-version:1.2\nhost:x\namq-reconnect-window:60000\namq-confirmation-window:4096\n\n\0"
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(hello + b"SEND\ndestination:/queue/orders\nreceipt:r\n\nx\0")
        assert b"amq-reconnect-token:" in await reader.readuntil(b"receipt-id:r")
        writer.transport.abort()
        while "amq_connections_by_protocol" in (found := samples((await client.get("/metrics")).text)):
            await asyncio.sleep(0.05)
        assert found["amq_messages_received_total"] == {(("protocol", "stomp"),): 1}


async def test_messages_that_come_back_and_connections_that_are_refused(tmp_path: Path) -> None:
    async with with_console(tmp_path, max_connections_per_address=1) as (made, client):
        await made.fill("orders", 3)
        consumer = await made.client()
        await consumer.send("SUBSCRIBE", ("destination", "/queue/orders"), ("id", "1"), ("ack", "client-individual"))
        for _ in range(3):
            assert (await consumer.receive()).command == "MESSAGE"
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        assert b"maxConnectionsPerAddress" in await reader.read(4096)
        writer.close()
        await writer.wait_closed()
        assert samples((await client.get("/metrics")).text)["amq_messages_redelivered_total"][()] == 0
        await consumer.send("UNSUBSCRIBE", ("id", "1"), ("receipt", "r"))
        assert (await consumer.receive()).command == "RECEIPT"
        found = samples((await client.get("/metrics")).text)
        assert found["amq_messages_redelivered_total"][()] == 3
        assert found["amq_producers_blocked"][()] == 0
        assert found["amq_connections_refused_total"] == {(("reason", "maxConnectionsPerAddress"),): 1}


async def test_figures_of_the_process_are_those_of_the_broker(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        found = samples((await client.get("/metrics")).text)
        assert 0 < found["process_cpu_seconds_total"][()] <= time.process_time()
        assert 10 << 20 < found["process_resident_memory_bytes"][()] < 10 << 30
        assert found["process_max_fds"][()] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert time.time() - 600 < found["process_start_time_seconds"][()] <= time.time()
        if "process_open_fds" in found:
            assert 3 < found["process_open_fds"][()] < 1000
        await made.broker_stops()
        while samples((await client.get("/metrics")).text)["amq_up"][()]:
            await asyncio.sleep(0.05)
        assert "process_cpu_seconds_total" not in samples((await client.get("/metrics")).text)


async def test_a_scrape_pleases_promtool(tmp_path: Path) -> None:
    texts: list[str] = []
    async with with_console(tmp_path) as (made, client):
        await made.fill("orders", 1)
        texts.append((await client.get("/metrics")).text)
        texts.append((await client.get("/metrics/per-object")).text)
    for text in texts:
        done = promtool("check", "metrics", data=text)
        assert done.returncode == 0, done.stdout + done.stderr


async def test_metrics_may_need_a_login(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, _), client_of(made.config.store, metrics_need_login=True) as client:
        wrong = httpx.BasicAuth("alice", "b")
        assert (await client.get("/metrics", auth=wrong)).status_code == 401
        assert (await client.get("/metrics", auth=httpx.BasicAuth("alice", "a"))).status_code == 200
        assert (await client.get("/livez")).status_code == 200


# -- rules and dashboard -----------------------------------------------------------------------------------------------


def test_rules_are_valid() -> None:
    done = promtool("check", "rules", str(ALERTS))
    assert done.returncode == 0, done.stdout + done.stderr


CASES = """
rule_files: [{rules}]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {{series: 'amq_role{{role="master",group="none",instance="a"}}', values: '0x60'}}
      - {{series: 'amq_role{{role="master",group="good",instance="a"}}', values: '1x60'}}
      - {{series: 'amq_role{{role="master",group="good",instance="b"}}', values: '0x60'}}
      - {{series: 'amq_role{{role="master",group="two",instance="a"}}', values: '1x60'}}
      - {{series: 'amq_role{{role="master",group="two",instance="b"}}', values: '1x60'}}
      - {{series: 'amq_dead_letters{{group="good"}}', values: '0+1x60'}}
      - {{series: 'amq_dead_letters{{group="two"}}', values: '7x60'}}
      - {{series: 'amq_certificate_not_after_seconds{{group="good"}}', values: '86400x200'}}
      - {{series: 'amq_follower_lag_seconds{{group="good"}}', values: '100x60'}}
      - {{series: 'amq_journal_sync_seconds_bucket{{group="good",le="0.2"}}', values: '0x60'}}
      - {{series: 'amq_journal_sync_seconds_bucket{{group="good",le="+Inf"}}', values: '0+10x60'}}
    alert_rule_test:
      - eval_time: 25m
        alertname: AmqNoMaster
        exp_alerts:
          - exp_labels: {{severity: critical, group: none}}
            exp_annotations: {annotations[AmqNoMaster]}
      - eval_time: 25m
        alertname: AmqTwoMasters
        exp_alerts:
          - exp_labels: {{severity: critical, group: two}}
            exp_annotations: {annotations[AmqTwoMasters]}
      - eval_time: 29m
        alertname: AmqDeadLettersGrow
        exp_alerts:
          - exp_labels: {{severity: warning, group: good}}
            exp_annotations: {annotations[AmqDeadLettersGrow]}
      - eval_time: 29m
        alertname: AmqSlaveBehind
        exp_alerts:
          - exp_labels: {{severity: warning, group: good}}
            exp_annotations: {annotations[AmqSlaveBehind]}
"""


def test_alerts_fire_where_they_should(tmp_path: Path) -> None:
    rules = ALERTS.read_text()
    annotations = {}
    for part in rules.split("- alert: ")[1:]:
        found = dict(re.findall(r'^ +(summary|description): "?(.*?)"?$', part, re.MULTILINE))
        annotations[part.split()[0]] = json.dumps(found)
    path = tmp_path / "cases.yml"
    path.write_text(CASES.format(rules=json.dumps(str(ALERTS)), annotations=annotations))
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def names_in(text: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bamq_[a-z_]+\b", text)}


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    named = {name for name, *_ in metrics.TOTALS} | set(metrics.QUEUES) | set(metrics.TOPICS)
    named |= set(re.findall(r'"(amq_[a-z_]+)"', Path(metrics.__file__).read_text()))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    used = names_in(" ".join(target["expr"] for panel in panels for target in panel["targets"]))
    rules = names_in(" ".join(re.findall(r"expr: (.*)", ALERTS.read_text())))
    assert len(used) > 15
    of_cluster = set(re.findall(r'"(amq_[a-z_]+)"', Path(cluster_metrics.__file__).read_text()))
    assert used | rules <= named | of_cluster
    for names, page in (named, "management.md"), (of_cluster - named, "cluster.md"):
        text = (ROOT / "docs" / page).read_text()
        assert {name for name in names if f"`{name}`" not in text} == set()
