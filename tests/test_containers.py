"""The image, the manifests of Kubernetes and HAProxy's configuration name what exists, and lead to the master."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from starlette.routing import Route

import amq as client
from amq.cli.main import main
from amq.config.schema import OPTIONS
from amq.console.app import Console
from amq.console.link import Link
from amq.doors.clock import SystemClock
from amq.management.probes import LIVE, MASTER, READY
from tests.brokers import ROOT, Broker, Brokers
from tests.patience import DEADLINE_S
from tests.ports import free_port

CONF = ROOT / "conf"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((CONF / "kubernetes.yaml").read_text()))
HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CLOCK = SystemClock()
ROUTES = {each.path for each in Console(Link("", "", CLOCK), CLOCK).app().routes if isinstance(each, Route)}
LINES = re.sub(r"\\\n *", "", (CONF / "Containerfile").read_text())
IMAGE = dict(re.findall(r"^(USER|ENTRYPOINT|CMD|HEALTHCHECK|EXPOSE|ENV) (.+)$", LINES, re.M))


def haproxy() -> str:
    if HAPROXY is None:
        if os.environ.get("CI") == "true":
            pytest.fail("haproxy is missing: apt-get install haproxy")
        pytest.skip("no haproxy here: apt-get install haproxy")
    return HAPROXY


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of an amq command that exists."""
    command = main.get_command(click.Context(main), words[0])
    assert command is not None
    with command.make_context(words[0], words[1:]) as context:
        return context.params


@pytest.fixture
def in_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in IMAGE["ENV"].split():
        name, _, value = pair.partition("=")
        if name.startswith("AMQ_"):
            monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("in_the_image")
def test_the_image_runs_a_broker_and_not_as_root() -> None:
    assert IMAGE["USER"] == "10001:10001"
    assert IMAGE["ENTRYPOINT"] == '["amq"]'
    transports = parsed(yaml.safe_load(IMAGE["CMD"]))["transports"]
    assert [url.rpartition(":")[2] for url in transports] == IMAGE["EXPOSE"].split()[:1]
    assert "RUNTIME_DIRECTORY=/run/amq" in IMAGE["ENV"].split()


@pytest.mark.usefixtures("in_the_image")
def test_the_pods_name_what_exists() -> None:
    pod = manifest("StatefulSet", "amq")["spec"]["template"]["spec"]
    broker, console = pod["containers"]
    assert parsed(broker["args"])["transports"] == ("stomp://0.0.0.0:61613",)
    assert parsed(console["args"])["listen"] == "0.0.0.0:8161"
    assert parsed(console["args"])["store"] == "/mnt/amq/store"
    known = {option.variable for option in OPTIONS}
    assert {each["name"] for each in broker["env"] if each["name"].startswith("AMQ_")} <= known
    probes = [broker[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [each["path"] for each in probes] == ["/livez", "/livez", "/readyz"]
    ports = {each["containerPort"] for container in (broker, console) for each in container["ports"]}
    assert {each["port"] for each in probes} == {8162}, "the broker answers, not the console"
    assert ports == {int(port) for port in IMAGE["EXPOSE"].split()}
    assert {each["path"] for each in probes} | {"/masterz"} == {LIVE, READY, MASTER} <= ROUTES
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == IMAGE["USER"]
    mounts, volumes = broker["volumeMounts"], {each["name"] for each in pod["volumes"]}
    assert mounts == console["volumeMounts"]
    assert {each["name"] for each in mounts} == volumes
    paths = [each["mountPath"] for each in mounts]
    assert {"/mnt/amq", "/run/amq"} < set(paths), "the image's directories, shared by both"


def test_the_services_lead_to_pods() -> None:
    group = manifest("StatefulSet", "amq")
    assert manifest("Service", group["spec"]["serviceName"])["spec"]["publishNotReadyAddresses"] is True
    for service, pods in (("amq-brokers", group), ("amq", manifest("Deployment", "amq-master"))):
        labels = pods["spec"]["template"]["metadata"]["labels"]
        assert manifest("Service", service)["spec"]["selector"] == labels == pods["spec"]["selector"]["matchLabels"]
    claim = manifest("PersistentVolumeClaim", "amq-store")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    servers = re.findall(r"^ +server (\S+) (\S+)$", manifest("ConfigMap", "amq-master")["data"]["haproxy.cfg"], re.M)
    names = [f"amq-{number}" for number in range(group["spec"]["replicas"])]
    assert servers == [(name, f"{name}.amq-brokers.amq.svc.cluster.local:61613") for name in names]


def test_haproxy_understands_the_configurations(tmp_path: Path) -> None:
    inside = manifest("ConfigMap", "amq-master")["data"]["haproxy.cfg"]
    for text in (inside, re.sub(r"host-\w", "127.0.0.1", (CONF / "haproxy.cfg").read_text())):
        (tmp_path / "haproxy.cfg").write_text(text)
        done = subprocess.run(
            [haproxy(), "-c", "-f", tmp_path / "haproxy.cfg"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def started(stack: ExitStack, *words: object, log: Path) -> subprocess.Popen[bytes]:
    """A process that ends with the block."""
    with open(log, "wb") as output:
        process = stack.enter_context(subprocess.Popen(list(map(str, words)), cwd=ROOT, stdout=output, stderr=output))
    stack.callback(process.kill)
    return process


@pytest.mark.deep
def test_haproxy_leads_to_the_master(brokers: Brokers, tmp_path: Path) -> None:
    """One address, before and after a kill -9; the image's own check finds master and slave healthy."""
    first, second = brokers.master("a"), brokers.slave("b")
    port = free_port()
    text = (CONF / "haproxy.cfg").read_text().replace("bind :61613", f"bind 127.0.0.1:{port}")
    text = re.sub(r"^ +server c .*\n", "", text, flags=re.M)
    with ExitStack() as stack:
        for broker in (first, second):
            console = free_port()
            started(
                stack,
                sys.executable,
                "-m",
                "amq",
                "console",
                "--store",
                broker.store,
                "--name",
                broker.name,
                "--listen",
                f"127.0.0.1:{console}",
                log=tmp_path / f"console-{broker.name}.log",
            )
            address = f"server {broker.name} 127.0.0.1:{broker.port} check port {console}"
            text = text.replace(f"server {broker.name} host-{broker.name}:61613", address)
        (tmp_path / "haproxy.cfg").write_text(text)
        started(stack, haproxy(), "-db", "-f", tmp_path / "haproxy.cfg", log=tmp_path / "haproxy.log")
        url = f"failover:(stomp://127.0.0.1:{port})?updateURIsSupported=false"
        with client.connect(url, timeout=DEADLINE_S) as connection, connection.session() as session:
            producer = session.producer("/queue/q")
            producer.send("before")
            assert [healthy(first), healthy(second)] == [True, True]
            first.kill()
            producer.send("after")
            second.wait_serving()
            assert [healthy(first), healthy(second)] == [False, True]
            consumer = session.consumer("/queue/q")
            found = [consumer.receive(DEADLINE_S) for _ in range(2)]
            assert [message.text for message in found if message is not None] == ["before", "after"]


def healthy(broker: Broker) -> bool:
    """What HEALTHCHECK of the image says, on a host of the broker's name."""
    *_, command = yaml.safe_load(IMAGE["HEALTHCHECK"].partition("CMD ")[2])
    command = command.replace("$(hostname)", broker.name).replace("amq ", f"{sys.executable} -m amq ", 1)
    environment = {**os.environ, "AMQ_STORE": str(broker.store)}
    done = subprocess.run(["sh", "-c", command], env=environment, cwd=ROOT, capture_output=True, check=False)
    return done.returncode == 0
