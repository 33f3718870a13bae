//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xroce/xroce/internal/jsonline"
	"github.com/xroce/xroce/verbs"
)

// session is an open device with connected queue pairs, one for each flow, and a region of one message, which all
// messages use. The messages take the queue pairs in turns.
type session struct {
	*endCommand
	peer   net.Conn
	device *verbs.Device
	pd     *verbs.PD
	cq     *verbs.CQ
	qps    []*verbs.QP
	mr     *verbs.MR
	remote verbs.RemoteMemory
}

// hello is what the two ends tell each other.
type hello struct {
	Endpoints []verbs.Endpoint   `json:"endpoints"`
	Memory    verbs.RemoteMemory `json:"memory"`
}

func (c *endCommand) runVerbs(peer net.Conn) (s sample, err error) {
	e := &session{endCommand: c, peer: peer}
	defer func() { err = errors.Join(err, e.close()) }()
	mtu, err := pathMTU(c.MTU)
	if err != nil {
		return s, err
	}
	mode := verbs.XDPNative
	if c.Mode == "generic" {
		mode = verbs.XDPGeneric
	}
	if e.device, err = verbs.OpenDevice(context.Background(), c.Device, verbs.Options{Mode: mode}); err != nil {
		return s, err
	}
	// Both ends find the same.
	if err := e.device.CheckPathMTU(mtu); errors.Is(err, verbs.ErrPathMTU) {
		return sample{Skipped: err.Error(), XDPMode: e.device.Information().Mode}, nil
	} else if err != nil {
		return s, err
	}
	if err := e.connect(mtu); err != nil {
		return s, err
	}
	switch {
	case c.Passive:
		err = e.serve()
	case c.What == pingPong:
		s, err = e.pingPong()
	case c.What == short:
		s, err = e.shortMessages()
	default:
		s, err = e.transfer()
	}
	s.XDPMode = e.device.Information().Mode
	return s, err
}

func (e *session) connect(mtu verbs.MTU) (err error) {
	memory := make([]byte, messageSize)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	if e.Passive == (e.What != read) {
		clear(memory) // it is to be filled
	}
	if e.pd, err = e.device.AllocPD(); err != nil {
		return err
	}
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if e.mr, err = e.pd.RegMR(memory, access); err != nil {
		return err
	}
	if e.cq, err = e.device.CreateCQ(verbs.CQInitAttr{CQE: 4 * inFlight * e.Flows}); err != nil {
		return err
	}
	o := verbs.ConnectOptions{PathMTU: mtu, Address: e.Address}
	own := hello{Memory: e.mr.Remote()}
	for range e.Flows {
		qp, err := e.pd.CreateQP(verbs.QPInitAttr{
			SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: max(2*inFlight, shortBatches*shortBatch), MaxRecvWR: 2 * inFlight},
		})
		if err != nil {
			return err
		}
		e.qps = append(e.qps, qp)
		endpoint, err := qp.Endpoint(o)
		if err != nil {
			return err
		}
		own.Endpoints = append(own.Endpoints, endpoint)
	}
	other, err := verbs.Exchange(e.peer, own)
	if err != nil {
		return err
	}
	if len(other.Endpoints) != len(e.qps) {
		return fmt.Errorf("the other end has %d queue pairs, this one %d", len(other.Endpoints), len(e.qps))
	}
	e.remote = other.Memory
	for i, qp := range e.qps {
		if err := qp.Connect(context.Background(), other.Endpoints[i], o); err != nil {
			return err
		}
		if e.What == send && e.Passive || e.What == pingPong {
			for range 2 * inFlight {
				if err := e.postReceive(qp); err != nil {
					return err
				}
			}
		}
	}
	_, err = verbs.Exchange(e.peer, "ready")
	return err
}

// Where in the memory the messages of a ping-pong are.
const (
	pingSent     = 0
	pingReceived = 64
)

func (e *session) postReceive(qp *verbs.QP) error {
	place := e.mr.SGE(0, messageSize)
	if e.What == pingPong {
		place = e.mr.SGE(pingReceived, pingPongSize)
	}
	return qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{place}})
}

func (e *session) post(qp *verbs.QP, opcode verbs.WROpcode, place verbs.SGE) error {
	return qp.PostSend(verbs.SendWR{
		Opcode: opcode, Flags: verbs.SendSignaled, SGList: []verbs.SGE{place},
		RemoteAddr: e.remote.Addr, RKey: e.remote.RKey,
	})
}

// of is the queue pair of a completion.
func (e *session) of(wc *verbs.WC) *verbs.QP {
	for _, qp := range e.qps {
		if qp.QPN() == wc.QPN {
			return qp
		}
	}
	return e.qps[0] // never: the CQ has completions of these only
}

// poll takes completions, all of which must be successes.
func (e *session) poll(wc []verbs.WC) (int, error) {
	n, err := e.cq.Poll(wc)
	for _, c := range wc[:n] {
		if c.Status != verbs.WCSuccess {
			return n, fmt.Errorf("%s: %s", e.of(&c).Explain(c), e.counters())
		}
	}
	return n, err
}

// patience is the time after which a run in which nothing completes has failed.
const patience = 10 * time.Second

// counters is what the device has counted, for the error of a run that stopped.
func (e *session) counters() string { return fmt.Sprintf("%+v", e.device.Counters()) }

// transfer moves messages for the duration. The memory of both ends must then be the same.
func (e *session) transfer() (s sample, err error) {
	opcode := map[string]verbs.WROpcode{write: verbs.WRRDMAWrite, send: verbs.WRSend, read: verbs.WRRDMARead}[e.What]
	completed, took, err := e.keepInFlight(inFlight, func(number int) error {
		return e.post(e.qps[number%len(e.qps)], opcode, e.mr.SGE(0, messageSize))
	})
	if err != nil {
		return s, err
	}
	s.Gigabits = gigabits(int64(completed)*messageSize, took)
	return s, e.compare()
}

// shortMessages writes batches of short messages for the duration, each message of a batch to a place of its own.
func (e *session) shortMessages() (s sample, err error) {
	var batch [shortBatch]verbs.SendWR
	for i := range batch {
		batch[i] = verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{e.mr.SGE(i*shortSize, shortSize)},
			RemoteAddr: e.remote.Addr + uint64(i*shortSize), RKey: e.remote.RKey,
		}
	}
	batch[shortBatch-1].Flags = verbs.SendSignaled
	clear(e.mr.Bytes()[shortBatch*shortSize:]) // they do not write that
	completed, took, err := e.keepInFlight(shortBatches, func(number int) error {
		return e.qps[number%len(e.qps)].PostSend(batch[:]...)
	})
	if err != nil {
		return s, err
	}
	s.Gigabits = gigabits(int64(completed)*shortBatch*shortSize, took)
	return s, e.compare()
}

// keepInFlight posts for the duration, and as many times in advance as it is told. Each post makes one completion.
func (e *session) keepInFlight(most int, post func(number int) error) (completed int, took time.Duration, err error) {
	var wc [inFlight]verbs.WC
	posted := 0
	begin := time.Now()
	last, now := begin, begin
	for empty := 0; now.Sub(begin) < e.Duration || completed < posted; {
		for ; posted-completed < most && now.Sub(begin) < e.Duration; posted++ {
			if err := post(posted); err != nil {
				return completed, 0, err
			}
		}
		n, err := e.poll(wc[:])
		if err != nil {
			return completed, 0, err
		}
		if n > 0 {
			completed, now = completed+n, time.Now()
			last = now
		} else if empty++; empty%1024 == 0 {
			if now = time.Now(); now.Sub(last) > patience {
				return completed, 0, fmt.Errorf("nothing has completed for %v: %s", patience, e.counters())
			}
		}
	}
	return completed, last.Sub(begin), nil
}

// compare ends the run at the passive end and compares the memory of both.
func (e *session) compare() error {
	own := crc32.ChecksumIEEE(e.mr.Bytes())
	other, err := verbs.Exchange(e.peer, own)
	if err != nil {
		return err
	}
	if e.What != pingPong && own != other {
		return fmt.Errorf("the memory of the two ends is not the same after %s: CRC-32 %#x and %#x", e.What, own, other)
	}
	return nil
}

// pingPong measures round trips for the duration.
func (e *session) pingPong() (s sample, err error) {
	var times []time.Duration
	var wc [4]verbs.WC
	sends := 0 // that have not completed
	begin := time.Now()
	for now := begin; now.Sub(begin) < e.Duration; {
		start := now
		if err := e.post(e.qps[0], verbs.WRSend, e.mr.SGE(pingSent, pingPongSize)); err != nil {
			return s, err
		}
		sends++
		answered := false
		for empty := 1; !answered || sends >= inFlight; empty++ {
			n, err := e.poll(wc[:])
			if err != nil {
				return s, err
			}
			for _, c := range wc[:n] {
				if c.Opcode == verbs.WCSend {
					sends--
					continue
				}
				answered, now = true, time.Now()
				if err := e.postReceive(e.qps[0]); err != nil {
					return s, err
				}
			}
			if empty%1024 == 0 && time.Since(start) > patience {
				return s, fmt.Errorf("no answer for %v: %s", patience, e.counters())
			}
		}
		if start.Sub(begin) > e.Duration/10 { // not while caches and predictors are cold
			times = append(times, now.Sub(start))
		}
	}
	if len(times) == 0 {
		return s, errors.New("no message came back in time")
	}
	slices.Sort(times)
	s.Microseconds = float64(times[len(times)/2]) / 1e3
	return s, e.compare()
}

// serve is the passive end: it keeps receives posted, answers a ping-pong, and at the end gives the checksum of its
// memory.
func (e *session) serve() error {
	var over atomic.Bool
	ended := make(chan error, 1)
	go func() {
		// The other end sends its checksum when it is done; the answer tells it that of the memory here.
		var sum uint32
		err := jsonline.Read(e.peer, &sum)
		over.Store(true)
		ended <- err
	}()
	if e.What == send || e.What == pingPong || e.Polling {
		if err := e.answer(&over); err != nil {
			return err
		}
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("the other end is gone: %w: %s", err, e.counters())
	}
	return jsonline.Write(e.peer, crc32.ChecksumIEEE(e.mr.Bytes()))
}

func (e *session) answer(over *atomic.Bool) error {
	var wc [inFlight]verbs.WC
	for !over.Load() {
		n, err := e.poll(wc[:])
		if err != nil {
			return err
		}
		for _, c := range wc[:n] {
			if c.Opcode == verbs.WCSend {
				continue
			}
			if e.What == pingPong {
				if err := e.post(e.of(&c), verbs.WRSend, e.mr.SGE(pingSent, pingPongSize)); err != nil {
					return err
				}
			}
			if err := e.postReceive(e.of(&c)); err != nil {
				return err
			}
		}
	}
	return nil
}

// close destroys what there is.
func (e *session) close() error {
	var failures []error
	for _, qp := range e.qps {
		failures = append(failures, qp.Destroy())
	}
	if e.cq != nil {
		failures = append(failures, e.cq.Destroy())
	}
	if e.mr != nil {
		failures = append(failures, e.mr.Dereg())
	}
	if e.pd != nil {
		failures = append(failures, e.pd.Dealloc())
	}
	if e.device != nil {
		failures = append(failures, e.device.Close())
	}
	return errors.Join(failures...)
}
