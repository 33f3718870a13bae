package xdp

// A network device may be deleted and made again, or taken to another namespace and back. Sockets and program do not
// come back with it.
//
// Life of such a device: netlink says that it is gone, so the program is taken off it and whoever asks gets
// link.ErrDown. When the same one is there again and up (see identity_linux.go), the program, with all that it knows of
// QPNs, is attached to it and new sockets are bound. The queues put these to use when whoever watches calls Renew. All
// this happens on the goroutine of the watcher, which is the only one that changes Device.gone and the index of the
// network device.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/xsk"
)

// A network device that is there and up, and cannot be served yet, is tried again: no message of netlink tells that its
// queues are free or as many as they were. From the eighth time on, a second after the first, that is worth a line in
// the log.
const (
	firstRemakePause, longestRemakePause = 10 * time.Millisecond, time.Second
	remakesBeforeLog                     = 8
	// remakePatience is short, since there is another time.
	remakePatience = 10 * time.Millisecond
)

// lose notes that the network device is gone. It returns what is to be told.
func (d *Device) lose() link.Change {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone == nil {
		d.setGone(errGone(d.netdev.name))
		_ = d.program.SetAddresses(nil)
		d.detach()
	}
	return link.ChangedDown
}

func (d *Device) setGone(reason error) {
	d.gone = reason
	d.state.down, d.state.addresses = reason, nil
}

// bound says whether the sockets are bound to a network device: they lose it when it is deleted or moves, and do not
// get it back (xsk_notifier and xsk_check_common, net/xdp/xsk.c). In zero copy the question wakes the driver, which is
// harmless.
func (d *Device) bound() bool {
	for _, q := range d.sockets {
		if _, _, err := unix.Recvfrom(q.newest.FD(), nil, unix.MSG_DONTWAIT); errors.Is(err, unix.ENXIO) {
			return false
		}
	}
	return true
}

// remake serves the network device that has come back, if it is up.
func (d *Device) remake() {
	if d.home == nil {
		return
	}
	for try, pause := 1, firstRemakePause; ; try, pause = try+1, min(2*pause, longestRemakePause) {
		err := d.home.Do(d.serveAgain)
		if err == nil {
			d.differs()
			d.tell(link.ChangedQueues | link.ChangedPort | link.ChangedWays)
			return
		}
		switch {
		case errors.Is(err, errStranger):
			d.refuse(err)
			return
		case errors.Is(err, ErrNoDevice):
			d.refuse(nil)
			return
		case errors.Is(err, link.ErrDown):
			return
		}
		if try == remakesBeforeLog {
			slog.Warn("network device came back and cannot be served", "device", d.netdev.name, "error", err)
		}
		d.mu.Lock()
		d.setGone(fmt.Errorf("%w, and the one that came back cannot be served: %w", errGone(d.netdev.name), err))
		d.mu.Unlock()
		if !d.watcher.sleep(pause) {
			return
		}
	}
}

// refuse notes that what has the name of the network device now is another one, or, with nil, that nothing has it. The
// log tells once of each.
func (d *Device) refuse(why error) {
	reason := errGone(d.name())
	if why != nil {
		reason = fmt.Errorf("%w: %w", reason, why)
	}
	d.mu.Lock()
	known := d.gone.Error() == reason.Error()
	d.setGone(reason)
	d.mu.Unlock()
	if why != nil && !known {
		slog.Warn("another network device has the name of the one that went", "device", d.name(), "error", why)
	}
}

// serveAgain does what open does, in the namespace of the network device, with the same program and queues.
func (d *Device) serveAgain() error {
	attributes, err := d.netdev.find(d.netdev.name)
	if err != nil {
		return err
	}
	if err := suitable(attributes); err != nil {
		return err
	}
	if err := d.was.recognises(d.netdev.identify(attributes)); err != nil {
		return err
	}
	receive, transmit, err := xsk.ChannelCount(attributes.Index)
	if err != nil {
		return err
	}
	count, err := chooseQueues(d.netdev.name, receive, transmit, d.options.Queues)
	if err != nil {
		return err
	}
	if count != len(d.sockets) {
		return fmt.Errorf("%w: %s has %d queues and had %d (ethtool -L changes that)", ErrUnsuitable, d.netdev.name, count, len(d.sockets))
	}
	o := d.options
	if d.obtained.multiBuffer {
		o.MultiBuffer = MultiBufferOn // queue pairs may need it
	}
	sockets, obtained, err := d.serve(context.Background(), attributes.Index, count, o, remakePatience)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.netdev.index, d.obtained = attributes.Index, obtained
	d.added.opened, d.added.queues = receive, 0
	d.gone = nil
	d.mu.Unlock()
	if err := d.refresh(); err != nil { // it is gone again, or what is so may be another time
		d.lose()
		for _, s := range sockets {
			_ = s.Close()
		}
		return err
	}
	for number, s := range sockets {
		d.sockets[number].prepare(s)
	}
	return nil
}
