package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// rdma is an open device with one queue pair, one completion queue and one region of memory.
type rdma struct {
	device  *verbs.Device
	pd      *verbs.PD
	cq      *verbs.CQ
	qp      *verbs.QP
	mr      *verbs.MR
	options verbs.ConnectOptions
}

// openRDMA opens a device. It checks at once that the device carries the path MTU, which connecting would find only
// when the peer is there; 0 means the largest that it carries. namespace is a path, empty for that of the process.
// capacity is that of both directions of the queue pair, in requests.
func openRDMA(
	ctx context.Context, name, namespace string, mode verbs.XDPMode, pathMTU verbs.MTU, capacity int,
) (*rdma, error) {
	r := &rdma{options: verbs.ConnectOptions{PathMTU: pathMTU}}
	if err := r.open(ctx, name, namespace, mode, capacity); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rdma) open(ctx context.Context, name, namespace string, mode verbs.XDPMode, capacity int) (err error) {
	if r.device, err = openDevice(ctx, name, namespace, mode, r.options.PathMTU); err != nil {
		return err
	}
	if r.options.PathMTU == 0 {
		port, err := r.device.QueryPort()
		if err != nil {
			return err
		}
		r.options.PathMTU = port.ActiveMTU
	}
	if r.pd, err = r.device.AllocPD(); err != nil {
		return err
	}
	if r.cq, err = r.device.CreateCQ(verbs.CQInitAttr{CQE: 2 * capacity}); err != nil {
		return err
	}
	r.qp, err = r.pd.CreateQP(verbs.QPInitAttr{
		SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendWR: capacity, MaxRecvWR: capacity},
	})
	return err
}

// openDevice opens a device and checks that it carries the path MTU; 0 means the largest that it carries.
func openDevice(
	ctx context.Context, name, namespace string, mode verbs.XDPMode, pathMTU verbs.MTU,
) (device *verbs.Device, err error) {
	options := verbs.Options{NetNS: namespace, Mode: mode}
	if pathMTU == verbs.MTU4096 {
		options.MultiBuffer = verbs.MultiBufferOn
	}
	if device, err = verbs.OpenDevice(ctx, name, options); err != nil {
		return nil, err
	}
	if err = checkPathMTU(device, pathMTU); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}

func checkPathMTU(device *verbs.Device, pathMTU verbs.MTU) error {
	if pathMTU == 0 {
		return nil
	}
	port, err := device.QueryPort()
	if err != nil {
		return err
	}
	err = device.CheckPathMTU(pathMTU)
	if need := pathMTU.Bytes() + roce.MTUOverhead; errors.Is(err, verbs.ErrPathMTU) && port.NetdevMTU < need {
		err = fmt.Errorf("%w (ip link set %s mtu %d)", err, device.Name(), need)
	}
	return err
}

// register registers memory for all that the peer may want.
func (r *rdma) register(memory []byte) (err error) {
	r.mr, err = r.pd.RegMR(memory, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	return err
}

// useAddress makes address the GID of this end.
func (r *rdma) useAddress(address netip.Addr) error {
	gids, err := r.device.QueryGIDTable()
	if err != nil {
		return err
	}
	if !slices.Contains(gids, roce.GIDFromAddr(address.Unmap())) {
		return fmt.Errorf("%w: %s has no address %v", verbs.ErrNoGID, r.device.Name(), address)
	}
	r.options.Address = address.Unmap()
	return nil
}

// addressLike returns the address of the device that fits a connection to the peer with the local address: that
// address, or the device's first of the same family that is not link-local.
func addressLike(device *verbs.Device, local netip.Addr) (netip.Addr, error) {
	gids, err := device.QueryGIDTable()
	if err != nil {
		return local, err
	}
	local = local.Unmap().WithZone("")
	index := slices.Index(gids, roce.GIDFromAddr(local))
	if index < 0 {
		index = slices.IndexFunc(gids, func(g verbs.GID) bool {
			return !g.IsZero() && g.Is4() == local.Is4() && !g.Addr().IsLinkLocalUnicast()
		})
	}
	if index < 0 {
		return local, usage("%s has no address of the family of %v, the local end of the TCP connection: "+
			"choose a GID by its index", device.Name(), local)
	}
	return gids[index].Addr(), nil
}

// chooseAddress returns the address with an index in the GID table or, with an index below 0, the one that fits a
// connection.
func chooseAddress(device *verbs.Device, index int, connection net.Conn) (netip.Addr, error) {
	if index < 0 {
		return addressLike(device, connection.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
	}
	gid, err := device.QueryGID(index)
	return gid.Addr(), err
}

// close destroys whatever there is.
func (r *rdma) close() error {
	var failures []error
	if r.qp != nil {
		failures = append(failures, r.qp.Destroy())
	}
	if r.cq != nil {
		failures = append(failures, r.cq.Destroy())
	}
	if r.mr != nil {
		failures = append(failures, r.mr.Dereg())
	}
	if r.pd != nil {
		failures = append(failures, r.pd.Dealloc())
	}
	if r.device != nil {
		failures = append(failures, r.device.Close())
	}
	return errors.Join(failures...)
}

// stallLimit is how long nothing may complete. The transport gives up by itself long before when a peer does not
// answer, but it does not know that a message should come.
const stallLimit = 20 * time.Second

// completions takes completions out of the queue, one after the other.
type completions struct {
	*rdma
	events bool // sleep while there are none, instead of polling
	taken  [16]verbs.WC
	next   int
	count  int
}

// wait returns the next completion. One that is not a success is an error.
func (c *completions) wait(ctx context.Context) (*verbs.WC, error) {
	if c.next == c.count {
		if err := c.fill(ctx); err != nil {
			return nil, err
		}
	}
	wc := &c.taken[c.next]
	c.next++
	if wc.Status == verbs.WCSuccess {
		return wc, nil
	}
	failed := *wc
	if cause := c.qp.Failure(); wc.Status == verbs.WCWRFlushErr && cause.Status != verbs.WCSuccess {
		failed = cause
	}
	return nil, errors.New(c.qp.Explain(failed))
}

func (c *completions) fill(ctx context.Context) (err error) {
	if ctx.Err() != nil { // also while completions come all the time
		return context.Cause(ctx)
	}
	if c.events {
		return c.sleep(ctx)
	}
	var idle time.Time
	for polls := 1; ; polls++ {
		if c.count, err = c.cq.Poll(c.taken[:]); err != nil || c.count > 0 {
			c.next = 0
			return err
		}
		const pollsPerLook = 64 // a poll sleeps for a millisecond where the machine is full
		if polls%pollsPerLook != 0 {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if idle.IsZero() {
			idle = time.Now()
		} else if time.Since(idle) > stallLimit {
			return errStalled
		}
	}
}

func (c *completions) sleep(ctx context.Context) (err error) {
	limited, cancel := context.WithTimeoutCause(ctx, stallLimit, errStalled)
	defer cancel()
	for {
		if err := c.cq.Wait(limited); err != nil {
			if limited.Err() != nil {
				err = context.Cause(limited)
			}
			return err
		}
		if c.count, err = c.cq.Poll(c.taken[:]); err != nil || c.count > 0 {
			c.next = 0
			return err
		}
	}
}

var errStalled = fmt.Errorf("nothing has completed for %v", stallLimit)
