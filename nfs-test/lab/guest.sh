#!/bin/sh
# First process of a guest. Its root is the host's own / (read-only, by hostfs) under the unpacked packages of the lab,
# under a file system in memory that takes all writes. The LAB_… variables come from the kernel's command line.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
modules=$LAB_MODULES/$(uname -r)
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
mkdir /mnt/memory /mnt/memory/upper /mnt/memory/work /mnt/packages /mnt/root
mount -t hostfs -o "$LAB_PACKAGES" none /mnt/packages
kmod=/mnt/packages/usr/bin/kmod # unless the host has it already
[ -x $kmod ] || kmod=/bin/kmod
ln -s $kmod /mnt/insmod
LD_LIBRARY_PATH="/mnt/packages/usr/lib/$LAB_MULTIARCH" /mnt/insmod "$modules/kernel/fs/overlayfs/overlay.ko"
mount -t overlay -o lowerdir=/mnt/packages:/,upperdir=/mnt/memory/upper,workdir=/mnt/memory/work overlay /mnt/root
cd /mnt/root || exit 1
mkdir -p usr/lib/modules sys dev proc run
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mount -t tmpfs tmpfs run
mkdir -p dev/shm dev/pts run/rpc_pipefs run/lock
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
mount -t hostfs -o "$LAB_MODULES" none usr/lib/modules
echo "host$LAB_NUMBER" > proc/sys/kernel/hostname
{ echo "127.0.0.1 localhost"; for n in 1 2 3 4 5; do echo "10.98.0.$n host$n"; done; } > etc/hosts
ip link set lo up
ip addr add "10.98.0.$LAB_NUMBER/24" dev "$LAB_DATA" && ip link set "$LAB_DATA" up
ip addr add "10.99.0.$LAB_NUMBER/24" dev "$LAB_CONTROL" && ip link set "$LAB_CONTROL" up
exec chroot . "$LAB_PYTHON" "$LAB_AGENT"
