package xdp

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/xsk"
)

// TestCase_F11: what the kernel has is asked before anything is attached; what it lacks and must have is told in one
// line, in place of the error number of the operation that failed. Kernels that lack something are simulated.
func TestCase_F11(t *testing.T) {
	netlab.RequireRoot(t)
	list := Features()
	require.Len(t, list, 5)
	for _, f := range list {
		require.NoError(t, f.Err, f.Name)
		t.Logf("%-70s %-10s needed %v", f.Name, f.Since, f.Needed)
	}
	require.NoError(t, CheckFeatures(list))

	lacks := func(feature string) error { return &bpf.UnsupportedError{Feature: feature, Err: unix.EINVAL} }
	noSockets := &xsk.Error{Step: "create socket", Kind: xsk.ErrNotSupported, Err: unix.EAFNOSUPPORT}
	failed := classify(&bpf.UnsupportedError{Feature: "load XDP program", Since: "Linux 5.18", Err: unix.EINVAL})
	for _, c := range []struct {
		name   string
		probes probes
		want   string // behind "this kernel (...) lacks "
	}{
		{"complete", probes{release: "5.18.0"}, ""},
		{"5.17", probes{release: "5.17.3-1", program: lacks("a helper"), frags: lacks("a helper")},
			"XDP programs with bpf_xdp_get_buff_len (Linux 5.18 or later has it)"},
		{"5.8", probes{release: "5.8.0", program: lacks("a helper"), link: lacks("bpf_link")},
			"bpf_link for XDP (Linux 5.9 or later has it), XDP programs with bpf_xdp_get_buff_len (Linux 5.18 or later has it)"},
		{"5.3", probes{release: "5.3.18", needWakeup: noSockets, multiBuffer: noSockets},
			"AF_XDP sockets with need_wakeup (Linux 5.4 or later has it)"},
		{"6.18 without AF_XDP: what failed says why", probes{release: "6.18.5", needWakeup: noSockets, multiBuffer: noSockets}, ""},
		{"6.5: nothing that is needed", probes{multiBuffer: noSockets}, ""},
		{"without frags: nothing that is needed", probes{frags: lacks("BPF_F_XDP_HAS_FRAGS")}, ""},
		{"unknown for want of a capability", probes{program: &bpf.PermissionError{Err: unix.EPERM}, link: unix.EPERM}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := explainUnsupported(failed, func() probes { return c.probes })
			require.ErrorIs(t, err, ErrNotSupported)
			require.True(t, IsEnvironment(err))
			require.NotContains(t, err.Error(), "\n")
			if c.want == "" {
				require.Equal(t, failed, err, "what failed is told as it is")
				return
			}
			require.EqualError(t, err, "not supported here: unsupported operation: this kernel ("+c.probes.release+") lacks "+c.want)
		})
	}
	other := errors.New("something else")
	require.Equal(t, other, explainUnsupported(other, func() probes { panic("not asked") }))
}

// TestFeaturesUnprivileged: who may not find out is told so, and not that the kernel lacks it.
func TestFeaturesUnprivileged(t *testing.T) {
	for _, f := range features(probes{program: &bpf.PermissionError{Err: unix.EPERM}, needWakeup: &xsk.Error{Kind: xsk.ErrPermission}}) {
		require.NotErrorIs(t, f.Err, ErrNotSupported)
		if f.Err != nil {
			require.ErrorIs(t, f.Err, ErrPermission)
		}
	}
}
