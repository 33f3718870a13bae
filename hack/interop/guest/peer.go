//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// PeerCommand is the end made of xroce.
type PeerCommand struct {
	Pattern string `arg:""`
}

const queueDepth = 256

// peer is one open device with at most one queue pair and its region.
type peer struct {
	pattern []byte
	device  *verbs.Device
	pd      *verbs.PD
	cq      *verbs.CQ
	mr      *verbs.MR
	qp      *verbs.QP
	windows []*verbs.MW
	options verbs.ConnectOptions
}

// Run obeys commands until standard input ends.
func (c *PeerCommand) Run() error {
	pattern, err := mapFile(c.Pattern)
	if err != nil {
		return err
	}
	p := &peer{pattern: pattern}
	commands, answers := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var c command
		if err := commands.Decode(&c); err != nil {
			return p.close() // the end of the input ends the program
		}
		a, err := p.obey(&c)
		if err != nil {
			a.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
			a.Refused = errors.Is(err, verbs.ErrNotSupported) || errors.Is(err, verbs.ErrPathMTU) ||
				errors.Is(err, verbs.ErrUnsuitable)
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

func mapFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
}

func (p *peer) obey(c *command) (a answer, err error) {
	switch c.Do {
	case "open":
		a.Information, a.Obtained, err = p.open(c)
	case "create":
		a.Endpoint, err = p.create(c)
	case "connect":
		err = p.connect(c)
	case "fill":
		for _, x := range c.Pieces {
			copy(p.mr.Bytes()[x.At:], p.content(x))
		}
	case "check":
		err = p.check(c.Pieces)
	case "receive":
		err = p.receive(c.Slots)
	case "window":
		a.Keys, err = p.bindWindows(c.Slots)
	case "post":
		err = p.post(c.Requests)
	case "wait":
		a.Completions, err = p.wait(c.Count, c.Seconds)
	case "load":
		a.Word, err = p.mr.LoadUint64(c.At)
	case "state":
		a.State = fmt.Sprint(p.qp.State())
	case "counters":
		a.Counters = p.counters()
	case "destroy":
		err = p.destroy()
	default:
		err = fmt.Errorf("no command %q", c.Do)
	}
	return a, err
}

var (
	xdpModes     = map[string]verbs.XDPMode{"native": verbs.XDPNative, "generic": verbs.XDPGeneric}
	multiBuffers = map[string]verbs.MultiBuffer{"on": verbs.MultiBufferOn, "off": verbs.MultiBufferOff}
)

func (p *peer) open(c *command) (string, obtained, error) {
	o := opener.CheckOwners(verbs.Options{NoControl: true, Mode: xdpModes[c.Mode],
		MultiBuffer: multiBuffers[c.MultiBuffer]})
	switch c.Copy {
	case "copy":
		o.Copy = verbs.CopyOnly
	case "zero":
		o.Copy = verbs.ZeroCopy
	}
	device, err := verbs.OpenDevice(context.Background(), c.Device, o)
	if err != nil {
		return "", obtained{}, err
	}
	p.device = device
	if p.pd, err = device.AllocPD(); err != nil {
		return "", obtained{}, err
	}
	port, err := device.QueryPort()
	if err != nil {
		return "", obtained{}, err
	}
	i := device.Information()
	text := fmt.Sprintf("%s, XDP %s, zero copy %v, multi-buffer %v", i.Driver, i.Mode, i.ZeroCopy, i.MultiBuffer)
	for _, n := range i.NotTaken {
		text += "; not taken: " + n
	}
	return text, obtained{i.Mode, i.ZeroCopy, i.MultiBuffer, port.ActiveMTU.Bytes()}, nil
}

var accessNames = map[string]verbs.AccessFlags{
	"read": verbs.AccessRemoteRead, "write": verbs.AccessRemoteWrite, "atomic": verbs.AccessRemoteAtomic, "flush": verbs.AccessFlushGlobal,
}

func (p *peer) create(c *command) (*endpoint, error) {
	access, granted := verbs.AccessLocalWrite|verbs.AccessMWBind, verbs.AccessFlags(0)
	for _, name := range c.Access {
		granted |= accessNames[name]
	}
	buffer, err := verbs.AllocBuffer(c.Length)
	if err != nil {
		return nil, err
	}
	if p.mr, err = p.pd.RegMR(buffer, access|granted); err != nil {
		return nil, err
	}
	if p.cq, err = p.device.CreateCQ(verbs.CQInitAttr{CQE: 4 * queueDepth}); err != nil {
		return nil, err
	}
	p.qp, err = p.pd.CreateQP(verbs.QPInitAttr{
		SendCQ: p.cq, RecvCQ: p.cq, Cap: verbs.QPCap{MaxSendWR: queueDepth, MaxRecvWR: queueDepth},
	})
	if err != nil {
		return nil, err
	}
	address, err := netip.ParseAddr(c.Address)
	if err != nil {
		return nil, err
	}
	// What the region grants, the queue pair permits.
	const all = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal
	p.options = verbs.ConnectOptions{AccessFlags: new(all), MaxRDAtomic: new(uint8(rdAtomic)), Timeout: roce.AckTimeout(ackTimeout), Address: address}
	e, err := p.qp.Endpoint(p.options)
	if err != nil {
		return nil, err
	}
	return &endpoint{Address: c.Address, QPN: uint32(e.QPN), PSN: uint32(e.PSN), Addr: p.mr.Addr(), RKey: p.mr.RKey()}, nil
}

func (p *peer) connect(c *command) error {
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if m.Bytes() == c.MTU {
			p.options.PathMTU = m
		}
	}
	var e verbs.Endpoint
	if err := e.Address.UnmarshalText([]byte(c.Remote.Address)); err != nil {
		return err
	}
	e.QPN, e.PSN, e.MTU, e.RDAtomic = verbs.QPN(c.Remote.QPN), verbs.PSN(c.Remote.PSN), p.options.PathMTU, rdAtomic
	p.options.RNRRetry, p.options.RetryCnt = new(uint8(c.RNRRetry)), new(uint8(c.Retry))
	return p.qp.Connect(context.Background(), e, p.options)
}

// content is what a piece says.
func (p *peer) content(x piece) []byte {
	if x.From < 0 {
		return make([]byte, x.Length)
	}
	return p.pattern[x.From : x.From+x.Length]
}

func (p *peer) check(pieces []piece) error {
	for _, x := range pieces {
		want, got := p.content(x), p.mr.Bytes()[x.At:x.At+x.Length]
		if bytes.Equal(want, got) {
			continue
		}
		i := 0
		for want[i] == got[i] {
			i++
		}
		return fmt.Errorf("byte %d of the region is %#02x instead of %#02x", x.At+i, got[i], want[i])
	}
	return nil
}

func (p *peer) receive(slots []slot) error {
	var wrs []verbs.RecvWR
	for i, s := range slots {
		wrs = append(wrs, verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{p.mr.SGE(s.At, s.Length)}})
	}
	return p.qp.PostRecv(wrs...)
}

func (p *peer) bindWindows(slots []slot) (keys []uint32, err error) {
	for _, s := range slots {
		w, err := p.pd.AllocMW(verbs.MWType2)
		if err != nil {
			return nil, err
		}
		p.windows = append(p.windows, w)
		err = p.qp.BindMW(w, verbs.MWBind{
			Flags: verbs.SendSignaled, MR: p.mr, Addr: p.mr.Addr() + uint64(s.At), Length: uint64(s.Length),
			Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead,
		})
		if err != nil {
			return nil, err
		}
		keys = append(keys, w.RKey())
	}
	completions, err := p.wait(len(slots), 20)
	for _, c := range completions {
		if c.Status != 0 {
			err = errors.Join(err, fmt.Errorf("bind window: %s", plan.StatusNames[c.Status]))
		}
	}
	return keys, err
}

var opcodes = map[string]verbs.WROpcode{
	plan.Send: verbs.WRSend, plan.SendImm: verbs.WRSendWithImm, plan.SendInv: verbs.WRSendWithInv, plan.Write: verbs.WRRDMAWrite,
	plan.WriteImm: verbs.WRRDMAWriteWithImm, plan.Read: verbs.WRRDMARead, plan.CompareSwap: verbs.WRAtomicCmpAndSwp,
	plan.FetchAdd: verbs.WRAtomicFetchAdd, plan.AtomicWrite: verbs.WRAtomicWrite, plan.Flush: verbs.WRFlush,
}

func (p *peer) workRequest(place int, r *request) verbs.SendWR {
	wr := verbs.SendWR{
		WRID: uint64(place), Opcode: opcodes[r.Operation], Flags: verbs.SendSignaled, ImmData: r.Immediate,
		InvalidateRKey: r.Invalidate, RemoteAddr: r.Addr, RKey: r.RKey, CompareAdd: r.CompareAdd, Swap: r.Swap,
	}
	if r.Operation == plan.Flush {
		wr.Flush = verbs.FlushRange{Length: uint32(r.Length), Placement: verbs.FlushPlacementGlobal,
			Selectivity: verbs.FlushSelectRange}
	} else if r.Length > 0 {
		wr.SGList = []verbs.SGE{p.mr.SGE(r.At, r.Length)}
	}
	return wr
}

func (p *peer) post(requests []request) error {
	var wrs []verbs.SendWR
	for i := range requests {
		wrs = append(wrs, p.workRequest(i, &requests[i]))
	}
	return p.qp.PostSend(wrs...)
}

func (p *peer) wait(count int, seconds float64) (all []completion, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seconds*float64(time.Second)))
	defer cancel()
	var wcs [64]verbs.WC
	for len(all) < count {
		n, err := p.cq.Poll(wcs[:min(len(wcs), count-len(all))])
		if err != nil {
			return all, err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.WCSuccess {
				fmt.Fprintln(os.Stderr, p.qp.Explain(wc))
			}
			all = append(all, completion{
				Receive: wc.Opcode >= verbs.WCRecv, Place: int(wc.WRID), Status: int(wc.Status), Length: int(wc.ByteLen),
				Immediate: wc.ImmData, Invalidated: wc.InvalidatedRKey,
			})
		}
		if n > 0 {
			continue
		}
		if err := p.cq.Wait(ctx); errors.Is(err, context.DeadlineExceeded) {
			return all, fmt.Errorf("%d of %d completions after %v s", len(all), count, seconds)
		} else if err != nil {
			return all, err
		}
	}
	return all, nil
}

func (p *peer) counters() map[string]uint64 {
	c := p.device.Counters()
	all := map[string]uint64{"received": c.Link.Received, "transmitted": c.Link.Transmitted,
		"receive_dropped": c.Link.ReceiveDropped}
	for _, group := range []verbs.Counts{c.Counts, c.Drops} {
		for name, n := range group {
			all[name] = n
		}
	}
	for name, n := range all {
		if n == 0 {
			delete(all, name)
		}
	}
	return all
}

// destroy ends the queue pair and all that belongs to it.
func (p *peer) destroy() (err error) {
	if p.qp != nil {
		err = errors.Join(err, p.qp.Destroy())
	}
	for _, w := range p.windows {
		err = errors.Join(err, w.Dealloc())
	}
	if p.cq != nil {
		err = errors.Join(err, p.cq.Destroy())
	}
	if p.mr != nil {
		buffer := p.mr.Bytes()
		err = cmp.Or(errors.Join(err, p.mr.Dereg()), verbs.FreeBuffer(buffer))
	}
	p.qp, p.windows, p.cq, p.mr = nil, nil, nil, nil
	return err
}

func (p *peer) close() error {
	err := p.destroy()
	if p.pd != nil {
		err = errors.Join(err, p.pd.Dealloc())
	}
	if p.device != nil {
		err = errors.Join(err, opener.InUse(p.device), p.device.Close()) // it fails if a buffer had no owner, or two
	}
	return err
}
