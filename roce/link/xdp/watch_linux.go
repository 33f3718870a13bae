package xdp

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watcher calls a function each time the kernel reports a change of a network device or of its addresses.
type watcher struct {
	index   int
	changed func() error
	socket  *nl.NetlinkSocket
	closing chan struct{}
	ended   chan struct{}
}

// newWatcher watches a device in the namespace of the calling thread.
func newWatcher(index int, changed func() error) (*watcher, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("subscribe to address changes: %w", err)
	}
	w := &watcher{
		index: index, changed: changed, socket: socket,
		closing: make(chan struct{}), ended: make(chan struct{}),
	}
	go w.run()
	return w, nil
}

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
		if err == nil && !w.concerned(messages) {
			continue
		}
		if w.changed() != nil || err != nil {
			// The reader of the state sees the error for himself. Do not spin on one that stays.
			select {
			case <-w.closing:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// concerned says whether a message is about the device. Its index is at the same place in struct ifinfomsg and
// in struct ifaddrmsg.
func (w *watcher) concerned(messages []syscall.NetlinkMessage) bool {
	for _, m := range messages {
		if len(m.Data) >= 8 && int(int32(binary.NativeEndian.Uint32(m.Data[4:]))) == w.index {
			return true
		}
	}
	return false
}

func (w *watcher) close() {
	close(w.closing)
	w.socket.Close()
	<-w.ended
}
