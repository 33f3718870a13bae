//go:build linux

package main

import (
	"fmt"
	"io"
)

// writeKernels writes what works on which kernel, in short: the last section of docs/support.md, which internal/support/matrix embeds.
func writeKernels(w io.Writer, reports []report) {
	var t table
	// each adds a row for the results of which row returns one.
	each := func(row func(r *report, x *result) string) {
		for i := range reports {
			for _, x := range reports[i].Results {
				if name := row(&reports[i], &x); name != "" {
					t.add(name, reports[i].Kernel, x)
				}
			}
		}
	}
	for i := range reports {
		t.say("revision of xroce", reports[i].Kernel, reports[i].xroce())
	}
	for i := range reports {
		if r := &reports[i]; r.withRxe() && r.has("transfer") {
			t.say("cells with rdma_rxe", r.Kernel, r.Made.selection())
		}
	}
	each(func(r *report, x *result) string {
		if x.Kind == "feature" && r.Layout == "veth" {
			return x.row()
		}
		return ""
	})
	for _, driver := range []struct{ nic, name string }{{"", "veth"}, {"virtio", "virtio_net"}, {"igb", "igb"}} {
		each(func(r *report, x *result) string {
			if x.Kind == "rung" && r.NIC == driver.nic {
				return driver.name + ": " + x.row()
			}
			return ""
		})
	}
	each(func(r *report, x *result) string {
		if x.Kind == "transfer" && r.withRxe() {
			return x.Cell.Operation + " with rdma_rxe"
		}
		return ""
	})
	each(func(r *report, x *result) string {
		switch {
		case x.Kind == "fault" && r.withRxe():
			return "faults with rdma_rxe"
		case x.Kind == "stock":
			return "ping-pong programs on rdma_rxe"
		case x.Kind == "bulk" && r.Left == "rxe":
			return fmt.Sprintf("256 MiB each way with rdma_rxe, %s", r.Devices())
		}
		return ""
	})
	fmt.Fprint(w, "## Kernels and drivers\n\nMade by `bin/interop report` of what virtual machines with kernels of Debian have shown (`make interop-full`); "+
		"[interop.md](interop.md) says how, and why something was refused. First what `xroce features` says, then what xroce obtains with "+
		"each choice of mode, copy mode and multi-buffer, where data went both ways with it (the network devices of virtio_net and igb have MTU 3000); "+
		"then how many cells of each operation work with Linux's rdma_rxe at the other end (undisturbed are those over a "+
		"network with faults that happened to have none).\n\n")
	t.grid(w, "")
}
