//go:build linux

package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/xroce/xroce/hack/interop/plan"
)

const introduction = `# xroce and Linux's rdma_rxe

This page shows what the two did with each other in virtual machines with kernels of Debian: rdma_rxe at one end of a veth pair, driven through
rdma-core (pyverbs), and xroce at the other end. ` + "`bin/interop report`" + ` makes the page of the results of runs, and ` + "`make interop-full`" + ` makes all
results and the page. ` + "`make interop`" + ` runs the cells of the first three tables and a little of the next ones on the newest kernel, and fails if
one of them fails. Both need apt and no KVM: see hack/interop and internal/vm. Run ` + "`make interop-full`" + ` every night: it tells
whose packets are wrong when a new kernel breaks something.

"Refused" is a clean refusal by one of the ends, with a reason, where something is missing that is known to be missing there
(hack/interop/guest/refusals.go). Any other refusal fails. "rxe's fault" is something that rdma_rxe does wrong; the evidence, from the capture or
the counters, is named.

`

const aboutTransfers = `## Transfers

Each cell of the matrix is an operation, who posts it, a path MTU (256 to 4096), IPv4 or IPv6, a size of message (0, 1, 33, path MTU - 1, path MTU,
path MTU + 1, 64 KiB, 8 MiB), and a network that is fine, loses 1 %, or reorders or duplicates 3 % of the packets. A selection has each value of each
axis with each operation and requester; the counts below tell how many cells there were. Where the network has faults, the emulator's counters say
what it did: in a few cells, the undisturbed ones, it left all packets alone by chance. If it does so in all cells of an operation, the run fails. A
cell whose packets do not come to the emulator fails, too. The regions of both ends are compared byte by byte, with what lies around the messages. Of
atomics every result is known, so one that is executed twice shows. Where rdma_rxe reads over a network with faults, messages have 1 MiB at most: it
asks again for all that is missing after every gap.

`

const aboutFaults = `## Faults

Each of these requests must go wrong, with the same status at both ends as rdma_rxe and the specification have it. The two differ about a SEND that is
too long: rdma_rxe answers with a remote operational error (REM_OP_ERR) and its receive completes with LOC_QP_OP_ERR, where the
specification and xroce have REM_INV_REQ_ERR and LOC_LEN_ERR.

`

const aboutCases = `## Cases

These experiments have a right result that is known from what users of software RDMA ran into. They bear the IDs of [cases.md](cases.md), as tests do.

`

const aboutStock = `## Stock programs

These are ping-pong programs of rdma-core, as the distribution has them, on rdma_rxe, with xroce at the other end. Each game is 300 messages each way, of
1, 33, 4096 and 65536 bytes, and the counts below are of sizes. The stock program validates (` + "`-c`" + `), ends with status 0 and says how much it has
moved; xroce compares each message with what has to be in it. The programs tell each other the endpoints over TCP, which the kernel carries over the
same network device. rping, ucmatose and udaddy need librdmacm, and the other ping-pongs need UC, UD or XRC, which xroce does not have. The programs of
perftest tell each other much more over TCP, in ways that go with the version.

`

const aboutLadder = `## Attach ladder

The first table is what ` + "`xroce features`" + ` says of each kernel, compared with the versions that it names. The second one is what xroce obtained when it was
opened with each choice of mode, copy mode and multi-buffer: the rung, how frames are copied, the largest path MTU. Where it was opened, WRITE, READ
and SEND of 64 KiB went both ways at that path MTU and were compared, and a larger path MTU is refused. "Default" is nothing asked for, and is
compared with what ` + "`xroce devices`" + ` expects without opening.

`

// WriteDocument writes docs/interop.md.
func WriteDocument(w io.Writer, reports []Report) {
	fmt.Fprint(w, introduction)
	writeRuns(w, reports)
	writeTransfers(w, reports)
	writeFaults(w, reports)
	writeCases(w, reports)
	writeStock(w, reports)
	writeLadder(w, reports)
	writeDevices(w, reports)
	writeBulk(w, reports)
}

// each calls do for each result of a kind. With rxe it is for those of the runs that the tables are about, see withRxe.
func each(reports []Report, kind string, rxe bool, do func(r *Report, x Result)) {
	for i := range reports {
		r := &reports[i]
		if rxe && !r.withRxe() {
			continue
		}
		for _, x := range r.Results {
			if x.Kind == kind {
				x.Detail = OneLine(x.Detail)
				do(r, x)
			}
		}
	}
}

func writeTransfers(w io.Writer, reports []Report) {
	var transfers table
	for _, r := range reports {
		if r.withRxe() && r.has("transfer") {
			transfers.say("cells", r.Kernel, r.Made.Selection())
			transfers.say("revision of xroce", r.Kernel, r.xroce())
		}
	}
	each(reports, "transfer", true, func(r *Report, x Result) {
		transfers.add(fmt.Sprintf("%s by %s", x.Cell.Operation, x.Cell.Requester), r.Kernel, x)
	})
	fmt.Fprint(w, aboutTransfers)
	transfers.write(w, "operation")
}

func writeFaults(w io.Writer, reports []Report) {
	var faults table
	each(reports, "fault", true, func(r *Report, x Result) { faults.add(x.Name, r.Kernel, x) })
	fmt.Fprint(w, aboutFaults)
	faults.write(w, "fault")
}

func writeCases(w io.Writer, reports []Report) {
	var cases table
	each(reports, "case", true, func(r *Report, x Result) { cases.add(x.Name, r.Kernel, x) })
	if len(cases.rows) == 0 {
		return
	}
	fmt.Fprint(w, aboutCases)
	for _, c := range plan.CaseAbout {
		fmt.Fprintf(w, "- %s: %s\n", c.ID, c.About)
	}
	fmt.Fprintln(w)
	cases.write(w, "case")
}

func writeStock(w io.Writer, reports []Report) {
	var games table
	each(reports, "stock", false, func(r *Report, x Result) { games.add(x.row(), r.Kernel, x) })
	if len(games.rows) == 0 {
		return
	}
	fmt.Fprint(w, aboutStock)
	games.write(w, "program")
}

func writeLadder(w io.Writer, reports []Report) {
	var features, choices table
	each(reports, "feature", false, func(r *Report, x Result) {
		if r.Layout == "veth" {
			features.add(x.Row, r.Kernel, x)
		}
	})
	each(reports, "rung", false, func(r *Report, x Result) { choices.add(r.Devices()+": "+x.row(), r.Kernel, x) })
	if len(features.rows)+len(choices.rows) == 0 {
		return
	}
	fmt.Fprint(w, aboutLadder)
	features.write(w, "feature")
	choices.write(w, "choice")
}

func writeDevices(w io.Writer, reports []Report) {
	var closed table
	var opened []string
	each(reports, "open", false, func(r *Report, x Result) {
		if x.Name == plan.Xroce {
			opened = append(opened, fmt.Sprintf("%s, %s: %s", r.Kernel, r.Devices(), x.Detail))
		}
		if x.Outcome != Works {
			closed.add(r.Devices()+", "+x.Name, r.Kernel, x)
		}
	})
	fmt.Fprint(w, "## Devices\n\nThis is what xroce obtained, and why it did not obtain more.\n\n")
	list(w, opened)
	closed.write(w, "not opened")
}

func writeBulk(w io.Writer, reports []Report) {
	var bulk []string
	each(reports, "bulk", false, func(r *Report, x Result) {
		bulk = append(bulk, fmt.Sprintf("%s, %s: %s: %s in %.0f s %s", r.Kernel, r.Devices(), x.Name, x.Outcome, x.Seconds, x.Detail))
	})
	fmt.Fprint(w, "## Bulk transfers\n\nThe time includes filling and comparing, in an emulated machine.\n\n")
	list(w, bulk)
}

func list(w io.Writer, items []string) {
	for _, item := range items {
		fmt.Fprintf(w, "- %s\n", strings.TrimSpace(item))
	}
	fmt.Fprintln(w)
}

func OneLine(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "\n", "; "), "|", "/") }

// withRxe says that the run is one of those that the tables are about: rdma_rxe at the other end of a veth pair.
func (r *Report) withRxe() bool { return r.Layout == "veth" && r.Left == plan.Rxe }

func (r *Report) has(kind string) bool {
	return slices.ContainsFunc(r.Results, func(x Result) bool { return x.Kind == kind })
}

// Devices names what the frames went over.
func (r *Report) Devices() string {
	name := "veth"
	if r.NIC != "" {
		name = r.NIC
	}
	if r.Left != plan.Rxe {
		name += ", xroce at both ends"
	}
	if r.Copy == "zero" {
		name += ", zero copy"
	}
	return name
}
