package xdp

import (
	"context"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/roce/link"
)

// confirmPatience is how long a neighbour may take to answer the kernel's probe. One that is there takes well under a
// millisecond, and one that is late is found by broadcast.
const confirmPatience = 50 * time.Millisecond

// discovered are the states of entries that the kernel has found by asking. Others are somebody's will, or no answer.
const discovered = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE

var _ link.Confirmer = (*Device)(nil)

// Confirm implements link.Confirmer. The kernel trusts an entry for half a minute and more, asks the old Ethernet
// address three times then, a second apart (ucast_solicit and retrans_time of arp(7)), and only then everybody, which
// is longer than a queue pair lives. So it is told to ask the old address now, and everybody if that does not answer.
func (d *Device) Confirm(ctx context.Context, source, destination netip.Addr) error {
	d.mu.Lock()
	netdev, gone := d.netdev, d.gone
	d.mu.Unlock()
	if gone != nil {
		return gone
	}
	return netdev.confirm(ctx, source, destination)
}

func (r resolver) confirm(ctx context.Context, source, destination netip.Addr) error {
	source, destination, err := r.normalize(source, destination)
	if err != nil {
		return err
	}
	hop, err := r.route(source, destination)
	if err != nil || hop.multicast {
		return err
	}
	r.hops.asked(hop.address) // it may have been forgotten
	entry, err := r.neighbour(hop.address)
	if err != nil || entry.State&discovered == 0 {
		return err
	}
	if err := r.setState(hop.address, unix.NUD_PROBE); err != nil {
		return err
	}
	for begin, late := time.Now(), false; !late; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(firstPause):
		}
		late = time.Since(begin) > confirmPatience // as of before the kernel is asked, which answers however late this runs
		if entry, err = r.neighbour(hop.address); err != nil || entry.State&unix.NUD_PROBE == 0 {
			return err
		}
	}
	if err := r.setState(hop.address, unix.NUD_FAILED); err != nil {
		return err
	}
	return r.ask(hop.address)
}

// setState changes the state of a neighbour's entry and keeps its Ethernet address.
func (r resolver) setState(address netip.Addr, state int) error {
	err := r.do(func(h *netlink.Handle) error {
		return h.NeighSet(&netlink.Neigh{LinkIndex: r.index, Family: family(address), IP: address.AsSlice(), State: state})
	})
	if err != nil {
		return r.neighbourError("confirm", address, err)
	}
	return nil
}
