package queue

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCountsAreReadOnce: the other end of a shared ring changes counts, flags and operation of a slot all the time.
// What ReadSend and ReadRecv return is one of the requests that there were, or is not valid: nothing that was checked
// is read again.
func TestCountsAreReadOnce(t *testing.T) {
	const maxSGE, maxInline, least, limit = MaxSGE, 64, 2 * time.Second, 10 * time.Second
	// Two mappings, so that the ends are as strange to each other as two processes.
	mapTwice := func(l Layout) (*Consumer, []byte) {
		fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		defer unix.Close(fd)
		require.NoError(t, unix.Ftruncate(fd, int64(l.Size())))
		var views [2][]byte
		for i := range views {
			views[i], err = unix.Mmap(fd, 0, l.Size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, unix.Munmap(views[i])) })
		}
		require.NoError(t, Create(views[1], l))
		c, err := NewConsumer(views[0], l)
		require.NoError(t, err)
		return c, views[1][ringSize:]
	}
	sends, send := mapTwice(SendLayout(1, maxSGE, maxInline))
	receives, receive := mapTwice(RecvLayout(1, maxSGE))
	send[8] = uint8(RDMAWrite)
	binary.NativeEndian.PutUint16(send[10:], 1)
	binary.NativeEndian.PutUint16(receive[8:], 1)
	for i := range maxSGE {
		binary.NativeEndian.PutUint32(send[sendHeader+16*i+8:], 1)
		binary.NativeEndian.PutUint32(receive[recvHeader+16*i+8:], 1)
	}

	var stop atomic.Bool
	var other sync.WaitGroup
	defer other.Wait()
	defer stop.Store(true)
	other.Go(func() {
		counts := []uint16{maxSGE, math.MaxUint16, 1, maxSGE + 1}
		for i := 0; !stop.Load(); i++ {
			count := counts[i%len(counts)]
			binary.NativeEndian.PutUint16(send[10:], count)
			binary.NativeEndian.PutUint16(receive[8:], count)
			if i%64 == 0 {
				send[9] ^= uint8(SendInline)
			}
			if i%256 == 0 {
				send[8] ^= uint8(RDMAWrite ^ FetchAdd)
			}
		}
	})
	wr := SendWR{SGList: make([]SGE, 0, maxSGE), Inline: make([]byte, 0, maxInline)}
	rr := RecvWR{SGList: make([]SGE, 0, maxSGE)}
	var right, wrong, inline, received, refused int
	enough := func() bool { return min(right, wrong, inline, received, refused) > 1000 }
	// A second reading is caught only if the other end writes between the two, so it takes many tries.
	for start := time.Now(); time.Since(start) < least || !enough() && time.Since(start) < limit; {
		switch valid := sends.ReadSend(0, &wr); {
		case !valid:
			wrong++
		case wr.Opcode != RDMAWrite, len(wr.SGList) > maxSGE, len(wr.Inline) > maxInline, len(wr.SGList) > 0 && len(wr.Inline) > 0:
			require.Fail(t, "impossible request", "%+v", wr)
		case wr.Flags&SendInline != 0:
			inline++
		default:
			right++
		}
		if receives.ReadRecv(0, &rr) {
			received++
			require.Contains(t, []int{1, maxSGE}, len(rr.SGList))
		} else {
			refused++
		}
	}
	require.True(t, enough(), "%d right, %d wrong, %d inline, %d received, %d refused", right, wrong, inline, received, refused)
}
