package xdp

// Several processes of one machine. The kernel sends nothing to an address of its own over a wire, so the address of a
// device that another process serves in the same network namespace is not reached over any other device, unless
// somebody has told the kernel to answer there (accept_local in Documentation/networking/ip-sysctl.rst). And a device
// with others above it, such as a NIC with macvlans, takes no XDP program any more once one above has one
// (dev_xdp_attach in net/core/dev.c).

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/roce/link"
)

const (
	// ownPatience is how long an address of this machine may take to answer: many times what a neighbour does that is
	// there.
	ownPatience = 100 * time.Millisecond

	// macvlanEach is what works between processes of one machine.
	macvlanEach = "what works is a macvlan for each process, in a network namespace each " +
		"(ip link add NAME link DEVICE netns NAMESPACE type macvlan mode bridge); a process that serves DEVICE itself opens it first"
)

// own says, with link.ErrNoNeighbour, what an address of this machine is and what works; nil if it is none.
func (r resolver) own(address netip.Addr) error {
	found, err := r.askRoute(address, netlink.RouteGetOptions{})
	if err != nil || found.Type != unix.RTN_LOCAL {
		return nil
	}
	return r.explainOwn(address)
}

func (r resolver) explainOwn(address netip.Addr) error {
	text := fmt.Sprintf("%v is an address of this machine", address)
	switch device := r.holder(address); {
	case device == nil:
	case device.Index == r.index:
		text += ", of " + r.name + " itself"
	case hasProgram(device):
		text += fmt.Sprintf(": %s %s: %s", device.Name, use(device.Xdp.ProgId), macvlanEach)
	default:
		text += fmt.Sprintf(": no process serves %s: open it in this process, too, or %s", device.Name, macvlanEach)
	}
	return fmt.Errorf("%w: %s", link.ErrNoNeighbour, text)
}

// holder finds the device that has an address; nil if there is none.
func (r resolver) holder(address netip.Addr) (holder *netlink.LinkAttrs) {
	_ = r.do(func(h *netlink.Handle) error {
		list, err := h.AddrList(nil, family(address))
		if err != nil {
			return err
		}
		for _, entry := range list {
			if has, _ := netip.AddrFromSlice(entry.IP); has.Unmap() == address {
				device, err := h.LinkByIndex(entry.LinkIndex)
				if err == nil {
					holder = device.Attrs()
				}
				return err
			}
		}
		return nil
	})
	return holder
}

// use says what a device with an XDP program does.
func use(program uint32) string {
	switch name := programName(program); name {
	case ownProgram:
		switch pid := programOwner(program); pid {
		case 0:
			return "serves another xroce process"
		case os.Getpid():
			return "serves this process"
		default:
			return fmt.Sprintf("serves another xroce process, pid %d", pid)
		}
	case "":
		return fmt.Sprintf("has XDP program id %d", program)
	default:
		return fmt.Sprintf("has XDP program %s, id %d", name, program)
	}
}

// programsAbove returns the devices of the namespace that lie above a device and have an XDP program.
func (n *netlinkSockets) programsAbove(index int) []*netlink.LinkAttrs {
	all, err := n.all()
	if err != nil {
		return nil
	}
	master := 0 // a bond or a bridge
	if i := slices.IndexFunc(all, func(a *netlink.LinkAttrs) bool { return a.Index == index }); i >= 0 {
		master = all[i].MasterIndex
	}
	return slices.DeleteFunc(all, func(a *netlink.LinkAttrs) bool {
		child := a.ParentIndex == index && a.NetNsID < 0 // a macvlan or a VLAN; the index of a parent elsewhere is one of there
		return !hasProgram(a) || !child && (master == 0 || a.Index != master)
	})
}

// attachedAlready says, with ErrTaken, who keeps a program from being attached, if err is about that; else it returns
// err. With wait it may be over in a moment: a process that was killed has not let go of its program yet.
func (n *netlinkSockets) attachedAlready(device string, index int, err error) (taken error, wait bool) {
	if foreign := (*bpf.ForeignProgramError)(nil); errors.As(err, &foreign) && foreign.Name == ownProgram {
		pid := programOwner(foreign.ID)
		return takenByOwn(device, foreign.ID, pid), pid == 0
	}
	if !errors.Is(err, bpf.ErrProgramAbove) {
		return err, false
	}
	var found []string
	for _, a := range n.programsAbove(index) {
		found = append(found, fmt.Sprintf("%s above it %s", a.Name, use(a.Xdp.ProgId)))
		wait = wait || programName(a.Xdp.ProgId) == ownProgram && programOwner(a.Xdp.ProgId) == 0
	}
	if len(found) == 0 {
		pids := ownProcesses()
		found, wait = []string{"a device above it, in another network namespace, has an XDP program"}, len(pids) == 0
		if !wait {
			found[0] += fmt.Sprintf(" (pids of xroce processes: %v)", pids)
		}
	}
	return fmt.Errorf("%w: %s: %s: a device is opened before those on top of it (macvlans, VLANs, bond, bridge): end their processes, "+
		"open %[2]s, then start them again", ErrTaken, device, strings.Join(found, "; ")), wait
}
