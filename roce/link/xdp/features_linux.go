package xdp

import (
	"errors"
	"fmt"
	"strings"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/internal/refusal"
	"github.com/xroce/xroce/xsk"
)

// Features asks the kernel for each. Nothing is attached or bound.
func Features() []Feature { return features(kernelProbes()) }

// probes are the answers of the kernel.
type probes struct {
	release                                       string // of the kernel
	program, frags, link, needWakeup, multiBuffer error
}

func kernelProbes() probes {
	s := bpf.Probe()
	return probes{
		release: KernelRelease(), program: s.Program, frags: s.Frags, link: s.Link,
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

// CheckFeatures returns an error of one line, with ErrNotSupported, that names the needed features which this kernel
// lacks, or nil.
func CheckFeatures(list []Feature) error {
	other, lacks := missingFeatures(list, KernelRelease())
	if lacks != nil || other == nil {
		return lacks
	}
	return fmt.Errorf("%w: %s", ErrNotSupported, strings.Join(other, "; "))
}

// missingFeatures says, in one line and with ErrNotSupported, what a kernel lacks because it is too old, and names what
// else is not to be had: the kernel's age is not the cause there, and what was found out about that is told.
func missingFeatures(list []Feature, release string) (other []string, lacks error) {
	var missing []string
	for _, f := range list {
		switch {
		case !f.Needed || !errors.Is(f.Err, ErrNotSupported):
		case refusal.Older(release, f.Since):
			missing = append(missing, fmt.Sprintf("%s (%s or later has it)", f.Name, f.Since))
		default:
			other = append(other, fmt.Sprintf("%s: %v", f.Name, f.Err))
		}
	}
	if missing != nil {
		lacks = fmt.Errorf("%w: this kernel (%s) lacks %s", ErrNotSupported, release, strings.Join(missing, ", "))
	}
	return other, lacks
}

// KernelRelease is the kernel's version as uname(2) tells it.
func KernelRelease() string { return refusal.Release() }

// explainUnsupported replaces an error that follows from a missing feature of the kernel by one that names the feature.
func explainUnsupported(err error, ask func() probes) error {
	if !errors.Is(err, ErrNotSupported) {
		return err
	}
	answers := ask()
	if _, lacks := missingFeatures(features(answers), answers.release); lacks != nil {
		return lacks
	}
	return err
}
