package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/xroce/xroce/verbs"
)

// Session is a test over a connection to the other end. Its fields are set before Run.
type Session struct {
	Device     *verbs.Device
	Connection net.Conn   // to the other end, which has come to the same plan
	Client     bool       // this end measures
	Plan       *Plan      // as Wish.Plan made it of the client's wish
	Wait       Wait       // empty for the default of the end
	Address    netip.Addr // of this end, one that the device has

	// What is told meanwhile, by the same goroutine unless said otherwise.
	Connected func(*Result)                   // before the first run, with what is known by then
	Ran       func(*Result, *Run)             // after each run
	Progress  func(what string, done float64) // how much of a run is done, 0 to 1, by a goroutine of its own
	fill      func([]byte, int, uint64)       // of tests: makes the data of messages instead of fillMessage
}

// Patience with the other end while nothing goes by RDMA.
const patience = 10 * time.Second

// session is a Session under way.
type session struct {
	*Session
	line    *line
	station *station
	wait    Wait
	failure error // of the last run, which the other end has to hear of before the next one
}

// Run makes the runs and returns the result. Nothing is left on the device.
func (o *Session) Run(ctx context.Context) (result *Result, err error) {
	l, giveUp := openLine(ctx, o.Connection)
	defer giveUp()
	if err := l.within(patience); err != nil {
		return nil, err
	}
	s := &session{Session: o, line: l}
	err = s.open()
	if s.station != nil {
		defer func() { err = errors.Join(err, s.station.close()) }()
	}
	if err = s.connect(err); err != nil {
		return nil, err
	}
	result = s.newResult()
	s.Connected(result)
	for _, size := range s.Plan.Sizes {
		ran, err := s.measure(size)
		if err != nil {
			return result, err
		}
		if s.failure == nil {
			result.Runs = append(result.Runs, ran)
			s.Ran(result, ran)
		}
	}
	_, err = exchange(l, wordDone, s.failure)
	return result, err
}

// open makes the objects of this end.
func (s *session) open() (err error) {
	if s.wait, err = s.chooseWait(); err != nil {
		return err
	}
	if s.station, err = openStation(s.Plan, s.Device, s.wait); err != nil {
		return err
	}
	if s.fill != nil {
		s.station.check.write = s.fill
	}
	return nil
}

// chooseWait returns how this end waits: as it was told, or as programs do that care for latency. An end that has
// nothing to wait for, since the other one reads and writes its memory, sleeps meanwhile, as programs do.
func (o *Session) chooseWait() (Wait, error) {
	operation := o.Plan.operation()
	inMemory := o.Plan.Operation == "write" && o.Plan.Test == latency
	passive := !o.Client && !o.Plan.Both && !operation.arrives && !inMemory
	switch {
	case inMemory && o.Wait != "" && o.Wait != WaitPoll:
		return "", misused("--wait=%s: a WRITE tells nobody that it is there, so its latency test polls memory", o.Wait)
	case o.Wait != "":
		return o.Wait, nil
	case passive:
		return WaitThread, nil
	}
	return WaitPoll, nil
}

// connect connects the queue pairs, unless one of the ends has failed before.
func (s *session) connect(failure error) error {
	var local offer
	if failure == nil {
		peer := s.Connection.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		local, failure = s.station.offer(s.Address, peer)
	}
	remote, err := exchange(s.line, local, failure)
	if err == nil {
		err = s.station.agree(local, remote)
	}
	if err != nil {
		return err
	}
	if err := s.line.within(patience); err != nil {
		return err
	}
	_, err = exchange(s.line, wordDone, s.station.connect(s.line.ctx, s.Address, remote))
	return err
}

// measure makes the run of one size, and another one before it that does not count.
func (s *session) measure(size int) (*Run, error) {
	what := fmt.Sprintf("%s %s, %d bytes", s.Plan.Operation, s.Plan.Test, size)
	if _, err := s.once(size, s.Plan.warmUp(), func(float64) {}); err != nil {
		return nil, err
	}
	return s.once(size, s.Plan.measured(), func(done float64) { s.Progress(what, min(done, 1)) })
}

// sides are both ends, this one first.
type sides [2]Side

// outcome is what one end tells the other after a run.
type outcome struct {
	Counts  []uint64 `json:"counts"` // messages of each queue pair
	Side    Side     `json:"side"`
	Latency *Latency `json:"latency"` // of a client that has measured it
}

// once makes one run, and checks what has come.
func (s *session) once(size int, lim limits, tell func(float64)) (*Run, error) {
	s.station.begin(size)
	// The other end may send as soon as it knows that this one is ready.
	before, err := readMeters(s.Device)
	if err != nil {
		return nil, err
	}
	if err := s.line.within(patience); err != nil {
		return nil, err
	}
	if _, err := exchange(s.line, wordDone, s.failure); err != nil {
		return nil, err
	}
	if err := s.line.within(0); err != nil {
		return nil, err
	}
	active := s.Client || s.Plan.Both
	awaits := s.Plan.operation().arrives && (!s.Client || s.Plan.Both || s.Plan.Test == latency)
	r := startRun(s.line, s.station, lim, active, awaits, tell)
	if err := r.finish(); err != nil {
		return nil, err
	}
	after, err := readMeters(s.Device)
	if err == nil {
		err = s.line.within(patience)
	}
	if err != nil {
		return nil, err
	}
	var both sides
	both[0] = after.since(&before)
	both[0].Wait, both[0].Seconds = s.wait, r.took.Seconds()
	local := outcome{Counts: make([]uint64, len(s.station.pairs))}
	for i, p := range s.station.pairs {
		local.Counts[i] = p.posted
		both[0].Messages += p.posted
	}
	local.Side = both[0]
	if r.histogram != nil {
		local.Latency = newLatency(r.histogram, s.Plan.operation().fetches)
	}
	remote, err := exchange(s.line, local, nil)
	if err != nil {
		return nil, err
	}
	both[1] = remote.Side
	s.failure = s.station.check.end(s.station, remote.Counts)
	return newRun(s.Plan, s.Client, size, cmp.Or(local.Latency, remote.Latency), both), nil
}
