package xdp

// A network device can get queues while it is served (ethtool -L). They have no sockets, and on some drivers no program
// either (veth, until it has been down and up): what comes in there goes to the kernel, and no counter of ours sees it.
// So their number is looked at: with each message of netlink about the device, which veth and drivers that restart for
// it send, and every second.

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xroce/xroce/roce/link"
)

// queuesInterval is the time between two looks. A look is one question to netlink and one to the driver.
const queuesInterval = time.Second

// added is what is known of receive queues without a socket that came after Open, or after the device was made again.
type added struct {
	closing chan struct{}
	ended   sync.WaitGroup

	opened, queues int // receive queues then, and those that are more now; guarded by Device.mu
}

func (d *Device) watchQueues() {
	d.added.closing = make(chan struct{})
	d.added.ended.Go(func() {
		tick := time.NewTicker(queuesInterval)
		defer tick.Stop()
		for {
			select {
			case <-d.added.closing:
				return
			case <-tick.C:
				d.countQueues()
			}
		}
	})
}

func (d *Device) stopQueues() {
	if d.added.closing != nil {
		close(d.added.closing)
		d.added.ended.Wait()
	}
}

// countQueues looks whether there are queues that were added, and logs each change.
func (d *Device) countQueues() {
	d.mu.Lock()
	index, gone := d.netdev.index, d.gone
	d.mu.Unlock()
	if gone != nil {
		return
	}
	receive := 0
	err := d.netdev.do(func(h *netlink.Handle) error {
		device, err := h.LinkByIndex(index) // the driver is asked by name, which may be new
		if err == nil {
			receive = receiveQueues(d.netdev.control, device.Attrs().Name)
		}
		return err
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil || receive == 0 || d.gone != nil || d.netdev.index != index {
		return
	}
	queues := max(receive-d.added.opened, 0)
	if queues == d.added.queues {
		return
	}
	d.added.queues = queues
	if queues == 0 {
		slog.Info("network device has no receive queues any more that are not served", "device", d.netdev.name)
		return
	}
	slog.Warn("network device got receive queues that are not served", "device", d.netdev.name, "queues", receive,
		"when opened", d.added.opened, "lost", "what comes in at the others, until the device is opened anew or they are taken away (ethtool -L)")
}

// explainAdded adds queues that were added to a description of the device. The caller holds mu.
func (d *Device) explainAdded(i *link.Information) {
	if i.QueuesAdded = d.added.queues; i.QueuesAdded > 0 {
		i.NotTaken = append(i.NotTaken, fmt.Sprintf("%d receive queues: they were added (ethtool -L) after the device was opened, with %d",
			d.added.queues, d.added.opened))
	}
}
