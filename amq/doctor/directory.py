"""The store directory itself: who could put files of their own into it.

A user who may write to the store can replace the lock, the journal and the claims. A broker opens no symbolic link in
its store (`amq.store.files.vfs`), but a directory in it that is a link leads elsewhere, too.
"""

from __future__ import annotations

import os
import pwd
import stat

from amq.core.errors import StoreError
from amq.doctor.finding import Finding, Level, unfit
from amq.store.files.others import check_own
from amq.store.files.vfs import SystemVfs

SUBDIRECTORIES = ("journal", "epochs", "brokers", "checkpoints")
NOBODY = 65534  # what a file server shows where it does not tell users apart
_TOPIC = "owner and mode"


def judge_directory(path: str) -> list[Finding]:
    """Findings about the users who may write to the store `path`; none if it does not exist yet. Raises OSError."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return []
    findings = []
    try:
        check_own(SystemVfs(), path)
    except StoreError as error:
        why = "two brokers of different products would share one lock file"
        findings.append(unfit("another broker", error.description, why, ""))
    user = os.geteuid()
    if user == 0 and found.st_uid not in (0, NOBODY):
        owner = _name(found.st_uid)
        findings.append(
            unfit(
                _TOPIC,
                f"{path} belongs to user {owner}, and this is user root",
                "root would work on files that another user can replace, and leave files that the user cannot open",
                f"run the broker as the user who owns the store (systemd: User={owner}; by hand: runuser -u {owner} -- "
                f"amq start …), or give the store to root: chown -R root {path}",
            )
        )
    elif found.st_uid not in (user, 0):
        findings.append(
            Finding(
                Level.WARNING,
                _TOPIC,
                f"{path} belongs to user {_name(found.st_uid)}, and this is user {_name(user)}",
                "its owner can replace the lock and the journal at any time",
                f"run all brokers as the user who owns the store, or give it away: chown -R {_name(user)} {path}",
            )
        )
    for place in (path, *(os.path.join(path, name) for name in SUBDIRECTORIES)):
        mode = _mode(place)
        if mode & stat.S_IWOTH:
            findings.append(
                unfit(
                    _TOPIC,
                    f"every user of this host may write to {place} (mode {mode:o})",
                    "any of them can replace the lock and the journal",
                    f"chmod o-w {place} (SMB, FAT: mount it with dir_mode=0750,file_mode=0640, or dmask and fmask)",
                )
            )
    for name in SUBDIRECTORIES:
        inside = os.path.join(path, name)
        if os.path.islink(inside):
            findings.append(
                unfit(
                    "symbolic link",
                    f"{inside} leads to {os.path.realpath(inside)}",
                    "whoever may change the link decides where the broker writes",
                    "put the directory itself there; to keep a store elsewhere let the store's own name be the link",
                )
            )
    return findings


def _mode(path: str) -> int:
    """Permission bits of a directory that is not a link, 0 = there is none."""
    try:
        found = os.lstat(path) if os.path.basename(path) in SUBDIRECTORIES else os.stat(path)
    except FileNotFoundError:
        return 0
    return stat.S_IMODE(found.st_mode) if stat.S_ISDIR(found.st_mode) else 0


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
