//go:build linux

package guest

import (
	"errors"
	"fmt"

	"github.com/xroce/xroce/hack/interop/wire"
)

// audit looks at every packet in the capture of a cell, and adds them to those of the run. both says that neither end
// can have been silent.
func (g *guest) audit(both bool) error {
	found, err := wire.Audit(wire.CaptureFile)
	if err != nil {
		return err
	}
	if g.icrc == nil {
		g.icrc = map[byte]*wire.Tally{wire.MACV0: {}, wire.MACV1: {}}
	}
	var all []error
	for _, sender := range []byte{wire.MACV0, wire.MACV1} {
		t, sum := found[sender], g.icrc[sender]
		if t == nil {
			if both {
				all = append(all, fmt.Errorf("the capture has no packet of %s", g.sender(sender)))
			}
			continue
		}
		sum.Packets, sum.Wrong, sum.Cells = sum.Packets+t.Packets, sum.Wrong+t.Wrong, sum.Cells+t.Cells
		if t.Wrong > 0 {
			all = append(all, fmt.Errorf("%s sent a wrong ICRC in %d of %d packets, the first one: %s", g.sender(sender), t.Wrong, t.Packets, t.First))
		}
	}
	return errors.Join(all...)
}

// sender names who has the Ethernet address.
func (g *guest) sender(mac byte) string {
	if mac == wire.MACV0 {
		return "rdma_rxe of " + g.report.Kernel
	}
	return "xroce"
}
