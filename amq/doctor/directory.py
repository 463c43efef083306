"""The store directory itself: who could put files of their own into it.

A user who may write to the store can replace the lock, the journal and the claims. A broker opens no symbolic link in
its store (`amq.vfs`), but a directory in it that is a link leads elsewhere, too.
"""

from __future__ import annotations

import os
import pwd
import stat

from amq.doctor.finding import Finding, Level, unfit

SUBDIRECTORIES = ("journal", "epochs", "brokers", "checkpoints")
_TOPIC = "owner and mode"


def judge_directory(path: str) -> list[Finding]:
    """Findings about the users who may write to the store `path`; none if it does not exist yet. Raises OSError."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return []
    findings = []
    user = os.geteuid()
    if found.st_uid not in (user, 0):
        findings.append(Finding(
            Level.WARNING, _TOPIC, f"{path} belongs to user {_name(found.st_uid)}, and this is user {_name(user)}",
            "its owner can replace the lock and the journal at any time",
            f"run all brokers as the user who owns the store, or give it away: chown -R {_name(user)} {path}",
        ))  # fmt: skip
    if found.st_mode & stat.S_IWOTH:
        mode = f"{stat.S_IMODE(found.st_mode):o}"
        findings.append(Finding(
            Level.WARNING, _TOPIC, f"every user of this host may write to {path} (mode {mode})",
            "any of them can replace the lock and the journal", f"chmod o-w {path}",
        ))  # fmt: skip
    for name in SUBDIRECTORIES:
        inside = os.path.join(path, name)
        if os.path.islink(inside):
            findings.append(unfit(
                "symbolic link", f"{inside} leads to {os.path.realpath(inside)}",
                "whoever may change the link decides where the broker writes",
                "put the directory itself there; to keep a store elsewhere let the store's own name be the link",
            ))  # fmt: skip
    return findings


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
