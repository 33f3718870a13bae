package xdp

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/refusal"
)

// missingCapabilities returns the capabilities that Open needs and the calling thread lacks. CAP_SYS_ADMIN stands for
// CAP_BPF (include/linux/capability.h, bpf_capable), but neither for CAP_NET_RAW, without which there is no AF_XDP
// socket (net/xdp/xsk.c, xsk_create), nor for CAP_NET_ADMIN where netlink asks for it (net/core/rtnetlink.c).
func missingCapabilities() []string {
	has := refusal.Effective()
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

// lacking says, with ErrPermission, which capabilities are missing, all at once, or nil.
func lacking(missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	return &classified{error: fmt.Errorf("this user may not open it: missing %s", strings.Join(missing, ", ")), kind: ErrPermission}
}
