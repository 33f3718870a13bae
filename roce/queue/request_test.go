package queue

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/xroce/xroce/roce"
)

func drawSGList(t *rapid.T, limit int) []SGE {
	list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) SGE {
		return SGE{
			Addr: rapid.Uint64().Draw(t, "address"), LKey: rapid.Uint32().Draw(t, "lkey"),
			Length: rapid.Uint32Range(0, MaxMessage/8).Draw(t, "length"),
		}
	}), 0, limit).Draw(t, "list")
	if list == nil {
		return []SGE{}
	}
	return list
}

// TestRequestsRoundTrip: what is posted is what is read, whatever was in the slot before.
func TestRequestsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxSGE = 4
		p, c := ends(t, newMemory(SendLayout(3, maxSGE), 0), SendLayout(3, maxSGE))
		rp, rc := ends(t, newMemory(RecvLayout(3, maxSGE), 0), RecvLayout(3, maxSGE))
		got := SendWR{SGList: make([]SGE, 0, maxSGE)}
		gotReceive := RecvWR{SGList: make([]SGE, 0, maxSGE)}
		for range 10 {
			want := SendWR{
				WRID: rapid.Uint64().Draw(t, "id"), Opcode: Opcode(rapid.IntRange(0, 4).Draw(t, "opcode")),
				Flags: SendFlags(rapid.IntRange(0, 7).Draw(t, "flags")), SGList: drawSGList(t, maxSGE),
				ImmData: rapid.Uint32().Draw(t, "immediate"), RemoteAddr: rapid.Uint64().Draw(t, "va"), RKey: rapid.Uint32().Draw(t, "rkey"),
			}
			require.NoError(t, p.PostSend(&want))
			require.Equal(t, 1, c.Available(0))
			require.True(t, c.ReadSend(0, &got))
			require.Equal(t, want, got)
			c.Release(1)

			receive := RecvWR{WRID: rapid.Uint64().Draw(t, "id"), SGList: drawSGList(t, maxSGE)}
			require.NoError(t, rp.PostRecv(&receive))
			require.Equal(t, 1, rc.Available(0))
			require.True(t, rc.ReadRecv(0, &gotReceive))
			require.Equal(t, receive, gotReceive)
			rc.Release(1)
		}
	})
}

func TestCompletionsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, c := ends(t, newMemory(CompletionLayout(4), 0), CompletionLayout(4))
		number := rapid.Uint32()
		small := rapid.Uint8()
		var want []WC
		for range rapid.IntRange(0, 4).Draw(t, "count") {
			wc := WC{
				WRID: rapid.Uint64().Draw(t, "id"), Status: WCStatus(small.Draw(t, "status")), Opcode: WCOpcode(small.Draw(t, "opcode")),
				Flags: WCFlags(small.Draw(t, "flags")), ByteLen: number.Draw(t, "length"), ImmData: number.Draw(t, "immediate"),
				QPN: roce.QPN(number.Draw(t, "QPN")), PSN: roce.PSN(number.Draw(t, "PSN")), Syndrome: roce.Syndrome(small.Draw(t, "syndrome")),
				Retries: small.Draw(t, "retries"), RNRRetries: small.Draw(t, "RNR retries"),
			}
			want = append(want, wc)
			require.True(t, p.WriteCompletion(&wc))
		}
		require.Equal(t, len(want) < 4, p.WriteCompletion(&WC{}))
		var got [5]WC
		n := c.ReadCompletions(got[:len(want)])
		require.Equal(t, len(want), n)
		require.Equal(t, want, append([]WC(nil), got[:n]...))
	})
}

// TestPostRefused: what cannot be right is refused before it reaches the ring, and takes no slot.
func TestPostRefused(t *testing.T) {
	layout := SendLayout(1, 2)
	p, c := ends(t, newMemory(layout, 0), layout)
	for want, wr := range map[error]SendWR{
		ErrOpcode:      {Opcode: 5},
		ErrFlags:       {Flags: 8},
		ErrTooManySGEs: {SGList: make([]SGE, 3)},
		ErrTooLong:     {SGList: []SGE{{Length: 1 << 31}, {Length: 1}}},
	} {
		require.ErrorIs(t, p.PostSend(&wr), want)
	}
	require.Zero(t, c.Available(0))
	require.NoError(t, p.PostSend(&SendWR{SGList: []SGE{{Length: 1 << 31}, {}}}))
	require.ErrorIs(t, p.PostSend(&SendWR{}), ErrFull)

	p, c = ends(t, newMemory(RecvLayout(1, 2), 0), RecvLayout(1, 2))
	require.ErrorIs(t, p.PostRecv(&RecvWR{SGList: make([]SGE, 3)}), ErrTooManySGEs)
	require.ErrorIs(t, p.PostRecv(&RecvWR{SGList: []SGE{{Length: 1<<32 - 1}, {Length: 1<<32 - 1}}}), ErrTooLong)
	require.Zero(t, c.Available(0))
	require.NoError(t, p.PostRecv(&RecvWR{}))
	require.ErrorIs(t, p.PostRecv(&RecvWR{}), ErrFull)
}

// TestReadRefused: a request that no honest producer writes is refused when it is read; its number is there all the same,
// for the completion.
func TestReadRefused(t *testing.T) {
	layout := SendLayout(1, 2)
	for name, spoil := range map[string]func(slot []byte){
		"opcode":       func(s []byte) { s[8] = 5 },
		"flags":        func(s []byte) { s[9] = 0x80 },
		"3 elements":   func(s []byte) { binary.NativeEndian.PutUint16(s[10:], 3) },
		"max elements": func(s []byte) { binary.NativeEndian.PutUint16(s[10:], 65535) },
	} {
		p, c := ends(t, newMemory(layout, 0), layout)
		require.NoError(t, p.PostSend(&SendWR{WRID: 77, SGList: make([]SGE, 2)}))
		spoil(c.Slot(0))
		require.Equal(t, 1, c.Available(0))
		wr := SendWR{SGList: make([]SGE, 0, 2)}
		require.False(t, c.ReadSend(0, &wr), name)
		require.Equal(t, uint64(77), wr.WRID, name)
		require.LessOrEqual(t, len(wr.SGList), 2, name)
	}
	p, c := ends(t, newMemory(RecvLayout(1, 2), 0), RecvLayout(1, 2))
	require.NoError(t, p.PostRecv(&RecvWR{WRID: 78}))
	binary.NativeEndian.PutUint16(c.Slot(0)[8:], 3)
	wr := RecvWR{SGList: make([]SGE, 0, 2)}
	require.False(t, c.ReadRecv(0, &wr))
	require.Equal(t, uint64(78), wr.WRID)
	require.Empty(t, wr.SGList)
}

// TestArm: one notification for each Arm; "next" wins over "solicited".
func TestArm(t *testing.T) {
	p, c := ends(t, newMemory(CompletionLayout(2), 0), CompletionLayout(2))
	require.False(t, p.Disarm(true))
	c.Arm(false)
	c.Arm(false)
	require.True(t, p.Disarm(false))
	require.False(t, p.Disarm(true))
	c.Arm(true)
	require.False(t, p.Disarm(false), "not solicited")
	require.True(t, p.Disarm(true))
	require.False(t, p.Disarm(true))
	for _, order := range [][2]bool{{true, false}, {false, true}} {
		c.Arm(order[0])
		c.Arm(order[1])
		require.True(t, p.Disarm(false), "%v", order)
	}
}

// TestValues: the numbers are those of libibverbs, which programs in other languages write and read.
func TestValues(t *testing.T) {
	require.Equal(t, []Opcode{0, 1, 2, 3, 4}, []Opcode{RDMAWrite, RDMAWriteWithImmediate, Send, SendWithImmediate, RDMARead})
	require.Equal(t, []SendFlags{1, 2, 4}, []SendFlags{SendFence, SendSignaled, SendSolicited})
	require.Equal(t, []WCOpcode{0, 1, 2, 128, 129}, []WCOpcode{WCSend, WCRDMAWrite, WCRDMARead, WCRecv, WCRecvRDMAWithImmediate})
	require.Equal(t, []WCOpcode{1, 1, 0, 0, 2}, []WCOpcode{
		RDMAWrite.Completed(), RDMAWriteWithImmediate.Completed(), Send.Completed(), SendWithImmediate.Completed(), RDMARead.Completed(),
	})
	for _, s := range []struct {
		value WCStatus
		text  string
	}{
		{0, "success"}, {5, "work request flushed"}, {12, "transport retry counter exceeded"}, {99, "status 99"},
	} {
		require.Equal(t, s.text, s.value.String())
	}
}
