package capture

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/xroce/xroce/roce"
)

// TestBufferModel compares the buffer with a list.
func TestBufferModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		snap := rapid.SampledFrom([]int{0, 1, 64, 4000}).Draw(t, "snap")
		b := NewBuffer(MinimumSize, snap, Filter{})
		type frame struct {
			packet Packet
			bytes  []byte
		}
		var list []frame
		used, missing, leftOut, next := uint64(0), uint64(0), uint64(0), byte(0)
		read := func() {
			p, found := b.Front()
			require.Equal(t, len(list) > 0, found)
			if !found {
				return
			}
			want := list[0]
			list = list[1:]
			require.Equal(t, want.bytes, append(slices.Clone(p.Data[0]), p.Data[1]...))
			used -= place(len(want.bytes))
			p.Data = [2][]byte{}
			require.Equal(t, want.packet, p)
			b.Release()
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				var segments [][]byte
				var whole []byte
				for _, n := range rapid.SliceOfN(rapid.IntRange(0, 3000), 0, 4).Draw(t, "segments") {
					piece := make([]byte, n)
					for i := range piece {
						piece[i] = next
						next = next*5 + 3
					}
					segments = append(segments, piece)
					whole = append(whole, piece...)
				}
				kept := len(whole)
				if snap > 0 {
					kept = min(kept, snap)
				}
				p := Packet{
					Time: rapid.Int64().Draw(t, "time"), Mark: Mark(rapid.Byte().Draw(t, "mark")),
					Drop: roce.DropReason(rapid.Byte().Draw(t, "drop")), Length: len(whole),
				}
				b.Add(p.Time, p.Mark, p.Drop, segments)
				if used+place(kept) > MinimumSize {
					missing++
					leftOut++
				} else {
					p.LeftOut, missing = missing, 0
					used += place(kept)
					list = append(list, frame{p, append([]byte{}, whole[:kept]...)})
				}
			},
			"read": func(*rapid.T) { read() },
			"":     func(t *rapid.T) { require.Equal(t, leftOut, b.LeftOut()) },
		})
		for len(list) > 0 {
			read()
		}
		read()
	})
}

// TestBufferConcurrent: what the reader sees is whole and in order, and what it does not see is counted, once in the
// packet behind and once in all.
func TestBufferConcurrent(t *testing.T) {
	b := NewBuffer(MinimumSize, 0, Filter{})
	const frames = 100_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		random := rand.New(rand.NewPCG(1, 2))
		frame := make([]byte, 2000)
		for i := range frames {
			length := 8 + random.IntN(len(frame)-8)
			for at := range length {
				frame[at] = byte(i)
			}
			binary.NativeEndian.PutUint64(frame, uint64(i))
			split := random.IntN(length)
			b.Add(int64(i), 0, 0, [][]byte{frame[:split], frame[split:length]})
			if i%64 == 0 {
				runtime.Gosched()
			}
		}
	}()
	next, seen := uint64(0), uint64(0)
	for ended := false; ; {
		p, found := b.Front()
		if !found {
			if ended {
				break
			}
			select {
			case <-done:
				ended = true
			default:
				runtime.Gosched()
			}
			continue
		}
		whole := slices.Concat(p.Data[0], p.Data[1])
		require.Len(t, whole, p.Length)
		next += p.LeftOut
		require.EqualValues(t, next, p.Time)
		require.Equal(t, next, binary.NativeEndian.Uint64(whole))
		for _, v := range whole[8:] {
			if v != byte(next) {
				require.Equal(t, byte(next), v)
			}
		}
		b.Release()
		next++
		seen++
	}
	require.EqualValues(t, frames, seen+b.LeftOut())
	require.NotZero(t, seen)
	t.Logf("%d seen, %d left out", seen, b.LeftOut())
}

func TestSizes(t *testing.T) {
	require.Len(t, NewBuffer(0, 0, Filter{}).ring, MinimumSize)
	require.Len(t, NewBuffer(MinimumSize+1, 0, Filter{}).ring, 2*MinimumSize)
	require.Len(t, NewBuffer(4<<20, 0, Filter{}).ring, 4<<20)
	// A frame that is longer than the buffer is cut rather than left out for ever.
	b := NewBuffer(0, 1<<30, Filter{})
	b.Add(1, 0, 0, [][]byte{make([]byte, 20000)})
	p, found := b.Front()
	require.True(t, found)
	require.Equal(t, 20000, p.Length)
	require.Equal(t, MinimumSize-headerSize, len(p.Data[0])+len(p.Data[1]))
}

func TestNoAllocation(t *testing.T) {
	b := NewBuffer(MinimumSize, 0, NewFilter([]roce.QPN{7}, []roce.Opcode{roce.RCSendOnly}))
	segments := [][]byte{make([]byte, 100), make([]byte, 1000)}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if b.Filter.Match(roce.RCSendOnly, 7, 8) {
			b.Add(1, Outbound, 0, segments)
		}
		p, _ := b.Front()
		if p.Comment() == "" {
			b.Release()
		}
	}))
}

func TestFilter(t *testing.T) {
	all := NewFilter(nil, nil)
	require.True(t, all.All())
	require.True(t, all.Match(roce.RCAcknowledge, 0, 0))
	f := NewFilter([]roce.QPN{3, 5}, nil)
	require.False(t, f.All())
	require.True(t, f.Match(roce.RCAcknowledge, 5, 9))
	require.True(t, f.Match(roce.RCAcknowledge, 9, 3))
	require.False(t, f.Match(roce.RCAcknowledge, 9, 0))
	f = NewFilter([]roce.QPN{3}, []roce.Opcode{roce.RCSendOnly})
	require.False(t, f.All())
	require.True(t, f.Match(roce.RCSendOnly, 3, 9))
	require.False(t, f.Match(roce.RCSendFirst, 3, 9))
	require.False(t, f.Match(roce.RCSendOnly, 4, 9))
}

func TestOpcodes(t *testing.T) {
	list, err := Opcodes([]string{"rc_send_only", "RC_RDMA_READ_RESPONSE*"})
	require.NoError(t, err)
	require.Equal(t, []roce.Opcode{
		roce.RCSendOnly, roce.RCReadResponseFirst, roce.RCReadResponseMiddle, roce.RCReadResponseLast, roce.RCReadResponseOnly,
	}, list)
	for _, wrong := range []string{"", "SEND_ONLY", "RC_SEND_ONL", "[", "RC_SEND_ONLY,"} {
		_, err = Opcodes([]string{wrong})
		require.Error(t, err, wrong)
	}
}

func TestComment(t *testing.T) {
	for want, p := range map[string]Packet{
		"":                                {Mark: Outbound | Request},
		"retransmission":                  {Mark: Outbound | Request | Again},
		"response sent again":             {Mark: Outbound | Again},
		"dropped: icrc_bad":               {Drop: roce.DropICRC},
		"duplicate request":               {Mark: Request | Duplicate},
		"dropped: out_of_sequence":        {Mark: Request, Drop: roce.DropOutOfSequence},
		"dropped: duplicate_unanswerable": {Mark: Request | Duplicate, Drop: roce.DropDuplicateUnanswerable},
		"3 packets before this one are left out: the capture was read too slowly; retransmission; " +
			"not sent: the link is down, or the device that it is for is closed": {Mark: Outbound | Request | Again | Unsent, LeftOut: 3},
	} {
		require.Equal(t, want, p.Comment())
	}
}
