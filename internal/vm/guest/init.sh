#!/bin/bash
# Second stage of the guest, as process 1 in its real root: runs the script of the job and switches the machine off.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777,size=90% tmpfs /tmp
mkdir -p /run/lock /run/netns /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t bpf bpf /sys/fs/bpf
mount -t debugfs debugfs /sys/kernel/debug
mount --make-rshared /
ip link set lo up
ulimit -n 65536
ulimit -l unlimited
echo 1 >/proc/sys/kernel/panic_on_oops

# No udev: the drivers of network devices are loaded here. virtio_net knows its devices on the bus of virtio.
for device in /sys/bus/pci/devices/*; do
	[[ $(<"$device/class") != 0x02* ]] || modprobe -q "$(<"$device/modalias")"
done
[ ! -d /sys/bus/virtio/devices ] || modprobe -q virtio_net
for port in /sys/class/virtio-ports/*; do
	[ "$(cat "$port/name" 2>/dev/null)" != script ] || output=/dev/${port##*/}
done

mount --bind /job/host /host
mount --bind /job/results /results
(
	cd /host || exit 125
	. /job/environment
	exec setsid bash /job/script "${ARGUMENTS[@]}" </dev/null >"${output:-/dev/console}" 2>&1
)
echo $? >/job/status
dmesg >/job/results/dmesg
sync
busybox poweroff -f
sleep 60
