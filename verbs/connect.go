package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"

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

// ConnectOptions are the choices of a connection; fields that are 0 get a default. Programs that need other values, 0
// among them, make the three transitions with ModifyQP.
type ConnectOptions struct {
	GIDIndex    int
	AccessFlags AccessFlags // what the peer may do; remote read, write and atomic by default
	PathMTU     MTU         // the smaller of both ports' by default
	MaxRDAtomic uint8       // READs that each end has in flight, 16 by default
	RetryCnt    uint8       // resends without progress, 7 by default
	RNRRetry    uint8       // 7, which is for ever, by default
	Timeout     uint8       // ACK timeout code, 14 (67 ms) by default
	MinRNRTimer uint8       // RNR timer code, 12 (0.64 ms) by default

	TrafficClass uint8
	FlowLabel    uint32
}

func (o *ConnectOptions) fill() {
	def := func(field *uint8, value uint8) {
		if *field == 0 {
			*field = value
		}
	}
	def(&o.MaxRDAtomic, 16)
	def(&o.RetryCnt, 7)
	def(&o.RNRRetry, 7)
	def(&o.Timeout, 14)
	def(&o.MinRNRTimer, 12)
	if o.AccessFlags == 0 {
		o.AccessFlags = AccessRemoteRead | AccessRemoteWrite | AccessRemoteAtomic
	}
}

// Endpoint describes this end for Connect at the other one.
func (q *QP) Endpoint(o ConnectOptions) (Endpoint, error) {
	o.fill()
	gid, err := q.pd.device.QueryGID(o.GIDIndex)
	if err != nil {
		return Endpoint{}, err
	}
	port, err := q.pd.device.QueryPort()
	if err != nil {
		return Endpoint{}, err
	}
	mtu := port.ActiveMTU
	if o.PathMTU != 0 {
		mtu = o.PathMTU
	}
	return Endpoint{Address: gid.Addr(), QPN: q.QPN(), PSN: q.psn, MTU: mtu, RDAtomic: o.MaxRDAtomic}, nil
}

// Connect brings the queue pair from RESET to RTS, connected to remote. Both ends must use the same options, but for
// GIDIndex and the traffic class. The path MTU is the smaller one of both Endpoints unless the options name one.
func (q *QP) Connect(ctx context.Context, remote Endpoint, o ConnectOptions) error {
	o.fill()
	local, err := q.Endpoint(o)
	if err != nil {
		return err
	}
	if !remote.Address.IsValid() {
		return fmt.Errorf("connect: %w: the peer's endpoint has no address", ErrInvalid)
	}
	mtu := o.PathMTU
	if mtu == 0 {
		mtu = min(local.MTU, remote.MTU)
	}
	steps := []struct {
		attr QPAttr
		mask QPAttrMask
	}{
		{
			QPAttr{State: StateInit, PortNum: 1, AccessFlags: o.AccessFlags},
			QPStateMask | QPPKeyIndex | QPPort | QPAccessFlags,
		},
		{
			QPAttr{
				State: StateRTR, PathMTU: mtu, DestQPN: remote.QPN, RQPSN: remote.PSN,
				MaxDestRDAtomic: o.MaxRDAtomic, MinRNRTimer: o.MinRNRTimer,
				AH: AHAttr{
					DGID: roce.GIDFromAddr(remote.Address), SGIDIndex: o.GIDIndex,
					TrafficClass: o.TrafficClass, FlowLabel: o.FlowLabel,
				},
			},
			QPStateMask | QPAV | QPPathMTU | QPDestQPN | QPRQPSN | QPMaxDestRDAtomic | QPMinRNRTimer,
		},
		{
			QPAttr{
				State: StateRTS, SQPSN: q.psn, Timeout: o.Timeout, RetryCnt: o.RetryCnt, RNRRetry: o.RNRRetry,
				MaxRDAtomic: min(o.MaxRDAtomic, remote.RDAtomic),
			},
			QPStateMask | QPSQPSN | QPTimeout | QPRetryCnt | QPRNRRetry | QPMaxQPRDAtomic,
		},
	}
	for _, step := range steps {
		if q.State() == StateInit && step.attr.State == StateInit {
			continue // the program went there to post receives first
		}
		if err := q.ModifyQPContext(ctx, step.attr, step.mask); err != nil {
			return fmt.Errorf("connect to QP %#x at %v: %w", uint32(remote.QPN), remote.Address, err)
		}
	}
	return nil
}

// Exchange sends local to the program at the other end of channel and returns what that one sent: a line of JSON each
// way, both at once.
func Exchange(channel io.ReadWriter, local Endpoint) (Endpoint, error) {
	written := make(chan error, 1)
	go func() { written <- json.NewEncoder(channel).Encode(local) }()
	var remote Endpoint
	err := ReadMessage(channel, &remote)
	if err == nil {
		err = <-written
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("exchange of endpoints: %w", err)
	}
	return remote, nil
}

const maxMessage = 4096

// ReadMessage reads one line of JSON, byte by byte: whatever follows it in the channel stays there.
func ReadMessage(channel io.Reader, into any) error {
	line := make([]byte, 0, 256)
	for one := make([]byte, 1); len(line) < maxMessage; {
		if _, err := io.ReadFull(channel, one); err != nil {
			return err
		}
		if one[0] == '\n' {
			return json.Unmarshal(line, into)
		}
		line = append(line, one[0])
	}
	return fmt.Errorf("message is longer than %d bytes", maxMessage)
}
