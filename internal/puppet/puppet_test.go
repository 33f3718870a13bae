package puppet_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

func v6(a *verbs.QPAttr) { a.AH.SGIDIndex = 1 }

// TestConversation is the shortest one in both directions, over both versions of IP.
func TestConversation(t *testing.T) {
	for name, adjust := range map[string]func(*verbs.QPAttr){"IPv4": func(*verbs.QPAttr) {}, "IPv6": v6} {
		t.Run(name, func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			end := stage.NewEnd(puppet.EndOptions{})
			p := stage.NewPuppet()
			p.Connect(end, adjust)

			p.Send(puppet.Packet{
				Opcode: roce.RCWriteOnly, PSN: 100, RETH: end.RETH(0, 4), Payload: []byte("rose"), AckRequest: true,
			})
			ack := p.ExpectAck(100, 1)
			require.Equal(t, 2*time.Microsecond+1, ack.At, "a latency of one microsecond each way")
			require.Equal(t, "rose", string(end.Bytes(0, 4)))

			end.Post(end.Request(7, verbs.WRSend, 0, 4))
			p.ExpectPacket(roce.RCSendOnly, 40).Carries([]byte("rose"))
			p.Ack(40, 1)
			end.ExpectSend(7, verbs.WCSuccess)
			p.ExpectNothing(time.Minute)
			end.ExpectNoCompletion()
		})
	}
	support.Opcode(t, roce.RCAcknowledge, support.Sent, support.Received)
	support.Opcode(t, roce.RCWriteOnly, support.Received)
	support.Opcode(t, roce.RCSendOnly, support.Sent)
}

// TestWrong shows that each of the faults that a packet can be given is really in it.
func TestWrong(t *testing.T) {
	other := netip.MustParseAddr("10.0.0.77")
	other6 := netip.MustParseAddr("fd00::77")
	for name, c := range map[string]struct {
		wrong  puppet.Wrong
		adjust func(*verbs.QPAttr)
		reason roce.DropReason // DropNone means that the packet is a good one all the same
	}{
		"nothing":              {},
		"no bit M":             {wrong: puppet.Wrong{NoMigReq: true}},
		"limited member":       {wrong: puppet.Wrong{PKey: new(uint16(0x7FFF))}},
		"trailer":              {wrong: puppet.Wrong{Trailer: 20}},
		"trailer counted":      {wrong: puppet.Wrong{IPLength: 20, Trailer: 20}},
		"trailer, IPv6":        {wrong: puppet.Wrong{IPLength: 20, Trailer: 20}, adjust: v6},
		"ICRC":                 {wrong: puppet.Wrong{ICRC: true}, reason: roce.DropICRC},
		"transport version":    {wrong: puppet.Wrong{TransportVersion: 1}, reason: roce.DropTransportVersion},
		"P_Key":                {wrong: puppet.Wrong{PKey: new(uint16(0x8001))}, reason: roce.DropPKey},
		"QPN":                  {wrong: puppet.Wrong{QPN: new(roce.QPN(0xABCDEF))}, reason: roce.DropUnknownQPN},
		"QPN 0":                {wrong: puppet.Wrong{QPN: new(roce.QPN(0))}, reason: roce.DropQPN0},
		"source":               {wrong: puppet.Wrong{Source: other}, reason: roce.DropAddressMismatch},
		"destination":          {wrong: puppet.Wrong{Destination: other}, reason: roce.DropAddressMismatch},
		"source, IPv6":         {wrong: puppet.Wrong{Source: other6}, adjust: v6, reason: roce.DropAddressMismatch},
		"IP longer than frame": {wrong: puppet.Wrong{IPLength: 1}, reason: roce.DropTooShort},
		"IP shorter than UDP":  {wrong: puppet.Wrong{IPLength: -1}, reason: roce.DropUDPLength},
		"UDP longer than IP":   {wrong: puppet.Wrong{UDPLength: 1}, reason: roce.DropUDPLength},
		"UDP too short":        {wrong: puppet.Wrong{UDPLength: -1}, reason: roce.DropICRC},
	} {
		t.Run(name, func(t *testing.T) {
			stage := puppet.NewStage(t, mem.Options{})
			end := stage.NewEnd(puppet.EndOptions{})
			p := stage.NewPuppet()
			if c.adjust == nil {
				c.adjust = func(*verbs.QPAttr) {}
			}
			p.Connect(end, c.adjust)
			packet := puppet.Packet{
				Opcode: roce.RCWriteOnly, PSN: 100, RETH: end.RETH(0, 4), Payload: []byte("rose"), AckRequest: true, Wrong: c.wrong,
			}
			p.Send(packet)
			if c.reason == roce.DropNone {
				p.ExpectAck(100, 1)
				return
			}
			p.ExpectNothing(time.Second)
			counters := opener.Counters(end.Device)
			require.Equal(t, map[string]uint64{c.reason.String(): 1}, counters.DropReasons())
			packet.Wrong = puppet.Wrong{}
			p.Send(packet)
			p.ExpectAck(100, 1)
		})
	}
}

// TestVirtual shows that deadlines fire when they are due, and that Run stops at its limit.
func TestVirtual(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end)
	end.Post(end.Request(1, verbs.WRSend, 0, 0))
	first := p.Expect()
	second := p.Expect()
	require.Equal(t, roce.AckTimeout(14), second.At-first.At)

	before := stage.Now()
	stage.Pass(time.Millisecond)
	require.Equal(t, time.Millisecond, stage.Now()-before)
	require.False(t, stage.Run(time.Millisecond, func() bool { return false }))
	require.True(t, stage.Run(time.Millisecond, func() bool { return stage.Now()-before >= 2*time.Millisecond }))
}

// TestReal is a conversation over a live network, where time passes by itself.
func TestReal(t *testing.T) {
	network := mem.NewNetwork(mem.Options{})
	near, err := network.NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	far, err := network.NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	device, err := opener.Open[verbs.Device](near, driver.Options{})
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	cq, err := device.CreateCQ(verbs.CQInitAttr{CQE: 16})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	require.NoError(t, err)
	p := puppet.New(t, far, puppet.NewReal())
	p.ConnectQP(device, qp)

	p.Send(puppet.Packet{Opcode: roce.RCReadRequest, PSN: 100, AckRequest: true})
	p.ExpectPacket(roce.RCReadResponseOnly, 100).Says(roce.SyndromeAckNoCredits, 1).Carries(nil)
	p.ExpectNothing(time.Millisecond)

	require.NoError(t, qp.Destroy())
	require.NoError(t, cq.Destroy())
	require.NoError(t, pd.Dealloc())
	require.NoError(t, device.Close())
	require.NoError(t, far.Close())
}
