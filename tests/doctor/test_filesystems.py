"""Mounts of every kind get the right judgement, each with a reason and a cure."""

from __future__ import annotations

import pytest
from doctor_world import (
    CEPH,
    CIFS,
    EXT4,
    GFS2,
    GLUSTER,
    MOUNTSTATS,
    NFS3,
    NFS4,
    NFS4_DEFAULT,
    OCFS2,
    OVERLAY,
    SSHFS,
    TMPFS,
    VIRTIOFS,
    SampleMachine,
    by_topic,
    changed,
)

from amq.doctor.filesystems import ALONE_TOPIC, Judgement, judge, judge_magic
from amq.doctor.finding import Finding, Level, worst
from amq.doctor.mounts import parse_mountinfo

TABLE = "/sys/fs/gfs2/lab:data"
DLM = {f"{TABLE}/id": "253:3\n", f"{TABLE}/lock_module/proto_name": "lock_dlm\n", "/sys/fs/gfs2/other/id": "253:9\n"}
NOLOCK = DLM | {f"{TABLE}/lock_module/proto_name": "lock_nolock\n"}
CROWD = MOUNTSTATS.replace("lease_time=10", "lease_time=90")


def judgement(line: str, files: dict[str, str] | None = None) -> Judgement:
    (mount,) = parse_mountinfo(line)
    return judge(mount, SampleMachine(line, files or {}))


FIT = [
    ("nfs4 as recommended", NFS4, {}),
    ("nfs4.1", changed(NFS4, "vers=4.1"), {}),
    ("nfs4, older kernel", changed(NFS4, "vers=4", "minorversion=1"), {}),
    ("nfs4 without sync", changed(NFS4, "-sync"), {}),
    ("nfs4 over rdma", changed(NFS4, "proto=rdma"), {}),
    ("gfs2 with dlm", GFS2, DLM),
    ("gfs2, protocol as option", changed(GFS2, "lockproto=lock_dlm"), {}),
    ("smb", CIFS, {}),
    ("smb 3.0", changed(CIFS, "vers=3.0"), {}),
]
WARNED = [
    ("nfs4 default options", NFS4_DEFAULT, {}, "soft"),
    ("nfs4 default options, names", NFS4_DEFAULT, {}, "lookupcache=none"),
    ("nfs4 default options, time", NFS4_DEFAULT, {}, "timeo=20"),
    ("nfs4 softerr", changed(NFS4, "-soft", "softerr"), {}, "soft"),
    ("nfs4 many repetitions", changed(NFS4, "retrans=10"), {}, "retrans=2"),
    ("nfs4 pos", changed(NFS4, "lookupcache=pos"), {}, "lookupcache=none"),
    ("nfs4.0", changed(NFS4, "vers=4.0"), {}, "file system"),
    ("nfs, no version", changed(NFS4, "-vers"), {}, "file system"),
    ("nfs4, long lease", NFS4, {"/proc/self/mountstats": CROWD}, "lease time"),
    ("nfs4, lost locks", NFS4, {"/sys/module/nfs/parameters/recover_lost_locks": "Y\n"}, "recover_lost_locks"),
    ("nfs4 over udp", changed(NFS4, "proto=udp"), {}, "proto=tcp"),
    ("gfs2, unknown", GFS2, {}, "file system"),
    ("smb, cached", changed(CIFS, "cache=strict"), {}, "cache=none"),
    ("smb 2", changed(CIFS, "vers=2.1"), {}, "vers=3.1.1"),
    ("smb, made-up numbers", changed(CIFS, "-serverino"), {}, "serverino"),
    ("smb without strict sync", changed(CIFS, "nostrictsync"), {}, "strictsync"),
    ("overlay without syncs", changed(OVERLAY, "volatile"), {}, "syncs"),
    ("ext4", EXT4, {}, ALONE_TOPIC),
    ("tmpfs", TMPFS, {}, ALONE_TOPIC),
    ("overlay", OVERLAY, {}, ALONE_TOPIC),
    ("ext4 without barriers", changed(EXT4, "nobarrier"), {}, "barrier"),
    ("ext4 barrier=0", changed(EXT4, "barrier=0"), {}, "barrier"),
    ("virtiofs", VIRTIOFS, {}, "file system"),
    ("ceph", CEPH, {}, "file system"),
    ("glusterfs", GLUSTER, {}, "file system"),
]
UNFIT = [
    ("nfs3", NFS3, {}, "file system"),
    ("nfs3 nolock", changed(NFS3, "nolock", "local_lock=all"), {}, "local_lock=none"),
    ("nfs2", changed(NFS3, "vers=2"), {}, "file system"),
    ("nfs4 local_lock=flock", changed(NFS4, "local_lock=flock"), {}, "local_lock=none"),
    ("nfs4 local_lock=posix", changed(NFS4, "local_lock=posix"), {}, "local_lock=none"),
    ("nfs4 local_lock=all", changed(NFS4, "local_lock=all"), {}, "local_lock=none"),
    ("nfs4 nocto", changed(NFS4, "nocto"), {}, "cto"),
    ("nfs4 read-only", changed(NFS4, "-rw", "ro"), {}, "rw"),
    ("gfs2 lock_nolock", GFS2, NOLOCK, "file system"),
    ("gfs2 localflocks", changed(GFS2, "localflocks"), DLM, "cluster locks"),
    ("ocfs2", OCFS2, {}, "file system"),
    ("smb nobrl", changed(CIFS, "nobrl"), {}, "brl"),
    ("smb loose", changed(CIFS, "cache=loose"), {}, "cache=none"),
    ("sshfs", SSHFS, {}, "file system"),
    ("ext4 read-only", changed(EXT4, "-rw", "ro"), {}, "rw"),
]


@pytest.mark.parametrize(("line", "files"), [row[1:] for row in FIT], ids=[row[0] for row in FIT])
def test_fit(line: str, files: dict[str, str]) -> None:
    found = judgement(line, files).findings
    assert worst(found) in (Level.OK, Level.NOTE), [str(finding) for finding in found]


@pytest.mark.parametrize(("line", "files", "topic"), [row[1:] for row in WARNED], ids=[row[0] for row in WARNED])
def test_fit_with_warnings(line: str, files: dict[str, str], topic: str) -> None:
    found = judgement(line, files).findings
    assert worst(found) is Level.WARNING, [str(finding) for finding in found]
    assert by_topic(found)[topic].level is Level.WARNING
    explained(found)


@pytest.mark.parametrize(("line", "files", "topic"), [row[1:] for row in UNFIT], ids=[row[0] for row in UNFIT])
def test_unfit(line: str, files: dict[str, str], topic: str) -> None:
    found = judgement(line, files).findings
    assert worst(found) is Level.UNFIT
    assert by_topic(found)[topic].level is Level.UNFIT
    explained(found)


def explained(findings: list[Finding]) -> None:
    for finding in findings:
        assert finding.why, finding
        assert finding.cure or finding.level in (Level.OK, Level.NOTE), finding


def test_every_recommended_option_is_judged_with_its_purpose() -> None:
    judged = by_topic(judgement(NFS4).findings)
    recommended = judgement(NFS4).mount_options.split(",")
    assert {"soft", "timeo=20", "retrans=2", "lookupcache=none", "sync", "proto=tcp"} <= set(recommended)
    assert set(recommended) - {"vers=4.2"} <= set(judged)
    for option in recommended:
        if option != "vers=4.2":
            assert judged[option].why


def test_what_is_mounted_as_recommended_gets_no_warning() -> None:
    (mount,) = parse_mountinfo(NFS4_DEFAULT)
    advised = changed(NFS4_DEFAULT, "-hard", *judge(mount, SampleMachine()).mount_options.split(","))
    assert worst(judgement(advised).findings) in (Level.OK, Level.NOTE)
    advised = changed(CIFS, "cache=strict", *judgement(CIFS).mount_options.split(","))
    assert worst(judgement(advised).findings) in (Level.OK, Level.NOTE)


def test_the_lease_time() -> None:
    assert judgement(NFS4).lease_s == 10
    assert by_topic(judgement(NFS4).findings)["lease time"].found == "10 s"
    unknown = judgement(NFS4, {"/proc/self/mountstats": ""})
    assert unknown.lease_s is None
    assert by_topic(unknown.findings)["lease time"].found == "unknown"
    assert "lease time" not in by_topic(judgement(NFS3).findings)
    assert judgement(EXT4).lease_s == 0
    here = judgement(EXT4, {"/proc/fs/nfsd/nfsv4leasetime": "90\n"}).findings
    assert by_topic(here)["lease time of the NFS server here"].found == "90 s"


def test_the_server_names_itself() -> None:
    assert "Linux 6.1.176" in by_topic(judgement(NFS4).findings)["file system"].found


def test_memory_does_not_stay() -> None:
    assert "reboot" in by_topic(judgement(TMPFS).findings)[ALONE_TOPIC].why
    assert "container" in by_topic(judgement(OVERLAY).findings)[ALONE_TOPIC].why


def test_statfs_of_another_opinion() -> None:
    (mount,) = parse_mountinfo(EXT4)
    assert list(judge_magic(mount, 0xEF53)) == []
    (finding,) = judge_magic(mount, 0x6969)
    assert finding.level is Level.WARNING
    assert "0x6969" in finding.found
    (unknown,) = parse_mountinfo(VIRTIOFS)
    assert list(judge_magic(unknown, 1)) == []
