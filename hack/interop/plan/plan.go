//go:build linux

// Package plan says what a run of hack/interop does: cells, faults, cases, games and choices of options, as data. It
// knows what must come out of each of them, and nothing of how it is done.
package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Plan is what a guest is to do: all cells of each part, in a file.
type Plan struct {
	NIC    string  `json:"nic"`    // the model of the network devices, or empty for veth
	Layout string  `json:"layout"` // veth, or nics for eth0 and eth1 of the machine
	NetMTU int     `json:"net_mtu"`
	Left   string  `json:"left"` // what is at v0: rxe, or xroce
	Copy   string  `json:"copy"` // what is asked of xroce: "", copy, zero
	Cells  []Cell  `json:"cells,omitempty"`
	Faults []Fault `json:"faults,omitempty"`
	Cases  []Case  `json:"cases,omitempty"`
	Bulk   string  `json:"bulk,omitempty"` // of 256 MiB each way: "", or what the network does to packets
	Games  []Game  `json:"games,omitempty"`
	Rungs  []Rung  `json:"rungs,omitempty"` // with them goes what the kernel has
	Made   Made    `json:"made"`
}

// Made says of which xroce a run is, when it began, and which part of all that there is it covers.
type Made struct {
	Revision string   `json:"revision"` // of xroce, or unknownRevision
	Date     string   `json:"date"`     // when the run began, UTC
	Parts    []string `json:"parts"`
	Full     bool     `json:"full"`
	Only     string   `json:"only,omitempty"`
}

// Selection says which cells of the matrix a run covers.
func (m Made) Selection() string {
	text := "a selection"
	switch {
	case m.Date == "":
		return "not known"
	case m.Full:
		text = "all"
	}
	if m.Only != "" {
		text += fmt.Sprintf(" with %q", m.Only)
	}
	return text
}

// Options are what a user asks for on the command line.
type Options struct {
	Full   bool     `help:"All cells instead of a covering selection."`
	Parts  []string `default:"cells,faults,cases,brief" help:"What to run: cells, faults, cases, stock, ladder, brief (a little of stock and ladder), bulk."`
	Only   string   `placeholder:"TEXT" help:"Only cells, faults, cases, games and choices of options whose description contains this."`
	NIC    string   `name:"nic" placeholder:"MODEL" help:"Two network devices of this model instead of a veth pair: virtio, igb, e1000e, vmxnet3."`
	Left   string   `default:"rxe" enum:"rxe,xroce" help:"What is at the other end: rxe or xroce."`
	Copy   string   `default:"" enum:",copy,zero" help:"Ask xroce for copy or zero copy: copy, zero."`
	NetMTU int      `name:"netdev-mtu" default:"9000" help:"MTU of the network devices."`
}

// New makes the plan that the options ask for. It refuses a plan that has nothing to do or that cannot be done.
func New(o Options) (Plan, error) {
	p := Plan{NIC: o.NIC, Layout: "veth", NetMTU: o.NetMTU, Left: o.Left, Copy: o.Copy}
	p.Made = Made{Date: time.Now().UTC().Format(time.DateTime), Parts: o.Parts, Full: o.Full, Only: o.Only}
	if o.NIC != "" {
		p.Layout = "nics"
	}
	for _, part := range o.Parts {
		if err := p.add(part, o); err != nil {
			return p, err
		}
	}
	return p, p.check()
}

// leftName is the name of the end at v0.
func (p *Plan) leftName() string {
	if p.Left == Xroce {
		return XroceAtV0
	}
	return p.Left
}

// add adds what a part has: of cells, faults, cases, games and choices of options those that contain the text. Stock
// programs and choices of options are with rdma_rxe only, and stock programs on veth only.
func (p *Plan) add(part string, o Options) error {
	withRxe := p.Left == Rxe
	switch brief := part == "brief"; part {
	case "cells":
		all := Covering
		if o.Full {
			all = everything
		}
		p.Cells = containing(all([]string{Xroce, p.leftName()}), o.Only)
	case "faults":
		p.Faults = containing(faultCases(p.leftName()), o.Only)
	case "cases":
		if withRxe {
			p.Cases = containing(allCases(), o.Only)
		}
	case "bulk":
		p.Bulk = Lost
		if p.NIC != "" {
			p.Bulk = NoLoss
		}
	case "stock", "ladder", "brief":
		if part != "ladder" && withRxe && p.NIC == "" {
			p.Games = containing(games(brief), o.Only)
		}
		if part != "stock" && withRxe {
			p.Rungs = containing(rungs(brief), o.Only)
		}
	default:
		return fmt.Errorf("there is no part %q", part)
	}
	return nil
}

// containing are those whose description contains the text.
func containing[T fmt.Stringer](all []T, text string) []T {
	return slices.DeleteFunc(all, func(x T) bool { return !strings.Contains(x.String(), text) })
}

// check refuses what would come to nothing, or not be what it is called.
func (p *Plan) check() error {
	if len(p.Cells)+len(p.Faults)+len(p.Cases)+len(p.Games)+len(p.Rungs) == 0 && p.Bulk == "" {
		if p.Made.Only != "" {
			return fmt.Errorf("nothing in the parts asked for contains %q", p.Made.Only)
		}
		return errors.New("nothing to run: stock, ladder, brief and cases are with rdma_rxe only, and stock on veth only")
	}
	lossy := p.Bulk == Lost || slices.ContainsFunc(p.Cells, func(c Cell) bool { return c.Loss != NoLoss })
	if lossy && p.Left == Xroce {
		return fmt.Errorf("with xroce at both ends no packet can be lost on purpose: AF_XDP passes the network emulator by, see setLoss. "+
			"Cells without loss are those with --only %q", NoLoss)
	}
	return nil
}
