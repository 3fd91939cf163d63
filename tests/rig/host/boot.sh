#!/bin/sh
# The first process of the emulated host: goes on with what the sources say, so that the image need not change with them.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t tmpfs run /run
tar -xf /dev/vdd -C /run tests/rig/host
exec sh /run/tests/rig/host/init.sh
