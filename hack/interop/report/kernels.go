//go:build linux

package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/xroce/xroce/hack/interop/plan"
)

const aboutKernels = `## Kernels and drivers

` + "`" + `bin/interop report` + "`" + ` makes this section of what virtual machines with kernels of Debian have shown (` + "`" + `make interop-full` + "`" + `). The first rows are what ` + "`" + `xroce
features` + "`" + ` says; the next ones are what xroce obtains by default and in generic mode, with data going both ways (the network devices of
virtio_net and igb have MTU 3000); the last ones are how many cells of each operation work with Linux's rdma_rxe at the other end. Undisturbed are
cells over a network with faults that happened to have none. [interop.md](interop.md) has the other choices of options, and the reason of each refusal.

`

// WriteKernels writes what works on which kernel, in short: the last section of docs/support.md, which
// internal/support/matrix embeds.
func WriteKernels(w io.Writer, reports []Report) {
	var t table
	for _, r := range reports {
		t.say("revision of xroce", r.Kernel, r.xroce())
	}
	for _, r := range reports {
		if r.withRxe() && r.has("transfer") {
			t.say("cells with rdma_rxe", r.Kernel, r.Made.Selection())
		}
	}
	each(reports, "feature", false, func(r *Report, x Result) {
		if r.Layout == "veth" {
			t.add(x.row(), r.Kernel, x)
		}
	})
	for _, driver := range []struct{ nic, name string }{{"", "veth"}, {"virtio", "virtio_net"}, {"igb", "igb"}} {
		each(reports, "rung", false, func(r *Report, x Result) {
			// interop.md has the choices of copy mode and multi-buffer.
			if choice := x.row(); r.NIC == driver.nic && !strings.Contains(choice, ",") {
				t.add(driver.name+": "+choice, r.Kernel, x)
			}
		})
	}
	each(reports, "transfer", true, func(r *Report, x Result) { t.add(x.Cell.Operation+" with rdma_rxe", r.Kernel, x) })
	each(reports, "fault", true, func(r *Report, x Result) { t.add("faults with rdma_rxe", r.Kernel, x) })
	each(reports, "stock", false, func(r *Report, x Result) { t.add("ping-pong programs on rdma_rxe", r.Kernel, x) })
	each(reports, "bulk", false, func(r *Report, x Result) {
		if r.Left == plan.Rxe {
			t.add(fmt.Sprintf("256 MiB each way with rdma_rxe, %s", r.Devices()), r.Kernel, x)
		}
	})
	fmt.Fprint(w, aboutKernels)
	t.grid(w, "")
}
