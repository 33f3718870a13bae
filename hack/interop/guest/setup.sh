# Joins v0 in the initial namespace, where rdma_rxe of every kernel finds it, and v1 in namespace n1, where xroce is. With "nics"
# they are eth0 and eth1 of the machine, and otherwise a veth pair.
#   setup.sh veth|nics NETDEV-MTU LEFT       LEFT: rxe or xroce, at v0
set -e
layout=$1 mtu=$2 left=$3
mac() { echo "02:00:00:00:00:0$1"; }
modprobe -a veth ifb sch_netem act_mirred cls_matchall act_gact sch_ingress
ip netns add n1
if [ "$layout" = nics ]; then
	for i in 0 1; do ip link set "eth$i" down name "v$i" address "$(mac $((i + 1)))" mtu "$mtu"; done
else
	ip link add v0 mtu "$mtu" address "$(mac 1)" type veth peer name v1 mtu "$mtu" address "$(mac 2)"
fi
ip link set v1 netns n1
ip link add ifb0 type ifb
sysctl -qw net.ipv6.conf.ifb0.disable_ipv6=1 # it has nothing to send itself, which would be counted
ip link set ifb0 up
in_namespace() { if [ "$1" = 1 ]; then ip netns exec n1 "${@:2}"; else "${@:2}"; fi; }
for i in 0 1; do
	# Addresses work at once, and nothing else is on the wire.
	in_namespace $i sysctl -qw net.ipv6.conf.v$i.accept_dad=0 net.ipv6.conf.v$i.router_solicitations=0
	in_namespace $i ip addr add 10.0.0.$((i + 1))/24 dev v$i
	in_namespace $i ip addr add fd00::$((i + 1))/64 dev v$i nodad
	in_namespace $i ip link set v$i up
	in_namespace $i ip link set lo up
done
for _ in $(seq 100); do
	[ "$(cat /sys/class/net/v0/operstate)" = up ] && [ "$(ip netns exec n1 cat /sys/class/net/v1/operstate)" = up ] && break
	sleep 0.1
done
# Neighbours are known before packets get lost on purpose: the kernel gives an address one second to be resolved when a queue pair of rdma_rxe
# is connected, and asks again after a second.
for address in 10.0.0.2 fd00::2; do ping -q -c 3 -i 0.2 "$address" >/dev/null; done
if [ "$left" = rxe ]; then
	modprobe -a rdma_rxe ib_uverbs
	rdma system set netns shared
	rdma link add rxe0 type rxe netdev v0
fi
