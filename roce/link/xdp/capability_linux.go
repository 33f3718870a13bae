package xdp

import "golang.org/x/sys/unix"

// missingCapabilities returns the capabilities that Open needs and the calling thread lacks. CAP_SYS_ADMIN stands for
// CAP_BPF (include/linux/capability.h, bpf_capable), but neither for CAP_NET_RAW, without which there is no AF_XDP
// socket (net/xdp/xsk.c, xsk_create), nor for CAP_NET_ADMIN where netlink asks for it (net/core/rtnetlink.c).
func missingCapabilities() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil
	}
	has := func(capability uint) bool { return data[capability/32].Effective&(1<<(capability%32)) != 0 }
	var missing []string
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_NET_RAW) {
		missing = append(missing, "CAP_NET_RAW")
	}
	return missing
}
