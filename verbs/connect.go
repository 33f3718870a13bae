package verbs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/xroce/xroce/internal/jsonline"
	"github.com/xroce/xroce/roce"
)

// Endpoint is what two programs tell each other to connect a pair of queue pairs, over any channel they have. It
// marshals to JSON.
type Endpoint struct {
	Address  netip.Addr `json:"address"` // the GID, as an IP address
	QPN      QPN        `json:"qpn"`
	PSN      PSN        `json:"psn"`       // first PSN that this end sends
	MTU      MTU        `json:"mtu"`       // largest path MTU that this end's port carries
	RDAtomic uint8      `json:"rd_atomic"` // READs and atomics that this end answers at once
}

// check says what no queue pair of a reliable connection has. An MTU of 0 is one that the peer has not told.
func (e Endpoint) check() error {
	wrong := func(format string, values ...any) error {
		return fmt.Errorf("%w: the peer's endpoint "+format, append([]any{ErrInvalid}, values...)...)
	}
	switch {
	case !e.Address.IsValid():
		return wrong("has no address")
	case e.Address.IsUnspecified() || e.Address.IsMulticast():
		return wrong("has the address %v, which is none of a host", e.Address)
	case e.QPN <= roce.QPNGSI || e.QPN >= roce.QPNMulticast:
		return wrong("has QPN %#x, want 0x2 to 0xfffffe", uint32(e.QPN))
	case e.PSN > roce.PSNMask:
		return wrong("has PSN %#x, the largest is %#x", uint32(e.PSN), roce.PSNMask)
	case e.MTU != 0 && !e.MTU.Valid():
		return wrong("has path MTU code %d, want 1 (256 bytes) to 5 (4096 bytes)", uint8(e.MTU))
	}
	return nil
}

// ConnectOptions are the choices of a connection; the zero value works. Where 0 is a choice, too, the field is a
// pointer, and nil is the default: new(uint8(0)).
type ConnectOptions struct {
	// Address is the address of this end, one that the device has, and GIDIndex names it by its place in the GID
	// table instead. Without either it fits the peer's: Endpoint goes by Peer, or without it takes the first address
	// that is not link-local, IPv4 before IPv6, and Connect takes the one that Endpoint has told.
	Address  netip.Addr
	GIDIndex *int
	// Peer is the address of the peer where it is known before the Endpoints are exchanged: Endpoint then minds the
	// MTU of the route there, and chooses the address of this end by it.
	Peer        netip.Addr
	AccessFlags *AccessFlags // what the peer may do; remote read and write by default, so atomics and FLUSH have to be named
	PathMTU     MTU          // the smaller of both ports' by default
	MaxRDAtomic *uint8       // READs and atomics that each end has in flight, 16 by default
	RetryCnt    *uint8       // resends without progress, 0 to 7, 7 by default
	RNRRetry    *uint8       // 0 to 7; 7, the default, is for ever: a receive that is never posted holds the peer up for ever, too
	// Timeout is the ACK timeout, 67 ms by default, and NoTimeout is none. What is used is the next time of 4.096 us
	// * 2^n that is no shorter, up to 2.4 hours. The codes of these times are in QPAttr, which is what libibverbs and
	// the wire have.
	Timeout time.Duration
	// MinRNRTimer is how long the peer waits when it met no receive, 0.64 ms by default: the next time that is no
	// shorter of the 32 that the wire can say, from 0.01 ms to 655.36 ms (IBTA, table 45).
	MinRNRTimer time.Duration

	TrafficClass uint8  // DSCP in bits 7:2, ECN in bits 1:0
	FlowLabel    uint32 // 0 derives one from the QPNs
}

// NoTimeout is the Timeout of a connection that waits for its peer for ever.
const NoTimeout time.Duration = -1

// or is what a pointer of ConnectOptions chooses.
func or[T any](choice *T, standard T) T {
	if choice != nil {
		return *choice
	}
	return standard
}

// attributes are those of the queue pair that the options choose.
func (o *ConnectOptions) attributes() (a QPAttr, err error) {
	a = QPAttr{
		PortNum: 1, AccessFlags: or(o.AccessFlags, AccessRemoteRead|AccessRemoteWrite), PathMTU: o.PathMTU,
		MaxRDAtomic: or(o.MaxRDAtomic, 16), RetryCnt: or(o.RetryCnt, 7), RNRRetry: or(o.RNRRetry, 7),
		AH: AHAttr{TrafficClass: o.TrafficClass, FlowLabel: o.FlowLabel},
	}
	a.MaxDestRDAtomic = a.MaxRDAtomic
	if a.Timeout, err = ackTimeoutCode(cmp.Or(o.Timeout, roce.AckTimeout(14))); err != nil {
		return a, err
	}
	a.MinRNRTimer, err = rnrTimerCode(cmp.Or(o.MinRNRTimer, roce.RNRTimer(12)))
	return a, err
}

// ackTimeoutCode is the code of the shortest ACK timeout that is no shorter than d.
func ackTimeoutCode(d time.Duration) (uint8, error) {
	const longest = 31
	if d < 0 {
		return 0, nil
	}
	for code := uint8(1); code <= longest; code++ {
		if roce.AckTimeout(code) >= d {
			return code, nil
		}
	}
	return 0, fmt.Errorf("%w: Timeout %v, the longest is %v", ErrInvalid, d, roce.AckTimeout(longest))
}

// rnrTimerCode is the code of the shortest RNR timer that is no shorter than d.
func rnrTimerCode(d time.Duration) (uint8, error) {
	if d >= 0 {
		for code := uint8(1); code < 32; code++ {
			if roce.RNRTimer(code) >= d {
				return code, nil
			}
		}
	}
	if longest := roce.RNRTimer(0); d < 0 || d > longest {
		return 0, fmt.Errorf("%w: MinRNRTimer %v, want 0 to %v", ErrInvalid, d, longest)
	}
	return 0, nil
}

// Endpoint describes this end for Connect at the other one. It stays the same until the queue pair goes to RESET,
// which draws another PSN: exchange Endpoints anew after that.
func (q *QP) Endpoint(o ConnectOptions) (Endpoint, error) {
	if err := q.check(); err != nil {
		return Endpoint{}, err
	}
	attr, err := o.attributes()
	if err != nil {
		return Endpoint{}, err
	}
	_, gid, err := q.pd.device.chooseGID(&o, o.Peer)
	if err != nil {
		return Endpoint{}, err
	}
	q.told.Store(&gid)
	return q.endpoint(gid, o, attr.MaxDestRDAtomic)
}

// endpoint describes this end with a GID.
func (q *QP) endpoint(gid GID, o ConnectOptions, rdAtomic uint8) (Endpoint, error) {
	port, err := q.pd.device.QueryPort()
	if err != nil {
		return Endpoint{}, err
	}
	mtu := port.ActiveMTU
	if o.PathMTU != 0 {
		mtu = o.PathMTU
	} else if o.Peer.IsValid() {
		mtu = q.pd.device.driver.WayMTU(mtu, gid, roce.GIDFromAddr(o.Peer.WithZone("")))
	}
	return Endpoint{Address: gid.Addr(), QPN: q.QPN(), PSN: PSN(q.psn.Load()), MTU: mtu, RDAtomic: rdAtomic}, nil
}

// chooseGID returns the entry of the GID table that a connection uses. Without a choice in the options it goes by the
// peer's address: it is the one from which the kernel would send there, or the first of its kind. If the peer is not
// known it is the first that reaches beyond the link, IPv4 before IPv6.
func (d *Device) chooseGID(o *ConnectOptions, peer netip.Addr) (int, GID, error) {
	table, err := d.QueryGIDTable()
	if err != nil {
		return 0, GID{}, err
	}
	if o.Address.IsValid() {
		return d.findGID(table, roce.GIDFromAddr(o.Address.WithZone("")))
	}
	if o.GIDIndex != nil {
		gid, err := d.QueryGID(*o.GIDIndex)
		return *o.GIDIndex, gid, err
	}
	best, found := 0, -1
	rate := func(gid GID) int {
		address := gid.Addr()
		switch {
		case gid.IsZero():
			return 0
		case peer.IsValid() && (gid.Is4() != peer.Unmap().Is4() || address.IsLinkLocalUnicast() != peer.IsLinkLocalUnicast()):
			return 0
		case !peer.IsValid() && address.IsLinkLocalUnicast():
			return 1
		case !peer.IsValid() && !gid.Is4():
			return 2
		}
		return 3
	}
	for i, gid := range table {
		if r := rate(gid); r > best {
			best, found = r, i
		}
	}
	switch {
	case found < 0 && peer.IsValid():
		return 0, GID{}, fmt.Errorf("%w: %s has no address of the kind of the peer's, %v: it has %v", ErrNoGID, d.Name(), peer, present(table))
	case found < 0:
		return 0, GID{}, fmt.Errorf("%w: %s has no address", ErrNoGID, d.Name())
	case peer.IsValid():
		if source := d.driver.SourceTowards(roce.GIDFromAddr(peer.WithZone(""))); !source.IsZero() {
			if i := slices.Index(table, source); i >= 0 {
				found = i
			}
		}
	}
	return found, table[found], nil
}

func (d *Device) findGID(table []GID, gid GID) (int, GID, error) {
	if i := slices.Index(table, gid); i >= 0 && !gid.IsZero() {
		return i, gid, nil
	}
	return 0, gid, fmt.Errorf("%w: %s does not have %v: it has %v", ErrNoGID, d.Name(), gid, present(table))
}

// present leaves out the free slots of a GID table.
func present(table []GID) []GID { return slices.DeleteFunc(slices.Clone(table), GID.IsZero) }

// Connect brings the queue pair from RESET, or from INIT for a program that posts receives first, to RTS, connected
// to remote. Both ends must use the same PathMTU, if any, and MaxRDAtomic; the rest is each end's own choice. The
// path MTU is the smaller one of both Endpoints unless the options name one; ErrPathMTU says that the route to the
// peer does not carry it, and then both ends need a smaller PathMTU, or the Peer in the options of Endpoint. The
// search for the peer's Ethernet address gives up after 3 seconds, or when ctx ends; if Connect fails, Modify to
// StateReset, exchange Endpoints anew and try again.
func (q *QP) Connect(ctx context.Context, remote Endpoint, o ConnectOptions) error {
	if err := q.check(); err != nil {
		return err
	}
	if ctx == nil {
		return errNoContext
	}
	if err := remote.check(); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	attr, err := o.attributes()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if told := q.told.Load(); told != nil && o.GIDIndex == nil && !o.Address.IsValid() {
		o.Address = told.Addr()
	}
	index, gid, err := q.pd.device.chooseGID(&o, remote.Address)
	if err != nil {
		return err
	}
	local, err := q.endpoint(gid, o, attr.MaxDestRDAtomic)
	if err != nil {
		return err
	}
	if attr.PathMTU == 0 {
		attr.PathMTU = min(local.MTU, remote.MTU)
	}
	attr.DestQPN, attr.RQPSN, attr.SQPSN = remote.QPN, remote.PSN, local.PSN
	attr.AH.DGID, attr.AH.SGIDIndex = roce.GIDFromAddr(remote.Address), index
	attr.MaxRDAtomic = min(attr.MaxRDAtomic, remote.RDAtomic)
	for _, step := range []struct {
		state QPState
		mask  QPAttrMask
	}{
		{StateInit, QPPKeyIndex | QPPort | QPAccessFlags},
		{StateRTR, QPAV | QPPathMTU | QPDestQPN | QPRQPSN | QPMaxDestRDAtomic | QPMinRNRTimer},
		{StateRTS, QPSQPSN | QPTimeout | QPRetryCnt | QPRNRRetry | QPMaxQPRDAtomic},
	} {
		attr.State = step.state
		if err := q.Modify(ctx, attr, QPStateMask|step.mask); err != nil {
			return fmt.Errorf("connect to QP %v at %v: %w", remote.QPN, remote.Address, err)
		}
	}
	return nil
}

// maxExchange bounds a line of Exchange in bytes. An Endpoint takes up to 130 of them, so that those of all queue
// pairs of a device (MaxQP) fit.
const maxExchange = 4 << 20

// Exchange sends local to the program at the other end of channel and returns what that one sent: a line of JSON each
// way, both at once, of at most 4 MiB. What is sent is usually an Endpoint, or a struct of the program's own with
// one, or with many. An Endpoint of the peer with values that no queue pair can have is refused as by Connect,
// wherever it is in what came; one that is all zero counts as left out. Exchange waits as long as the channel does;
// after an error close the channel.
func Exchange[T any](channel io.ReadWriter, local T) (remote T, err error) {
	if err = jsonline.Exchange(channel, local, &remote, maxExchange); err == nil {
		err = checkEndpoints(reflect.ValueOf(&remote))
	}
	if err != nil {
		return remote, fmt.Errorf("exchange with the peer: %w", err)
	}
	return remote, nil
}

// checkEndpoints checks every Endpoint in a value that came from JSON.
func checkEndpoints(v reflect.Value) error {
	if v.Kind() == reflect.Struct && v.Type() == reflect.TypeFor[Endpoint]() {
		if v.IsZero() || !v.CanInterface() {
			return nil // one that is left out, or that JSON does not set
		}
		return v.Interface().(Endpoint).check()
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return checkEndpoints(v.Elem())
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if !field.IsExported() && !field.Anonymous {
				continue // JSON does not set it
			}
			if err := checkEndpoints(value); err != nil {
				return err
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := checkEndpoints(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if err := checkEndpoints(v.MapIndex(key)); err != nil {
				return err
			}
		}
	}
	return nil
}
