package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/roce/link"
)

// watcher hands out what the kernel reports of network devices, addresses, neighbours and routes.
type watcher struct {
	handle  func(messages []syscall.NetlinkMessage, lost bool) error
	socket  *nl.NetlinkSocket
	closing chan struct{}
	ended   chan struct{}
}

// newWatcher watches the namespace of the calling thread, once it is started. lost says that messages are missing.
func newWatcher(handle func(messages []syscall.NetlinkMessage, lost bool) error) (*watcher, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of the network: %w", err)
	}
	return &watcher{handle: handle, socket: socket, closing: make(chan struct{}), ended: make(chan struct{})}, nil
}

func (w *watcher) start() { go w.run() }

func (w *watcher) run() {
	defer close(w.ended)
	for {
		messages, _, err := w.socket.Receive()
		select {
		case <-w.closing:
			return
		default:
		}
		// After ENOBUFS messages are missing, and there may have been one for this device. Whatever else
		// may fail here, looking at the state is never wrong.
		if w.handle(messages, err != nil) != nil || err != nil {
			// The reader of the state sees the error for himself. Do not spin on one that stays.
			if !w.sleep(10 * time.Millisecond) {
				return
			}
		}
	}
}

// sleep lets time pass; false means that the watcher is being closed.
func (w *watcher) sleep(d time.Duration) bool {
	select {
	case <-w.closing:
		return false
	case <-time.After(d):
		return true
	}
}

func (w *watcher) close() {
	close(w.closing)
	w.socket.Close()
	<-w.ended
}

// notice is what the watcher calls. It has the program follow the network device, and tells whoever watches it.
func (d *Device) notice(messages []syscall.NetlinkMessage, lost bool) error {
	var c link.Change
	look, again := lost, lost
	if lost {
		c = link.ChangedWays
		if !d.bound() {
			c |= d.lose()
		}
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			again = true
			switch left := m.Header.Type == unix.RTM_DELLINK; {
			case !d.concerns(m) || m.Data[0] != unix.AF_UNSPEC: // bridges tell of their ports in this way, too
			case !left:
				look = true
				if !carries(m) {
					c |= link.ChangedDown // it may be up again by the time that somebody looks
				}
			case !d.bound(): // otherwise this is old, and the device was made again since
				c |= d.lose()
			}
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			look = look || d.concerns(m)
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			if d.concerns(m) && d.netdev.hops.changed(m) {
				c |= link.ChangedWays
			}
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			c |= link.ChangedWays
		}
	}
	var err error
	if look && d.gone == nil {
		if err = d.refresh(); errors.Is(err, link.ErrDown) {
			c |= d.lose()
		}
		d.countQueues()
	}
	if d.differs() {
		c |= link.ChangedPort
	}
	d.tell(c)
	if again && d.gone != nil {
		d.remake()
	}
	return err
}

// concerns says whether a message is about the device. Its index is at the same place in struct ifinfomsg, struct
// ifaddrmsg and struct ndmsg.
func (d *Device) concerns(m syscall.NetlinkMessage) bool {
	return len(m.Data) >= 8 && int(int32(binary.NativeEndian.Uint32(m.Data[4:]))) == d.netdev.index
}

// carries says whether a device is up and has carrier, according to the ifi_flags of a struct ifinfomsg.
func carries(m syscall.NetlinkMessage) bool {
	const running = unix.IFF_UP | unix.IFF_LOWER_UP
	return len(m.Data) >= 12 && binary.NativeEndian.Uint32(m.Data[8:])&running == running
}

// differs says whether the device is another than when it was last asked. Only the watcher asks.
func (d *Device) differs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, before := d.state, d.told
	d.told = now
	return now.name != before.name || now.mac != before.mac || now.mtu != before.mtu || (now.down == nil) != (before.down == nil) ||
		!slices.Equal(now.addresses, before.addresses)
}

// Watch has changed called after each change of the network device, its addresses, or the ways to the neighbours that
// Resolve was asked for.
func (d *Device) Watch(changed func(link.Change)) { d.changed.Store(&changed) }

func (d *Device) tell(c link.Change) {
	if changed := d.changed.Load(); changed != nil && c != 0 {
		(*changed)(c)
	}
}

// changed says whether a message about a neighbour means that Resolve would answer otherwise.
func (h *hops) changed(m syscall.NetlinkMessage) bool {
	entry, err := netlink.NeighDeserialize(m.Data)
	if err != nil {
		return false
	}
	address := addressOfNeighbour(entry)
	h.mu.Lock()
	defer h.mu.Unlock()
	known, asked := h.macs[address]
	if !asked {
		return false
	}
	now := macOf(entry.HardwareAddr)
	if m.Header.Type == unix.RTM_DELNEIGH || entry.State&usable == 0 {
		clear(now[:])
	}
	h.macs[address] = now
	return now != known
}
