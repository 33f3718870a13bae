package xdp

// Drivers have been seen that take an AF_XDP socket in zero copy and never deliver to it: the program redirects, and
// the frames are gone. Nothing says so; what is missing shows only when the program's counter is held against those of
// the sockets. That is done until the first frame has come, where the driver gives zero copy: in copy mode the kernel
// itself delivers (net/xdp/xsk.c, xsk_rcv).

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/xroce/xroce/bpf"
)

const (
	// deliveryInterval is the time between two looks. What a driver holds back for the sake of a batch it holds for
	// much less.
	deliveryInterval = time.Second
	// deliveryProof is how many frames have to be missing: more than may be under way on a CPU that is held up.
	deliveryProof = 8
)

// delivery watches whether what the program redirects reaches the sockets.
type delivery struct {
	closing chan struct{}
	ended   sync.WaitGroup
}

// watchDelivery looks every interval until a frame has come, and calls report at most once, if none comes of those that
// were redirected.
func (d *Device) watchDelivery(interval time.Duration, report func(error)) {
	d.delivery.closing = make(chan struct{})
	d.delivery.ended.Go(func() {
		for before := uint64(0); ; {
			select {
			case <-d.delivery.closing:
				return
			case <-time.After(interval):
			}
			redirected, delivered, err := d.delivered()
			if err != nil {
				continue // the device is being closed
			}
			if delivered > 0 {
				return
			}
			if before >= deliveryProof { // it has had an interval to come
				report(fmt.Errorf("%s: the XDP program has redirected %d frames and the driver %s has delivered none: "+
					"open the device in copy mode", d.name(), redirected, d.driver))
				return
			}
			before = redirected
		}
	})
}

func (d *Device) stopDelivery() {
	if d.delivery.closing != nil {
		close(d.delivery.closing)
		d.delivery.ended.Wait()
	}
}

// warnOfDelivery is the report of a device that nobody tests.
func warnOfDelivery(err error) { slog.Warn("xroce: no frame is received", "error", err) }

// delivered returns how many frames the program has redirected and how many of them the sockets have got, including
// those that they have dropped and counted. The former is read first, so it is never the larger one only because time
// passes.
func (d *Device) delivered() (redirected, delivered uint64, err error) {
	counters, err := d.SteeringCounters()
	if err != nil {
		return 0, 0, err
	}
	for _, q := range d.sockets {
		c := q.Counters()
		delivered += c.Received + c.ReceiveDropped + q.socket.Load().Waiting()
	}
	return counters[bpf.Redirected].Packets, delivered, nil
}

// undelivered is the number of frames that were redirected and that no socket has got.
func (d *Device) undelivered() uint64 {
	redirected, delivered, err := d.delivered()
	if err != nil || redirected <= delivered {
		return 0
	}
	return redirected - delivered
}
