"""The ready-made units in conf/ are what the documents and the program say."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from amq.cli import exits
from amq.cli.main import main
from amq.config.schema import BrokerConfig
from amq.doctor.filesystems import judge
from amq.doctor.finding import Level, worst
from amq.doctor.machine import SystemMachine
from amq.doctor.mounts import Mount, parse_options
from tests.patience import DEADLINE_S

ROOT = Path(__file__).resolve().parent.parent
SERVICE = ROOT / "conf/amq.service"
CONSOLE = ROOT / "conf/amq-console.service"
MOUNT = ROOT / "conf/mnt-amq.mount"


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)  # SystemCallFilter is there twice
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return parser


def test_the_service_runs_a_command_that_exists() -> None:
    service = unit(SERVICE)["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/amq")
    assert words[0] == "start"
    command = main.get_command(click.Context(main), "start")
    assert command is not None
    with command.make_context("start", words[1:]) as context:
        assert context.params["config_file"] == "/etc/amq/amq.toml"
    assert service["Type"] == "notify"


def test_the_console_runs_a_command_that_exists() -> None:
    _, *words = shlex.split(unit(CONSOLE)["Service"]["ExecStart"])
    command = main.get_command(click.Context(main), words[0])
    assert command is not None
    with command.make_context("console", words[1:]) as context:
        assert context.params["store"].startswith(unit(MOUNT)["Mount"]["Where"] + "/")
    users = {unit(path)["Service"]["User"] for path in (SERVICE, CONSOLE)}
    assert len(users) == 1, "the socket is for the broker's user alone"


def test_it_is_not_restarted_where_that_is_of_no_use() -> None:
    service = unit(SERVICE)["Service"]
    assert service["Restart"] == "on-failure", "a clean end lasts: `amq stop`"
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == {exits.USAGE, exits.CONFIG}


def test_its_watchdog_is_more_patient_than_our_own() -> None:
    assert float(unit(SERVICE)["Service"]["WatchdogSec"]) > 4 * BrokerConfig().lock_keep_alive_period_s


def test_the_store_lies_on_the_mount() -> None:
    assert unit(SERVICE)["Unit"]["RequiresMountsFor"] == unit(MOUNT)["Mount"]["Where"]
    assert MOUNT.stem == unit(MOUNT)["Mount"]["Where"].strip("/").replace("/", "-")


def test_the_service_can_write_to_the_store_and_read_what_the_broker_reads() -> None:
    service = unit(SERVICE)["Service"]
    assert service["ReadWritePaths"] == unit(MOUNT)["Mount"]["Where"]
    assert service["ProtectSystem"] == "strict"
    assert "ProcSubset" not in service, "the broker reads /proc/sys/kernel/random/boot_id and the mounts"
    assert not {"PrivateNetwork", "PrivatePIDs", "RootDirectory"} & set(service)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_service_is_hardened(tmp_path: Path) -> None:
    """systemd's own measure, of 0 (safe) to 10."""
    (tmp_path / "amq.service").write_text(SERVICE.read_text())
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", tmp_path / "amq.service"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges no files")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None
    assert float(found[1]) <= 2.0


def test_the_mount_is_as_the_doctor_wants_it() -> None:
    told = unit(MOUNT)["Mount"]
    options = parse_options(told["Options"])
    found = judge(Mount(1, "0:1", told["Where"], told["Type"], told["What"], options), SystemMachine())
    assert worst(found.findings) in (Level.OK, Level.NOTE), [str(finding) for finding in found.findings]
    assert set(found.mount_options.split(",")) <= set(told["Options"].split(","))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("path", [SERVICE, CONSOLE, MOUNT], ids=lambda path: path.name)
def test_systemd_understands_them(path: Path, tmp_path: Path) -> None:
    text = path.read_text().replace("/usr/local/bin/amq", "/bin/true")
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / path.name],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    complaints = [line for line in done.stderr.split("\n") if path.name in line]
    assert not complaints
