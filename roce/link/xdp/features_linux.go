package xdp

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/xsk"
)

// Feature is something that the kernel has to have, or that Devices are better with.
type Feature struct {
	Name   string
	Since  string // the first kernel with it: "Linux 5.9"
	Needed bool   // Open fails without it
	// Err is nil if the kernel has it, matches ErrNotSupported if not, and is otherwise why that cannot be found out: for
	// want of a capability, for one.
	Err error
}

// Features asks the kernel for each. Nothing is attached or bound.
func Features() []Feature { return features(kernelProbes()) }

// probes are the answers of the kernel.
type probes struct{ program, frags, link, needWakeup, multiBuffer error }

func kernelProbes() probes {
	s := bpf.Probe()
	return probes{
		program: s.Program, frags: s.Frags, link: s.Link,
		needWakeup: xsk.CheckNeedWakeup(), multiBuffer: xsk.CheckMultiBuffer(),
	}
}

func features(p probes) []Feature {
	list := []Feature{
		{"AF_XDP sockets with need_wakeup", "Linux 5.4", true, p.needWakeup},
		{"bpf_link for XDP", "Linux 5.9", true, p.link},
		{"XDP programs with bpf_xdp_get_buff_len", "Linux 5.18", true, p.program},
		{"XDP programs for frames in several buffers", "Linux 5.18", false, p.frags},
		{"AF_XDP for frames in several buffers, which path MTU 4096 needs", "Linux 6.6", false, p.multiBuffer},
	}
	for i, f := range list {
		if f.Err != nil {
			list[i].Err = classify(f.Err)
		}
	}
	return list
}

// CheckFeatures says, in one line and with ErrNotSupported, what a kernel lacks of what is needed, or nil.
func CheckFeatures(list []Feature) error {
	var missing []string
	for _, f := range list {
		if f.Needed && errors.Is(f.Err, ErrNotSupported) {
			missing = append(missing, fmt.Sprintf("%s (%s or later has it)", f.Name, f.Since))
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("%w: this kernel (%s) lacks %s", ErrNotSupported, KernelRelease(), strings.Join(missing, ", "))
}

// KernelRelease is the kernel's version as uname(2) tells it.
func KernelRelease() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// explainUnsupported puts what the kernel lacks in the place of what failed for want of it.
func explainUnsupported(err error, ask func() probes) error {
	if !errors.Is(err, ErrNotSupported) {
		return err
	}
	if missing := CheckFeatures(features(ask())); missing != nil {
		return missing
	}
	return err
}
