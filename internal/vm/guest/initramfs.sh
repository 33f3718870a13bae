#!/busybox sh
# First process of the guest: the boot modules, then the root by 9P and the second stage in it.
/busybox mount -t proc proc /proc
/busybox mount -t sysfs sys /sys
/busybox mount -t devtmpfs dev /dev
while read -r module; do
	/busybox insmod "/modules/$module" || echo "vm: insmod $module failed"
done </modules/list
share() { # TAG FOLDER OPTIONS
	/busybox mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2" || echo "vm: no share $1"
}
share root /new ro,cache=loose
share modules /new/lib/modules ro,cache=loose
share job /new/job cache=none
for d in proc sys dev; do /busybox mount -o move "/$d" "/new/$d"; done
exec /busybox switch_root /new /job/init
