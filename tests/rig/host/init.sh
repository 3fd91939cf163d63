#!/bin/sh
# Makes the emulated host ready: mounts, modules, a home on XFS, the sources; then the agent that runs commands.
set -eu
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir /sys/fs/cgroup/init
echo 1 >/sys/fs/cgroup/init/cgroup.procs
echo '+cpu +memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
hostname rig
ip link set lo up
ip addr add 192.0.2.1/32 dev lo  # an address of its own, for machines to reach
ulimit -n 65536
for module in kvm_amd xfs tun loop virtio_console; do modprobe "$module"; done
chmod 0666 /dev/kvm /dev/net/tun
# what is written goes to an empty disk; the template's disk is only read
mkfs.xfs -q -m reflink=1 /dev/vdb
mkdir -p /rig /media/template
mount -t xfs /dev/vdb /rig
mkdir -m 0711 /rig/home /rig/home/templates /rig/src
if [ -b /dev/vdc ]; then
    mount -t ext4 -o ro,noload /dev/vdc /media/template
    cp -a --sparse=always /media/template/templates /rig/home/
    umount /media/template
fi
tar -xf /dev/vdd -C /rig/src
exec python3 /rig/src/tests/rig/host/agent.py
