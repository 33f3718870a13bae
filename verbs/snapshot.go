package verbs

// What a device does and in which state it is, for people and programs who look from outside. The engine reads
// everything under the lock that guards it, for one object at a time and never two locks: traffic goes on meanwhile,
// and the parts of a snapshot are not of one moment.

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/transport"
)

// SnapshotFormat is the version of the JSON form of a Snapshot: it changes when a field goes away or gets another
// meaning.
const SnapshotFormat = 1

// Snapshot is what a device does and in which state it is, as the control socket tells it in JSON. Counts are those
// since the device was opened, of a QP those since it was made.
type Snapshot struct {
	Format  int       `json:"format"`  // SnapshotFormat
	Version string    `json:"version"` // of this module, as far as the program knows it
	Go      string    `json:"go"`
	PID     int       `json:"pid"`
	Program string    `json:"program"`
	Time    time.Time `json:"time"`

	Device   DeviceStatus      `json:"device"`
	Counters TransportCounters `json:"counters"` // sums over the shards
	Link     LinkCounters      `json:"link"`     // sums over the queues
	Steering Counts            `json:"steering"` // frames by what the XDP program did with them; empty without one
	Shards   []ShardStatus     `json:"shards"`
	QPs      []QPStatus        `json:"qps"`
	CQs      []CQStatus        `json:"cqs"`
	SRQs     []SRQStatus       `json:"srqs"`
	MRs      []RegionStatus    `json:"mrs"` // windows and fast registrations that are valid, too
}

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
	QPNBase   QPN      `json:"qpnBase"`
	QPNCount  int      `json:"qpnCount"`
	Uptime    float64  `json:"uptimeSeconds"`
	// How many objects there are; Keys are those of memory regions and windows, free ones included.
	QPs  int `json:"qps"`
	CQs  int `json:"cqs"`
	SRQs int `json:"srqs"`
	Keys int `json:"keys"`
}

// ShardStatus is a queue of the device.
type ShardStatus struct {
	Index    int               `json:"index"`
	Counters TransportCounters `json:"counters"`
	Link     LinkCounters      `json:"link"`
	Socket   Counts            `json:"socket"` // of the AF_XDP socket; empty without one
}

// QPStatus is a queue pair.
type QPStatus struct {
	QPN    QPN    `json:"qpn"`
	Type   string `json:"type"`
	State  string `json:"state"`
	Shard  int    `json:"shard"`
	SendCQ uint32 `json:"sendCQ"` // CQStatus.ID
	RecvCQ uint32 `json:"recvCQ"`
	SRQ    uint32 `json:"srq"` // SRQStatus.ID, 0 without one
	// The peer; its GID is empty before RTR.
	PeerGID  string `json:"peerGID"`
	PeerQPN  QPN    `json:"peerQPN"`
	PeerMAC  string `json:"peerMAC"`
	Loopback bool   `json:"loopback"` // it is within the process
	PathMTU  int    `json:"pathMTU"`  // bytes

	UnacknowledgedPSN PSN     `json:"unacknowledgedPSN"`
	SendPSN           PSN     `json:"sendPSN"` // the next one to send
	NextPSN           PSN     `json:"nextPSN"` // the next one that was never sent
	ExpectedPSN       PSN     `json:"expectedPSN"`
	MSN               uint32  `json:"msn"`
	Requests          uint64  `json:"requests"`         // in work
	InFlight          uint64  `json:"inFlight"`         // packets
	Window            uint64  `json:"window"`           // packets
	RoundTrip         float64 `json:"roundTripSeconds"` // smoothed, 0 if unknown

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

	Counters TransportCounters `json:"counters"`
}

// CQStatus is a completion queue.
type CQStatus struct {
	ID       uint32 `json:"id"`
	Capacity int    `json:"capacity"`
	Waiting  int    `json:"waiting"` // completions inside
	QPs      int    `json:"qps"`     // queues of QPs that complete there
	Channel  bool   `json:"channel"`
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
	Key     uint32      `json:"key"`
	Kind    string      `json:"kind"`
	Address uint64      `json:"address"`
	Length  uint64      `json:"length"`
	Access  AccessFlags `json:"access"` // "LOCAL_WRITE|REMOTE_READ" for one
}

// Snapshot describes the device and everything on it. The parts are not all of the same moment.
func (d *Device) Snapshot() (Snapshot, error) {
	if err := d.check(); err != nil {
		return Snapshot{}, err
	}
	return d.snapshot(), nil
}

func (d *Device) snapshot() Snapshot {
	s := d.snapshotCounters()
	s.QPs, s.CQs, s.SRQs, s.MRs = []QPStatus{}, []CQStatus{}, []SRQStatus{}, []RegionStatus{}
	for _, q := range d.driver.QPs() {
		status := q.Status()
		s.QPs = append(s.QPs, newQPStatus(&status))
	}
	for _, c := range d.driver.CQs() {
		s.CQs = append(s.CQs, CQStatus(c))
	}
	for _, q := range d.driver.SRQs() {
		s.SRQs = append(s.SRQs, SRQStatus(q))
	}
	for _, r := range d.driver.Memory().Regions() {
		s.MRs = append(s.MRs, RegionStatus{
			Key: r.Key(), Kind: r.Kind().String(), Address: r.Address(), Length: r.Length(), Access: AccessFlags(r.Access()),
		})
	}
	return s
}

// snapshotCounters is a snapshot without QPs, CQs, SRQs and MRs: it costs the same however many there are.
func (d *Device) snapshotCounters() Snapshot {
	program := ""
	if len(os.Args) > 0 {
		program = os.Args[0]
	}
	s := Snapshot{
		Format: SnapshotFormat, Version: moduleVersion(), Go: runtime.Version(), PID: os.Getpid(), Program: program,
		Time: time.Now(), Device: d.status(), Steering: details(d.driver.Link()),
	}
	var sum transport.Counters
	var carrier link.Counters
	for i, shard := range d.driver.ShardCounters() {
		sum.Add(&shard.Transport)
		carrier.Add(&shard.Link)
		s.Shards = append(s.Shards, ShardStatus{
			Index: i, Counters: newTransportCounters(&shard.Transport), Link: newLinkCounters(shard.Link), Socket: details(shard.Queue),
		})
	}
	s.Counters, s.Link = newTransportCounters(&sum), newLinkCounters(carrier)
	return s
}

// moduleVersion is the version of this module in the program, which may be its main module or one that it uses.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	const path = "github.com/xroce/xroce"
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == path && m.Version != "" {
			return m.Version
		}
	}
	return "unknown"
}

// details are what whoever counts more than others has counted.
func details(of any) Counts {
	if d, ok := of.(link.Detailer); ok {
		return d.Details()
	}
	return Counts{}
}

func (d *Device) status() DeviceStatus {
	l, objects := d.driver.Link(), d.driver.Objects()
	information := l.Information()
	s := DeviceStatus{
		Name: information.Name, Network: l.Network(), Driver: information.Driver, Rung: information.Mode, ZeroCopy: information.ZeroCopy,
		State: "active", MAC: l.HardwareAddr().String(), MaxMTU: d.driver.MaxMTU().Bytes(), GIDs: []string{},
		QPNBase: objects.QPNBase, QPNCount: objects.QPNCount, Uptime: d.driver.Clock().Seconds(),
		QPs: objects.QPs, CQs: objects.CQs, SRQs: objects.SRQs, Keys: d.driver.Memory().Count(),
	}
	active, netdev, err := d.driver.ActiveMTU()
	s.ActiveMTU, s.NetdevMTU = active.Bytes(), netdev
	switch {
	case errors.Is(err, ErrDown):
		s.State = "down"
	case err != nil:
		s.State = err.Error()
	}
	gids, _ := d.driver.GIDs() // a device that is gone has none, and says so as its state
	for _, g := range gids {
		text := ""
		if !g.IsZero() {
			text = g.String()
		}
		s.GIDs = append(s.GIDs, text)
	}
	return s
}

func newQPStatus(q *driver.QPStatus) QPStatus {
	t, a := &q.Transport, &q.Attributes
	s := QPStatus{
		QPN: q.QPN, Type: q.Type.String(), State: t.State.String(), Shard: q.Home,
		SendCQ: q.SendCQ, RecvCQ: q.RecvCQ, SRQ: q.SRQ,
		UnacknowledgedPSN: t.UnacknowledgedPSN, SendPSN: t.SendPSN, NextPSN: t.NextPSN, ExpectedPSN: t.ExpectedPSN, MSN: t.MSN,
		Requests: t.Requests, InFlight: t.InFlight, Window: t.Window, RoundTrip: time.Duration(t.RoundTrip).Seconds(),
		Timeout: roce.AckTimeout(a.Timeout).Seconds(), GiveUp: roce.GiveUpTime(a.Timeout, a.RetryCount).Seconds(),
		Retries: t.Retries, RetryCount: a.RetryCount, RNRRetries: t.RNRRetries, RNRRetry: a.RNRRetry,
		WaitingRNR: t.WaitingRNR, Recovering: t.Recovering, Counters: newTransportCounters(&t.Counters),
	}
	if !a.Path.Destination.IsZero() {
		s.PeerGID, s.PeerQPN, s.PathMTU = a.Path.Destination.String(), a.DestinationQPN, a.PathMTU.Bytes()
		s.PeerMAC, s.Loopback = a.Path.DestinationMAC.String(), a.Loopback != nil
	}
	if t.LastSyndrome != roce.SyndromeNone {
		s.LastSyndrome = t.LastSyndrome.String()
	}
	if failure := completionOf(t.Failure); failure.Status != WCSuccess {
		s.Failure = failure.Status.String()
		if fault := AccessFault(failure.VendorErr); fault != FaultNone {
			s.Failure += ": " + fault.String()
		}
	}
	return s
}
