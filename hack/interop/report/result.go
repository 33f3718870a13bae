//go:build linux

// Package report has what comes out of runs, keeps it, and makes docs/interop.md and the section on kernels of
// docs/support.md of it.
package report

import (
	"github.com/xroce/xroce/hack/interop/plan"
)

// Outcomes of a cell.
const (
	Works    = "works"
	Refused  = "refused"
	Fails    = "fails"
	RxeFault = "rxe's fault" // what rdma_rxe does wrong, with evidence
)

// Result is what became of a cell.
type Result struct {
	Kind    string     `json:"kind"` // transfer, fault, case, bulk, open, stock, rung, feature
	Name    string     `json:"name"`
	Row     string     `json:"row,omitempty"`   // of a table, if that is not Name
	Short   string     `json:"short,omitempty"` // what a table has in place of the outcome
	Cell    *plan.Cell `json:"cell,omitempty"`
	Outcome string     `json:"outcome"`
	Detail  string     `json:"detail,omitempty"`
	// Disturbed is what the network emulator did, if there was one.
	Disturbed *Disturbance `json:"disturbed,omitempty"`
	Seconds   float64      `json:"seconds"`
}

// Report is what a guest leaves in results.json.
type Report struct {
	Kernel string    `json:"kernel"`
	Layout string    `json:"layout"`
	NIC    string    `json:"nic"`
	Left   string    `json:"left"`
	Copy   string    `json:"copy"`
	Made   plan.Made `json:"made"`
	// CutShort says that the run has not come to its end.
	CutShort bool     `json:"cut_short,omitempty"`
	Results  []Result `json:"results"`
}

// Emulated is how many packets of one direction reached the network emulator, and how many of them it did something
// to: dropped them, sent them ahead of others, or sent them twice.
type Emulated struct {
	Packets int `json:"packets"`
	Changed int `json:"changed"`
}

// Disturbance is what the emulator did in a cell.
type Disturbance struct {
	FromRxe Emulated `json:"from_rxe"`
	ToRxe   Emulated `json:"to_rxe"`
}

// None says that all packets were left alone.
func (d *Disturbance) None() bool { return d.FromRxe.Changed+d.ToRxe.Changed == 0 }
