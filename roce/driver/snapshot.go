package driver

// What a device does and in which state it is, for people and programs who look from outside. Everything is read under
// the lock that guards it, for one object at a time and never two locks: traffic goes on meanwhile, and the parts of a
// snapshot are not of one moment.

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// Snapshot is a device at a time, and in JSON. Counts are those since the device was opened, of a QP those since it was
// made.
type Snapshot struct {
	Device   DeviceStatus   `json:"device"`
	Counters CounterStatus  `json:"counters"` // sums over the shards
	Link     LinkStatus     `json:"link"`     // sums over the queues
	Steering Counts         `json:"steering"` // frames by what the XDP program did with them; empty without one
	Shards   []ShardStatus  `json:"shards"`
	QPs      []QPStatus     `json:"qps"`
	CQs      []CQStatus     `json:"cqs"`
	SRQs     []SRQStatus    `json:"srqs"`
	MRs      []RegionStatus `json:"mrs"` // windows and fast registrations that are valid, too
}

// Counts are counters by name.
type Counts map[string]uint64

// DeviceStatus describes the device.
type DeviceStatus struct {
	Name      string   `json:"name"`
	Network   string   `json:"network"` // the network namespace: "net:[4026531833]"; empty if unknown
	Driver    string   `json:"driver"`  // of the network device
	Rung      string   `json:"rung"`    // of the attach ladder: "native+frags", "generic", "memory"
	ZeroCopy  bool     `json:"zeroCopy"`
	State     string   `json:"state"` // "active", "down", or what is wrong
	MAC       string   `json:"mac"`
	NetdevMTU int      `json:"netdevMTU"`
	ActiveMTU int      `json:"activeMTU"` // path MTU in bytes
	MaxMTU    int      `json:"maxMTU"`
	GIDs      []string `json:"gids"` // by index; empty where there is none any more
	QPNBase   roce.QPN `json:"qpnBase"`
	QPNCount  int      `json:"qpnCount"`
	Uptime    float64  `json:"uptimeSeconds"`
	// How many objects there are; Keys are those of memory regions and windows, free ones included.
	QPs  int `json:"qps"`
	CQs  int `json:"cqs"`
	SRQs int `json:"srqs"`
	Keys int `json:"keys"`
}

// CounterStatus are counts of the transport.
type CounterStatus struct {
	Counts   Counts `json:"counts"`   // named as Linux's hardware counters, where it has them
	Sent     Counts `json:"sent"`     // packets by opcode
	Received Counts `json:"received"` // packets by opcode
	Drops    Counts `json:"drops"`    // packets by reason
}

// LinkStatus are counts of frames.
type LinkStatus struct {
	Received           uint64 `json:"received"`
	Transmitted        uint64 `json:"transmitted"`
	ReceiveDropped     uint64 `json:"receiveDropped"`
	TransmitDropped    uint64 `json:"transmitDropped"`
	Kicks              uint64 `json:"kicks"`
	KickRetries        uint64 `json:"kickRetries"`
	InvalidDescriptors uint64 `json:"invalidDescriptors"`
}

// ShardStatus is a queue of the device.
type ShardStatus struct {
	Index    int           `json:"index"`
	Counters CounterStatus `json:"counters"`
	Link     LinkStatus    `json:"link"`
	Socket   Counts        `json:"socket"` // of the AF_XDP socket; empty without one
}

// QPStatus is a queue pair.
type QPStatus struct {
	QPN    roce.QPN `json:"qpn"`
	Type   string   `json:"type"`
	State  string   `json:"state"`
	Shard  int      `json:"shard"`
	SendCQ uint32   `json:"sendCQ"` // CQStatus.ID
	RecvCQ uint32   `json:"recvCQ"`
	SRQ    uint32   `json:"srq"` // SRQStatus.ID, 0 without one
	// The peer; its GID is empty before RTR.
	PeerGID  string   `json:"peerGID"`
	PeerQPN  roce.QPN `json:"peerQPN"`
	PeerMAC  string   `json:"peerMAC"`
	Loopback bool     `json:"loopback"` // it is within the process
	PathMTU  int      `json:"pathMTU"`  // bytes

	UnacknowledgedPSN roce.PSN `json:"unacknowledgedPSN"`
	SendPSN           roce.PSN `json:"sendPSN"` // the next one to send
	NextPSN           roce.PSN `json:"nextPSN"` // the next one that was never sent
	ExpectedPSN       roce.PSN `json:"expectedPSN"`
	MSN               uint32   `json:"msn"`
	Requests          uint64   `json:"requests"`         // in work
	InFlight          uint64   `json:"inFlight"`         // packets
	Window            uint64   `json:"window"`           // packets
	RoundTrip         float64  `json:"roundTripSeconds"` // smoothed, 0 if unknown

	Timeout      float64 `json:"timeoutSeconds"` // 0 is for ever
	GiveUp       float64 `json:"giveUpSeconds"`  // after the last progress, if the peer does not answer; 0 is never
	Retries      uint8   `json:"retries"`
	RetryCount   uint8   `json:"retryCount"`
	RNRRetries   uint8   `json:"rnrRetries"`
	RNRRetry     uint8   `json:"rnrRetry"` // 7 is for ever
	WaitingRNR   bool    `json:"waitingRNR"`
	Recovering   bool    `json:"recovering"`
	LastSyndrome string  `json:"lastSyndrome"` // empty before the first
	Failure      string  `json:"failure"`      // why it is in the error state

	Counters CounterStatus `json:"counters"`
}

// CQStatus is a completion queue.
type CQStatus struct {
	ID       uint32 `json:"id"`
	Capacity int    `json:"capacity"`
	Waiting  int    `json:"waiting"` // completions inside
	QPs      int    `json:"qps"`     // queues of QPs that complete there
	Channel  bool   `json:"channel"` // somebody is notified
	Overrun  bool   `json:"overrun"`
}

// SRQStatus is a shared receive queue.
type SRQStatus struct {
	ID     uint32 `json:"id"`
	MaxWR  int    `json:"maxWR"`
	Posted int    `json:"posted"`
	Limit  int    `json:"limit"`
	QPs    int    `json:"qps"`
}

// RegionStatus is what a key opens.
type RegionStatus struct {
	Key     uint32        `json:"key"`
	Kind    string        `json:"kind"`
	Address uint64        `json:"address"`
	Length  uint64        `json:"length"`
	Access  memory.Access `json:"access"` // "LOCAL_WRITE|REMOTE_READ" for one
}

func counterStatus(c *transport.Counters) CounterStatus {
	return CounterStatus{Counts: c.Named(), Sent: c.Sent(), Received: c.Received(), Drops: c.Dropped()}
}

// SnapshotCounters returns a snapshot without QPs, CQs, SRQs and MRs: it costs the same however many there are.
func (d *Device) SnapshotCounters() Snapshot {
	s := Snapshot{Device: d.status(), Steering: details(d.link)}
	var sum transport.Counters
	var carrier link.Counters
	for i, shard := range d.shards {
		t, l := shard.counters()
		sum.Add(&t)
		carrier.Add(&l)
		s.Shards = append(s.Shards, ShardStatus{
			Index: i, Counters: counterStatus(&t), Link: LinkStatus(l), Socket: details(shard.queue),
		})
	}
	s.Counters, s.Link = counterStatus(&sum), LinkStatus(carrier)
	return s
}

// details are what whoever counts more than others has counted.
func details(of any) Counts {
	if d, ok := of.(link.Detailer); ok {
		return d.Details()
	}
	return Counts{}
}

// Snapshot returns everything.
func (d *Device) Snapshot() Snapshot {
	s := d.SnapshotCounters()
	s.QPs, s.CQs, s.SRQs, s.MRs = []QPStatus{}, []CQStatus{}, []SRQStatus{}, []RegionStatus{}
	for i := range d.numbers.qps {
		if q := d.numbers.qps[i].Load(); q != nil {
			s.QPs = append(s.QPs, q.status())
		}
	}
	d.mu.Lock()
	cqs, srqs := keys(d.cqs), keys(d.srqs)
	users := make([]int, len(srqs))
	for i, q := range srqs {
		users[i] = q.qps
	}
	d.mu.Unlock()
	for _, c := range cqs {
		s.CQs = append(s.CQs, c.status())
	}
	for i, q := range srqs {
		s.SRQs = append(s.SRQs, q.status(users[i]))
	}
	slices.SortFunc(s.CQs, func(a, b CQStatus) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(s.SRQs, func(a, b SRQStatus) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range d.memory.Regions() {
		s.MRs = append(s.MRs, RegionStatus{
			Key: r.Key(), Kind: r.Kind().String(), Address: r.Address(), Length: r.Length(), Access: r.Access(),
		})
	}
	return s
}

func (d *Device) status() DeviceStatus {
	information := d.link.Information()
	s := DeviceStatus{
		Name: information.Name, Network: d.link.Network(), Driver: information.Driver, Rung: information.Mode, ZeroCopy: information.ZeroCopy,
		State: "active", MAC: d.link.HardwareAddr().String(), MaxMTU: d.MaxMTU().Bytes(), GIDs: []string{},
		QPNBase: d.numbers.base, QPNCount: int(d.numbers.count), Uptime: d.Clock().Seconds(), Keys: d.memory.Count(),
	}
	d.mu.Lock()
	s.QPs, s.CQs, s.SRQs = d.qpCount, len(d.cqs), len(d.srqs)
	d.mu.Unlock()
	active, netdev, err := d.ActiveMTU()
	s.ActiveMTU, s.NetdevMTU = active.Bytes(), netdev
	switch {
	case errors.Is(err, link.ErrDown):
		s.State = "down"
	case err != nil:
		s.State = err.Error()
	}
	gids, _ := d.GIDs() // a device that is gone has none, and says so as its state
	for _, g := range gids {
		text := ""
		if !g.IsZero() {
			text = g.String()
		}
		s.GIDs = append(s.GIDs, text)
	}
	return s
}

func (q *QP) status() QPStatus {
	q.control.Lock()
	home := q.lock()
	t, a := q.transport.Status(), q.transport.Attributes()
	home.unlock()
	q.control.Unlock()
	s := QPStatus{
		QPN: q.number, Type: q.config.Type.String(), State: t.State.String(), Shard: home.index,
		SendCQ: q.config.SendCQ.id, RecvCQ: q.config.RecvCQ.id,
		UnacknowledgedPSN: t.UnacknowledgedPSN, SendPSN: t.SendPSN, NextPSN: t.NextPSN, ExpectedPSN: t.ExpectedPSN, MSN: t.MSN,
		Requests: t.Requests, InFlight: t.InFlight, Window: t.Window,
		RoundTrip: time.Duration(t.RoundTrip).Seconds(),
		Timeout:   roce.AckTimeout(a.Timeout).Seconds(), GiveUp: roce.GiveUpTime(a.Timeout, a.RetryCount).Seconds(), Retries: t.Retries, RetryCount: a.RetryCount,
		RNRRetries: t.RNRRetries, RNRRetry: a.RNRRetry, WaitingRNR: t.WaitingRNR, Recovering: t.Recovering,
		Counters: counterStatus(&t.Counters),
	}
	if q.config.SRQ != nil {
		s.SRQ = q.config.SRQ.id
	}
	if !a.Path.Destination.IsZero() {
		s.PeerGID, s.PeerQPN, s.PathMTU = a.Path.Destination.String(), a.DestinationQPN, a.PathMTU.Bytes()
		s.PeerMAC, s.Loopback = a.Path.DestinationMAC.String(), a.Loopback != nil
	}
	if t.LastSyndrome != roce.SyndromeNone {
		s.LastSyndrome = t.LastSyndrome.String()
	}
	if t.Failure.Status != queue.WCSuccess {
		s.Failure = t.Failure.Status.String()
		if fault := memory.Fault(t.Failure.VendorErr); fault != memory.FaultNone {
			s.Failure += ": " + fault.String()
		}
	}
	return s
}

func (c *CQ) status() CQStatus {
	s := CQStatus{ID: c.id, Channel: c.notifier != nil, Overrun: c.overrun.Load()}
	c.mu.Lock()
	s.QPs = c.qps.uses
	c.mu.Unlock()
	c.produce.Lock()
	defer c.produce.Unlock()
	s.Capacity = c.producer.Capacity()
	if !c.closed.Load() { // otherwise the ring is not the engine's any more
		s.Waiting = c.producer.Used()
	}
	return s
}

func (s *SRQ) status(users int) SRQStatus {
	s.take.Lock()
	defer s.take.Unlock()
	status := SRQStatus{ID: s.id, MaxWR: s.consumer.Capacity(), Limit: s.limit, QPs: users}
	if !s.closed.Load() {
		status.Posted = s.consumer.Available(status.MaxWR)
	}
	return status
}

func keys[K comparable](m map[K]struct{}) []K { return slices.Collect(maps.Keys(m)) }
