"""`amq doctor` on every kind of mount that the lab can make: the verdict; and across hosts, with a peer."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lab import nfs, smb
from lab.doctor import examine
from lab.filesystem import SERVER
from lab.gfs2 import Gfs2
from lab.network import data_address
from lab.nfs import Nfs
from lab.scenario import scenario
from lab.smb import Smb
from lab.world import World

FIT, WARNED, UNFIT = "fit", "fit with warnings", "unfit"
NFS_MOUNTS: Mapping[str, tuple[str, str]] = {  # options → (verdict, what the reason must name)
    nfs.RECOMMENDED: (FIT, ""),
    nfs.HARD: (WARNED, "hard"),
    nfs.DEFAULTS: (WARNED, "lookupcache"),
    "vers=4.2,softerr": (WARNED, "softerr"),
    "vers=4.0,soft,timeo=20,retrans=2,lookupcache=none,sync,proto=tcp": (WARNED, "4.0"),
    f"{nfs.RECOMMENDED},nocto": (UNFIT, "nocto"),
    "vers=3,nolock": (UNFIT, "nolock"),
    "vers=3,nolock,local_lock=all": (UNFIT, "local_lock"),
}
SMB_MOUNTS: Mapping[str, tuple[str, str]] = {
    smb.RECOMMENDED: (FIT, ""),
    f"{smb.RECOMMENDED},nobrl": (UNFIT, "nobrl"),
    "vers=3.1.1,cache=loose": (UNFIT, "cache"),
}


@scenario("doctor", "amq doctor on mounts of all kinds, and across two hosts", 60, files=lambda: Nfs(version_3=True))
def doctor(world: World) -> None:
    world.boot()
    assert isinstance(world.files, Nfs)
    _verdicts(world, world.files, NFS_MOUNTS)
    _across_hosts(world, WARNED)  # a lease of 10 s is no warning; a lab whose syncs are slow may be


@scenario("smb-doctor", "amq doctor on SMB mounts, and across two hosts", 60, "smb", files=Smb)
def smb_doctor(world: World) -> None:
    world.boot()
    assert isinstance(world.files, Smb)
    _verdicts(world, world.files, SMB_MOUNTS)
    _across_hosts(world, WARNED)


@scenario("gfs2-doctor", "amq doctor on GFS2, across two hosts", 60, "gfs2", files=Gfs2)
def gfs2_doctor(world: World) -> None:
    world.boot()
    _across_hosts(world, WARNED)


def _verdicts(world: World, files: Nfs | Smb, mounts: Mapping[str, tuple[str, str]]) -> None:
    number = SERVER + 1
    guest = world.guests[number]
    for options, (verdict, names) in mounts.items():
        world.say(options)
        path = "/srv/doctor"
        files.mount(guest, options, path)
        code, said = examine(world, number, path, "--quick")
        guest.run(f"umount {path}")
        _expect(world, f"mount -o {options}", code, said, verdict, names)


def _across_hosts(world: World, worst: str) -> None:
    """Ask a peer. A lab may be slow, so a warning is no surprise; unfit would be one."""
    first, second = SERVER + 1, SERVER + 2
    peer = world.guests[second]
    words = [*world.place.amq, "doctor", world.mount, "--as-peer"]
    peer.spawn(words, world.say, lambda code: world.say(f"the peer ended with exit code {code}"))
    address = data_address(second)
    peer.run("for i in $(seq 100); do ss -ltn | grep -q :61612 && exit; sleep 0.1; done; exit 1")
    world.say("with a peer")
    code, said = examine(world, first, world.mount, "--peer", address)
    verdict = said.get("verdict")
    world.expect(verdict in (FIT, worst), f"amq doctor --peer: exit code {code}: {json.dumps(said)}")
    tried = [finding for finding in said.get("findings", ()) if "peer" in finding["topic"] or address in str(finding)]
    world.expect(bool(tried), f"amq doctor --peer tells of nothing that it tried with the peer: {json.dumps(said)}")


def _expect(world: World, what: str, code: int | None, said: dict[str, object], verdict: str, names: str) -> None:
    right = said.get("verdict") == verdict and code == (4 if verdict == UNFIT else 0) and names in json.dumps(said)
    world.expect(right, f"{what}: expected {verdict!r} because of {names!r}, got exit code {code}: {json.dumps(said)}")
