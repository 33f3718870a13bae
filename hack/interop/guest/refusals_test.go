//go:build linux

package guest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
)

const kernel61, kernel612, kernel73 = "6.1.0-50-amd64", "6.12.117+deb13-amd64", "7.3.4+deb13-amd64"

// TestRefusal: what may be refused where.
func TestRefusal(t *testing.T) {
	veth := func(kernel string, r plan.Rung) setting { return setting{kernel: kernel, netMTU: 9000, rung: r} }
	nic := func(kernel, model string, r plan.Rung) setting { return setting{kernel, model, 3000, r} }
	zero, generic := plan.Rung{Copy: "zero"}, plan.Rung{Mode: "generic", Copy: "zero"}
	for _, c := range []struct {
		s         setting
		end, verb string
		t         terms
		want      expectation
	}{
		{veth(kernel61, plan.Rung{}), "xroce", "open", terms{}, never},
		{veth(kernel61, plan.Rung{}), "rxe", "open", terms{}, never},
		{veth(kernel73, zero), "xroce", "open", terms{}, always},
		{veth(kernel61, plan.Rung{MultiBuffer: "on"}), "xroce", "open", terms{}, always},
		{veth(kernel73, plan.Rung{MultiBuffer: "on"}), "xroce", "open", terms{}, never},
		{nic(kernel61, "igb", zero), "xroce", "open", terms{}, always},
		{nic(kernel612, "virtio", zero), "xroce at v0", "open", terms{}, always},
		{nic(kernel73, "virtio", zero), "xroce at v0", "open", terms{}, never},
		{nic(kernel73, "igb", zero), "xroce", "open", terms{}, never},
		{nic(kernel73, "igb", generic), "xroce", "open", terms{}, always},
		{nic(kernel73, "e1000e", zero), "xroce", "open", terms{}, perhaps},
		{nic(kernel73, "igb", plan.Rung{Mode: "native", Copy: "zero", MultiBuffer: "on"}), "xroce", "open", terms{}, perhaps},
		{nic(kernel73, "igb", plan.Rung{Mode: "native", Copy: "copy", MultiBuffer: "on"}), "xroce", "open", terms{}, never},
		{nic("6.18.2-amd64", "igb", zero), "xroce", "open", terms{}, perhaps},
		{nic(kernel73, "igb", zero), "rxe", "open", terms{}, never},

		{veth(kernel61, plan.Rung{}), "xroce", "connect", terms{mtu: 4096}, always},
		{veth(kernel61, plan.Rung{}), "xroce", "connect", terms{mtu: 2048}, never},
		{veth(kernel61, plan.Rung{}), "rxe", "connect", terms{mtu: 4096}, never},
		{veth(kernel612, plan.Rung{}), "xroce", "connect", terms{mtu: 4096}, never},
		{veth(kernel73, plan.Rung{}), "xroce at v0", "connect", terms{mtu: 4096}, never},
		{veth(kernel73, plan.Rung{MultiBuffer: "off"}), "xroce", "connect", terms{mtu: 4096}, always},
		{nic(kernel73, "igb", plan.Rung{}), "xroce", "connect", terms{mtu: 4096}, always},
		{setting{kernel: kernel73, nic: "igb", netMTU: 9000}, "xroce", "connect", terms{mtu: 4096}, perhaps},
		{setting{kernel: kernel73, netMTU: 1500}, "xroce", "connect", terms{mtu: 2048}, always},

		{veth(kernel61, plan.Rung{}), "rxe", "create", terms{special: plan.AtomicWrite}, always},
		{veth(kernel61, plan.Rung{}), "rxe", "create", terms{special: plan.Flush}, always},
		{veth(kernel61, plan.Rung{}), "xroce", "create", terms{special: plan.Flush}, never},
		{veth(kernel61, plan.Rung{}), "rxe", "create", terms{mtu: 1024}, never},
		{veth(kernel612, plan.Rung{}), "rxe", "create", terms{special: plan.Flush}, never},
		{veth(kernel73, plan.Rung{}), "xroce", "post", terms{mtu: 4096}, never},
	} {
		require.Equal(t, c.want, c.s.refusal(c.end, c.verb, c.t), "%+v %s %s %+v", c.s, c.end, c.verb, c.t)
	}
}

// TestPermitted: a refusal that may not be is a failure.
func TestPermitted(t *testing.T) {
	said := &endError{"xroce", "connect", "path MTU does not fit the device", true}
	large := terms{mtu: 4096}
	old, young := setting{kernel: kernel61, netMTU: 9000}, setting{kernel: kernel73, netMTU: 9000}
	require.Equal(t, report.Refused, outcomeOf(old.permitted(said, large)))
	require.Equal(t, report.Fails, outcomeOf(young.permitted(said, large)))
	require.Equal(t, report.Fails, outcomeOf(old.permitted(said, terms{mtu: 1024})))
	require.Equal(t, report.Fails, outcomeOf(old.permitted(said, terms{})))
	require.NoError(t, young.permitted(nil, large))
}

// TestConclude: nothing hides that an end is dead or complains at its end.
func TestConclude(t *testing.T) {
	no, wrong, dead := &endError{"xroce", "open", "no",
		true}, &rxeFault{"evidence"}, errors.New("xroce ended with exit status 2")
	for _, c := range []struct {
		err, cleaned error
		outcome      string
		detail       string
	}{
		{nil, nil, report.Works, ""},
		{no, nil, report.Refused, "xroce: open: no"},
		{fmt.Errorf("cell: %w", no), nil, report.Refused, "cell: xroce: open: no"},
		{errors.Join(no, nil), nil, report.Refused, "xroce: open: no"},
		{wrong, nil, report.RxeFault, "evidence"},
		{&endError{"xroce", "open", "no", false}, nil, report.Fails, "xroce: open: no"},
		{nil, dead, report.Fails, "afterwards: xroce ended with exit status 2"},
		{no, dead, report.Fails, "xroce: open: no; afterwards: xroce ended with exit status 2"},
		{wrong, dead, report.Fails, "evidence; afterwards: xroce ended with exit status 2"},
		{dead, dead, report.Fails, "xroce ended with exit status 2; afterwards: xroce ended with exit status 2"},
		{errors.Join(no, dead), nil, report.Fails, "xroce: open: no\nxroce ended with exit status 2"},
		{fmt.Errorf("%w, %w", wrong, dead), nil, report.Fails, "evidence, xroce ended with exit status 2"},
		{fmt.Errorf("x: %w", errors.Join(wrong, no)), nil, report.Fails, "x: evidence\nxroce: open: no"},
	} {
		outcome, detail := conclude(c.err, c.cleaned)
		require.Equal(t, c.outcome, outcome, c.detail)
		require.Equal(t, c.detail, detail)
	}
}

func TestLargestMTU(t *testing.T) {
	require.Equal(t, 4096, largestMTU(9000, true))
	require.Equal(t, 2048, largestMTU(9000, false))
	require.Equal(t, 4096, largestMTU(4192, true))
	require.Equal(t, 2048, largestMTU(4191, true))
	require.Equal(t, 1024, largestMTU(1500, true))
	require.Equal(t, 0, largestMTU(300, true))
}
