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

// pattern gathers bytes that the addresses of a list decide.
type pattern struct{}

func (pattern) Gather(list []SGE, into []byte) error {
	for _, s := range list {
		for i := range into[:s.Length] {
			into[i] = byte(s.Addr + uint64(i))
		}
		into = into[s.Length:]
	}
	return nil
}

// drawSend draws a request that can be executed.
func drawSend(t *rapid.T, limits SendLimits) SendWR {
	wr := SendWR{
		WRID:   rapid.Uint64().Draw(t, "id"),
		Opcode: rapid.SampledFrom(knownOpcodes()).Draw(t, "opcode"),
		Flags:  SendFlags(rapid.IntRange(0, 7).Draw(t, "flags")),
		SGList: []SGE{},
	}
	o := wr.Opcode.operation()
	if o.list {
		wr.SGList = drawSGList(t, limits.MaxSGE)
	}
	if o.inline && rapid.Bool().Draw(t, "inline") {
		wr.Flags |= SendInline
		for i := range wr.SGList {
			wr.SGList[i].Length %= uint32(limits.MaxInline/limits.MaxSGE) + 1
		}
	}
	if wr.Flags&SendInline != 0 && !o.word && rapid.Bool().Draw(t, "own data") {
		wr.SGList = []SGE{}
		wr.Inline = rapid.SliceOfN(rapid.Byte(), 0, limits.MaxInline).Draw(t, "data")
	}
	if o.word {
		wr.SGList = []SGE{{Addr: rapid.Uint64().Draw(t, "address"), Length: 3}, {Length: 5, LKey: 9}}
	}
	number, wide := rapid.Uint32(), rapid.Uint64()
	switch {
	case wr.Opcode == BindWindow:
		wr.Bind = Bind{LKey: number.Draw(t, "lkey"), Access: number.Draw(t, "rights"), Addr: wide.Draw(t, "from"), Length: wide.Draw(t, "length")}
	case wr.Opcode == SendWithInvalidate || wr.Opcode == LocalInvalidate:
		wr.InvalidateRKey = number.Draw(t, "key")
	case wr.Opcode == Flush:
		wr.Flush = FlushRange{Length: rapid.Uint32Range(0, MaxMessage).Draw(t, "length"), Placement: 3, Selectivity: 1}
		wr.RemoteAddr = wide.Draw(t, "va")
	default:
		wr.ImmData, wr.RemoteAddr, wr.CompareAdd = number.Draw(t, "immediate"), wide.Draw(t, "va")&^7, wide.Draw(t, "add")
	}
	wr.RKey, wr.Swap, wr.Access = number.Draw(t, "rkey"), wide.Draw(t, "swap"), number.Draw(t, "access")
	return wr
}

func knownOpcodes() (known []Opcode) {
	for o := range Opcode(255) {
		if o.Known() {
			known = append(known, o)
		}
	}
	return known
}

// TestRequestsRoundTrip: what is posted is what is read, whatever was in the slot before.
func TestRequestsRoundTrip(t *testing.T) {
	require.Len(t, knownOpcodes(), 13)
	rapid.Check(t, func(t *rapid.T) {
		limits := SendLimits{MaxSGE: 4, MaxInline: 100}
		layout := SendLayout(3, limits.MaxSGE, limits.MaxInline)
		p, c := ends(t, newMemory(layout, 0), layout)
		rp, rc := ends(t, newMemory(RecvLayout(3, limits.MaxSGE), 0), RecvLayout(3, limits.MaxSGE))
		got := SendWR{SGList: make([]SGE, 0, limits.MaxSGE), Inline: make([]byte, 0, limits.MaxInline)}
		gotReceive := RecvWR{SGList: make([]SGE, 0, limits.MaxSGE)}
		for range 10 {
			want := drawSend(t, limits)
			require.NoError(t, p.PostSend(&want, limits, pattern{}))
			require.Equal(t, 1, c.Available(0))
			require.True(t, c.ReadSend(0, &got))
			own := want.Inline
			want.Inline = []byte{}
			if want.Opcode == BindWindow {
				want.Access = want.Bind.Access
			}
			if want.Flags&SendInline != 0 && len(want.SGList) == 0 {
				want.Inline = append(want.Inline, own...)
			} else if want.Flags&SendInline != 0 {
				want.Inline = make([]byte, lengthOf(want.SGList))
				require.NoError(t, pattern{}.Gather(want.SGList, want.Inline))
				want.SGList = []SGE{}
			}
			require.Equal(t, want, got)
			c.Release(1)

			receive := RecvWR{WRID: rapid.Uint64().Draw(t, "id"), SGList: drawSGList(t, limits.MaxSGE)}
			require.NoError(t, rp.PostRecv(&receive))
			require.Equal(t, 1, rc.Available(0))
			require.True(t, rc.ReadRecv(0, &gotReceive))
			require.Equal(t, receive, gotReceive)
			rc.Release(1)
		}
	})
}

// TestFewCompletionsAreAll: programs poll until they get fewer than they asked for, and then believe the queue to be
// empty (ibv_poll_cq(3)). Somebody who only looked at the queue in between, as a snapshot does, must not change that.
func TestFewCompletionsAreAll(t *testing.T) {
	p, c := ends(t, newMemory(CompletionLayout(8), 0), CompletionLayout(8))
	var wcs [4]WC
	for _, looks := range []int{0, 1} {
		require.True(t, p.WriteCompletion(&WC{WRID: 1}))
		require.Equal(t, 1, c.Available(looks))
		require.True(t, p.WriteCompletion(&WC{WRID: 2}))
		require.Equal(t, 2, c.ReadCompletions(wcs[:]))
		require.Equal(t, uint64(2), wcs[1].WRID)
	}
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
				Retries: small.Draw(t, "retries"), RNRRetries: small.Draw(t, "RNR retries"), VendorErr: rapid.Uint32().Draw(t, "vendor error"),
			}
			if wc.Flags&WCWithInvalidate != 0 {
				wc.InvalidatedRKey, wc.ImmData = wc.ImmData, 0
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
	limits := SendLimits{MaxSGE: 2, MaxInline: 40}
	layout := SendLayout(1, limits.MaxSGE, limits.MaxInline)
	p, c := ends(t, newMemory(layout, 0), layout)
	word := []SGE{{Length: 8}}
	for _, test := range []struct {
		want error
		wr   SendWR
	}{
		{ErrOpcode, SendWR{Opcode: 10}},
		{ErrOpcode, SendWR{Opcode: 255}},
		{ErrFlags, SendWR{Flags: 16}},
		{ErrInline, SendWR{Opcode: RDMARead, Flags: SendInline}},
		{ErrInline, SendWR{Opcode: CompareSwap, Flags: SendInline, SGList: word}},
		{ErrInline, SendWR{Opcode: Send, Inline: []byte{1}}},
		{ErrInline, SendWR{Opcode: Send, Flags: SendInline, Inline: []byte{1}, SGList: []SGE{{Length: 1}}}},
		{ErrInline, SendWR{Opcode: Send, Flags: SendInline, SGList: []SGE{{Length: 20}, {Length: 21}}}},
		{ErrTooManySGEs, SendWR{SGList: make([]SGE, 3)}},
		{ErrTooManySGEs, SendWR{Opcode: LocalInvalidate, SGList: word}},
		{ErrTooManySGEs, SendWR{Opcode: Flush, Flush: FlushRange{Placement: 1}, SGList: word}},
		{ErrTooLong, SendWR{SGList: []SGE{{Length: 1 << 31}, {Length: 1}}}},
		{ErrTooLong, SendWR{Opcode: Flush, Flush: FlushRange{Placement: 1, Length: 1<<31 + 1}}},
		{ErrFlags, SendWR{Opcode: Flush}},
		{ErrFlags, SendWR{Opcode: Flush, Flush: FlushRange{Placement: 4}}},
		{ErrFlags, SendWR{Opcode: Flush, Flush: FlushRange{Placement: 1, Selectivity: 2}}},
		{ErrWord, SendWR{Opcode: CompareSwap}},
		{ErrWord, SendWR{Opcode: FetchAdd, SGList: []SGE{{Length: 7}}}},
		{ErrWord, SendWR{Opcode: AtomicWrite, SGList: []SGE{{Length: 9}}}},
		{ErrWord, SendWR{Opcode: FetchAdd, SGList: word, RemoteAddr: 4}},
		{ErrWord, SendWR{Opcode: AtomicWrite, SGList: word, RemoteAddr: 7}},
	} {
		require.ErrorIs(t, p.PostSend(&test.wr, limits, pattern{}), test.want, "%+v", test.wr)
	}
	require.Zero(t, c.Available(0))
	require.NoError(t, p.PostSend(&SendWR{SGList: []SGE{{Length: 1 << 31}, {}}}, limits, nil))
	require.ErrorIs(t, p.PostSend(&SendWR{}, limits, nil), ErrFull)

	p, c = ends(t, newMemory(RecvLayout(1, 2), 0), RecvLayout(1, 2))
	require.ErrorIs(t, p.PostRecv(&RecvWR{SGList: make([]SGE, 3)}), ErrTooManySGEs)
	require.ErrorIs(t, p.PostRecv(&RecvWR{SGList: []SGE{{Length: 1<<32 - 1}, {Length: 1<<32 - 1}}}), ErrTooLong)
	require.Zero(t, c.Available(0))
	require.NoError(t, p.PostRecv(&RecvWR{}))
	require.ErrorIs(t, p.PostRecv(&RecvWR{}), ErrFull)
}

// TestReadRefused: a request that no honest producer writes is refused when it is read; its number is there all the
// same, for the completion.
func TestReadRefused(t *testing.T) {
	limits := SendLimits{MaxSGE: 2, MaxInline: 20}
	layout := SendLayout(1, limits.MaxSGE, limits.MaxInline)
	for name, spoil := range map[string]func(slot []byte){
		"opcode":       func(s []byte) { s[8] = 10 },
		"atomic":       func(s []byte) { s[8] = uint8(FetchAdd) },
		"flags":        func(s []byte) { s[9] = 0x80 },
		"inline":       func(s []byte) { s[9] = uint8(SendInline); binary.NativeEndian.PutUint16(s[10:], 21) },
		"max inline":   func(s []byte) { s[9] = uint8(SendInline); binary.NativeEndian.PutUint16(s[10:], 65535) },
		"3 elements":   func(s []byte) { binary.NativeEndian.PutUint16(s[10:], 3) },
		"max elements": func(s []byte) { binary.NativeEndian.PutUint16(s[10:], 65535) },
		"too long": func(s []byte) {
			binary.NativeEndian.PutUint32(s[sendHeader+8:], 1<<31)
			binary.NativeEndian.PutUint32(s[sendHeader+24:], 1)
		},
		"flush of too much": func(s []byte) {
			s[8] = uint8(Flush)
			binary.NativeEndian.PutUint16(s[10:], 0)
			s[12] = 1
			s[36] = 1 // 2^32 bytes
		},
	} {
		p, c := ends(t, newMemory(layout, 0), layout)
		require.NoError(t, p.PostSend(&SendWR{WRID: 77, SGList: make([]SGE, 2)}, limits, nil))
		spoil(c.Slot(0))
		require.Equal(t, 1, c.Available(0))
		wr := SendWR{SGList: make([]SGE, 0, 2), Inline: make([]byte, 0, 20)}
		require.False(t, c.ReadSend(0, &wr), name)
		require.Equal(t, uint64(77), wr.WRID, name)
		require.LessOrEqual(t, len(wr.SGList), 2, name)
		require.LessOrEqual(t, len(wr.Inline), 20, name)
	}
	p, c := ends(t, newMemory(RecvLayout(1, 2), 0), RecvLayout(1, 2))
	require.NoError(t, p.PostRecv(&RecvWR{WRID: 78}))
	slot := c.Slot(0)
	binary.NativeEndian.PutUint16(slot[8:], 2)
	binary.NativeEndian.PutUint32(slot[recvHeader+8:], 1<<31)
	binary.NativeEndian.PutUint32(slot[recvHeader+24:], 1)
	tooLong := RecvWR{SGList: make([]SGE, 0, 2)}
	require.False(t, c.ReadRecv(0, &tooLong))
	binary.NativeEndian.PutUint16(slot[8:], 3)
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
	require.Equal(t, []Opcode{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15}, []Opcode{
		RDMAWrite, RDMAWriteWithImmediate, Send, SendWithImmediate, RDMARead, CompareSwap, FetchAdd, LocalInvalidate,
		BindWindow, SendWithInvalidate, Flush, AtomicWrite,
	})
	require.Equal(t, []SendFlags{1, 2, 4, 8}, []SendFlags{SendFence, SendSignaled, SendSolicited, SendInline})
	require.Equal(t, []WCOpcode{0, 1, 2, 128, 129}, []WCOpcode{WCSend, WCRDMAWrite, WCRDMARead, WCRecv, WCRecvRDMAWithImmediate})
	completed := []WCOpcode{}
	for _, o := range knownOpcodes() {
		completed = append(completed, o.Completed())
	}
	require.Equal(t, []WCOpcode{1, 1, 0, 0, 2, 3, 4, 6, 5, 0, 8, 9, 10}, completed)
	require.Equal(t, []WCFlags{2, 8}, []WCFlags{WCWithImmediate, WCWithInvalidate})
	for _, s := range []struct {
		value WCStatus
		text  string
	}{
		{0, "success"}, {5, "work request flushed"}, {12, "transport retry counter exceeded"}, {99, "status 99"},
	} {
		require.Equal(t, s.text, s.value.String())
	}
}
