package bpf

import "golang.org/x/sys/unix"

// missingCapabilities returns the capabilities that loading and attaching need and
// that the calling thread lacks. CAP_SYS_ADMIN stands for CAP_BPF and CAP_NET_ADMIN
// (include/linux/capability.h: bpf_capable; kernel/bpf/syscall.c: bpf_prog_load).
func missingCapabilities() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return nil
	}
	has := func(capability uint) bool {
		return data[capability/32].Effective&(1<<(capability%32)) != 0
	}
	var missing []string
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_NET_ADMIN) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	return missing
}
