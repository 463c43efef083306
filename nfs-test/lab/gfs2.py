"""GFS2 on one disk that all broker hosts have, with corosync, dlm and real fencing: a node that the cluster gives up
loses its power before anybody gets its locks. Guest 1 has a vote and no disk.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from lab.filesystem import MOUNT, SERVER, make_sparse, together
from lab.guest import Guest
from lab.network import data_address

TOKEN_MS = 1500
FENCE_PORT = 7001
DEVICE = "/dev/ubdb"
DISK_BYTES = 512 << 20

_CLUSTER = """
mkdir -p /etc/corosync /etc/dlm /var/lib/corosync /var/log/cluster /var/run/cluster
cat > /etc/corosync/corosync.conf <<'END'
totem {{
  version: 2
  cluster_name: amq
  transport: udpu
  token: {token_ms}
  secauth: off
}}
nodelist {{
{nodes}
}}
quorum {{
  provider: corosync_votequorum
}}
logging {{
  to_logfile: yes
  logfile: /var/log/cluster/corosync.log
}}
END
cat > /etc/dlm/dlm.conf <<'END'
log_debug=1
post_join_delay=3
fence_all /usr/local/sbin/fence_lab
END
mkdir -p /usr/local/sbin
cat > /usr/local/sbin/fence_lab <<'END'
#!/bin/sh
exec {python} {here}/fence_agent.py
END
chmod +x /usr/local/sbin/fence_lab
modprobe -a configfs dlm gfs2
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
mkdir -p /dev/misc
for name in dlm-control dlm-monitor dlm_plock; do ln -sf /dev/$name /dev/misc/$name; done
corosync
"""
_QUORATE = "for i in $(seq 150); do corosync-quorumtool -s | grep -q 'Quorate: *Yes' && exit; sleep 0.1; done; exit 1"


class Gfs2:
    """lock_dlm on a shared disk. `lease_s`: 0, locks are free when the dead node was fenced and recovered."""

    lease_s = 0

    def __init__(self) -> None:
        self._fencing: _FenceDevice | None = None

    def disks(self, work: Path, hosts: Sequence[int]) -> Mapping[int, Mapping[str, str]]:
        make_sparse(work / "shared", DISK_BYTES)
        return {number: {"ubd1cs": str(work / "shared")} for number in hosts}

    def set_up(self, guests: Mapping[int, Guest]) -> None:
        self._fencing = _FenceDevice(guests)
        nodes = "\n".join(
            f"  node {{\n    ring0_addr: {data_address(n)}\n    nodeid: {n}\n    name: {guest.name}\n  }}"
            for n, guest in guests.items()
        )
        here = Path(__file__).resolve().parent
        some = next(iter(guests.values()))
        script = _CLUSTER.format(token_ms=TOKEN_MS, nodes=nodes, python=some.python, here=here)
        hosts = [guest for n, guest in guests.items() if n != SERVER]
        together([partial(guest.run, script) for guest in guests.values()])
        together([partial(guest.run, _QUORATE) for guest in guests.values()])
        together([partial(guest.run, "dlm_controld") for guest in guests.values()])
        hosts[0].run(f"mkfs.gfs2 -q -O -p lock_dlm -t amq:data -j {len(hosts)} -J 8 {DEVICE}")
        for guest in hosts:
            guest.run(f"mkdir -p {MOUNT}; mount -t gfs2 -o noatime {DEVICE} {MOUNT}")

    def remount(self, guest: Guest) -> None:
        """Nothing to do: its caches are coherent, by locks."""

    def close(self) -> None:
        if self._fencing is not None:
            self._fencing.close()


class _FenceDevice:
    """A power switch on the control network: a node asks for another one's end, and is told when it is done."""

    def __init__(self, guests: Mapping[int, Guest]) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                guests[int(self.rfile.readline())].power_off()
                self.wfile.write(b"off\n")

        socketserver.ThreadingTCPServer.allow_reuse_address = True
        self._server = socketserver.ThreadingTCPServer(("10.99.0.254", FENCE_PORT), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="fence device", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
