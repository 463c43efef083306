"""A Samba server on guest 1, and mounts of it. It looks for dead clients: else it would keep their locks for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from lab.filesystem import MOUNT, SERVER, make_ext4, together
from lab.guest import Guest
from lab.network import data_address

KEEPALIVE = "SO_KEEPALIVE TCP_KEEPIDLE=4 TCP_KEEPINTVL=2 TCP_KEEPCNT=3 TCP_USER_TIMEOUT=10000"
NOTICES_S = 10  # after which, by these options, the server gives up a client that is gone
RECOMMENDED = "vers=3.1.1,cache=none,echo_interval=4"

_START = f"""
mkdir -p /srv/disk
mount -t ext4 /dev/ubda /srv/disk
mkdir -p /srv/disk/share /etc/samba /run/samba /var/lib/samba/private /var/cache/samba /var/log/samba
cat > /etc/samba/smb.conf <<'END'
[global]
  security = user
  socket options = {KEEPALIVE}
  log level = 1
  log file = /var/log/samba/log
  disable netbios = yes
  smb ports = 445
  load printers = no
  printing = bsd
  printcap name = /dev/null
[amq]
  path = /srv/disk/share
  read only = no
END
printf 'secret\\nsecret\\n' | smbpasswd -a -s root
smbd -D
for i in $(seq 100); do ss -ltn | grep -q :445 && exit; sleep 0.1; done
exit 1
"""


class Smb:
    """`options`: of the mounts, beside user and password."""

    lease_s = NOTICES_S

    def __init__(self, options: str = RECOMMENDED) -> None:
        self._options = options

    def disks(self, work: Path, hosts: Sequence[int]) -> Mapping[int, Mapping[str, str]]:  # noqa: ARG002
        make_ext4(work / "disk")
        return {SERVER: {"ubd0": str(work / "disk")}}

    def set_up(self, guests: Mapping[int, Guest]) -> None:
        guests[SERVER].run(_START)
        together([partial(self.mount, guest) for n, guest in guests.items() if n != SERVER])

    def mount(self, guest: Guest, options: str = "", path: str = MOUNT) -> None:
        options = f"{options or self._options},username=root,password=secret"
        guest.run(f"modprobe cifs; mkdir -p {path}; mount -t cifs -o {options} //{data_address(SERVER)}/amq {path}")

    def remount(self, guest: Guest) -> None:
        guest.run(f"umount -l {MOUNT}")
        self.mount(guest)

    def close(self) -> None:
        """Everything runs in guests."""
