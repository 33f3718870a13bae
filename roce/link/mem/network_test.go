package mem_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
	"github.com/xroce/xroce/roce/link/mem"
)

func device(t *testing.T, n *mem.Network, o mem.DeviceOptions) *mem.Device {
	t.Helper()
	d, err := n.NewDevice(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// transmit sends a frame to a device: its address, that of the sender, and a number.
func transmit(t *testing.T, from *mem.Device, queue int, to *mem.Device, number uint32) {
	t.Helper()
	q := from.Queues()[queue]
	b := q.Buffer()
	require.NotNil(t, b)
	mac, own := to.HardwareAddr(), from.HardwareAddr()
	copy(b[0:], mac[:])
	copy(b[6:], own[:])
	binary.BigEndian.PutUint32(b[12:], number)
	q.Commit(16)
	q.Publish()
	require.True(t, q.Pending())
	require.NoError(t, q.Kick())
	require.False(t, q.Pending())
}

// receive returns the numbers of the frames that wait in a queue.
func receive(q link.Queue) (numbers []uint32) {
	frames := make([]link.Frame, 7)
	for {
		n := q.Receive(frames)
		for _, f := range frames[:n] {
			numbers = append(numbers, binary.BigEndian.Uint32(f.Segments[0][12:]))
		}
		q.Release()
		if n == 0 {
			return numbers
		}
	}
}

// conversation sends frames both ways on a faulty network and returns the log of what arrived.
func conversation(t *testing.T, seed uint64) string {
	var log strings.Builder
	n := mem.NewNetwork(mem.Options{
		Seed: seed, Manual: true, Scatter: true, Faults: mem.Faults{Drop: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.1},
		Tap: func(at time.Duration, frame []byte) { fmt.Fprintf(&log, "%v %x\n", at, frame) },
	})
	a, b := device(t, n, mem.DeviceOptions{Queues: 2}), device(t, n, mem.DeviceOptions{Queues: 3})
	for i := range uint32(500) {
		transmit(t, a, int(i%2), b, i)
		transmit(t, b, int(i%3), a, i)
		n.AdvanceTo(n.Now() + 700*time.Nanosecond)
		for i, q := range append(a.Queues(), b.Queues()...) {
			fmt.Fprintf(&log, "queue %d: %v\n", i, receive(q))
		}
	}
	n.AdvanceTo(time.Second)
	return log.String()
}

// TestDeterminism: the same seed, the same log, byte for byte; another seed, another log.
func TestDeterminism(t *testing.T) {
	first := conversation(t, 1)
	require.Equal(t, first, conversation(t, 1))
	require.NotEqual(t, first, conversation(t, 2))
}

// TestDelay: late frames arrive, each as late as it may be, and others go past them.
func TestDelay(t *testing.T) {
	const longest = time.Millisecond
	n := mem.NewNetwork(mem.Options{Seed: 1, Manual: true, Faults: mem.Faults{Delay: 0.5, LongestDelay: longest}})
	a, b := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{})
	for i := range uint32(1000) {
		transmit(t, a, 0, b, i)
	}
	n.AdvanceTo(n.Now() + time.Microsecond)
	early := receive(b.Queues()[0])
	require.InDelta(t, 500, len(early), 80)
	require.EqualValues(t, 1000-len(early), n.Harmed())
	require.IsIncreasing(t, early)
	n.AdvanceTo(n.Now() + longest/2)
	some := receive(b.Queues()[0])
	require.InDelta(t, 250, len(some), 60)
	n.AdvanceTo(n.Now() + longest/2)
	all := slices.Concat(early, some, receive(b.Queues()[0]))
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 1000)
}

// TestBurst: what is sent in a burst is lost, all of it.
func TestBurst(t *testing.T) {
	const longest = 100 * time.Microsecond
	n := mem.NewNetwork(mem.Options{Seed: 1, Manual: true, Faults: mem.Faults{Burst: 0.001, LongestBurst: longest}})
	a, b := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{})
	var bursts, lost, last uint32
	for i := range uint32(20_000) {
		transmit(t, a, 0, b, i)
		n.AdvanceTo(n.Now() + time.Microsecond)
		for _, number := range receive(b.Queues()[0]) {
			if gap := number - last; gap > 1 {
				bursts, lost = bursts+1, lost+gap-1
			}
			last = number
		}
	}
	require.InDelta(t, 20, bursts, 10)
	require.InDelta(t, 50, lost/bursts, 25, "half of the longest, on average")
	require.GreaterOrEqual(t, n.Harmed(), uint64(lost))
}

// TestFaultRates: faults are about as frequent as asked for.
func TestFaultRates(t *testing.T) {
	const count = 20_000
	for name, c := range map[string]struct {
		faults              mem.Faults
		lost, doubled, late float64
	}{
		"none":      {},
		"drop":      {faults: mem.Faults{Drop: 0.05}, lost: 0.05},
		"duplicate": {faults: mem.Faults{Duplicate: 0.2}, doubled: 0.2},
		"reorder":   {faults: mem.Faults{Reorder: 0.1}, late: 0.1},
		"all lost":  {faults: mem.Faults{Drop: 1}, lost: 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := mem.NewNetwork(mem.Options{Seed: 3, Manual: true, Faults: c.faults})
			a, b := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{})
			seen := make(map[uint32]int)
			var late, highest float64
			for i := range uint32(count) {
				transmit(t, a, 0, b, i)
				n.AdvanceTo(n.Now() + time.Microsecond)
				for _, number := range receive(b.Queues()[0]) {
					if seen[number]++; seen[number] == 1 && float64(number) < highest {
						late++
					}
					highest = max(highest, float64(number))
				}
			}
			n.AdvanceTo(time.Hour)
			for _, number := range receive(b.Queues()[0]) {
				seen[number]++
			}
			var lost, doubled float64
			for i := range uint32(count) {
				switch seen[i] {
				case 0:
					lost++
				case 2:
					doubled++
				}
			}
			about := func(want, got float64, what string) {
				require.InDelta(t, want*count, got, 5*math.Sqrt(count*want*(1-want)), what)
			}
			about(c.doubled, doubled, "doubled")
			about(c.lost, lost, "lost")
			require.LessOrEqual(t, late, c.late*count*1.1)
			require.GreaterOrEqual(t, late, c.late*count*0.8)
		})
	}
}

// TestCorrupt: damage is one byte of a frame.
func TestCorrupt(t *testing.T) {
	const count, length, rate = 20_000, 200, 0.1
	n := mem.NewNetwork(mem.Options{Seed: 4, Faults: mem.Faults{Corrupt: rate}})
	a, b := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{})
	whole := make([]byte, length)
	mac := b.HardwareAddr()
	copy(whole, mac[:])
	var arrived, damaged int
	for range count {
		q := a.Queues()[0]
		copy(q.Buffer(), whole)
		q.Commit(length)
		q.Publish()
		err := q.Kick()
		require.NoError(t, err)
		var frames [2]link.Frame
		for _, f := range frames[:b.Queues()[0].Receive(frames[:])] {
			arrived++
			different := 0
			for i, c := range f.Segments[0] {
				if c != whole[i] {
					different++
				}
			}
			require.LessOrEqual(t, different, 1)
			require.Equal(t, length, f.Length())
			damaged += different
		}
		b.Queues()[0].Release()
	}
	lost := rate * count * 6 / length // damaged in the address
	require.InDelta(t, count-lost, arrived, 50)
	require.InDelta(t, rate*count-lost, damaged, 250)
}

// TestLatency: on a manual clock a frame arrives when its time has come, and never before.
func TestLatency(t *testing.T) {
	n := mem.NewNetwork(mem.Options{Manual: true, Latency: 5 * time.Microsecond, Intercept: func(frame []byte, packet *roce.Packet) mem.Verdict {
		if packet != nil {
			panic("no frame here is RoCE")
		}
		switch frame[15] {
		case 1:
			return mem.Verdict{Delay: time.Millisecond}
		case 2:
			return mem.Verdict{Drop: true}
		case 3:
			return mem.Verdict{Duplicate: true}
		}
		return mem.Verdict{}
	}})
	a, b := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{})
	start := n.Now()
	_, some := n.NextArrival()
	require.False(t, some)
	for i := range uint32(5) {
		transmit(t, a, 0, b, i)
	}
	at, some := n.NextArrival()
	require.True(t, some)
	require.Equal(t, start+5*time.Microsecond, at)
	n.AdvanceTo(at - 1)
	require.Empty(t, receive(b.Queues()[0]))
	n.AdvanceTo(at)
	require.Equal(t, []uint32{0, 3, 3, 4}, receive(b.Queues()[0]))
	at, _ = n.NextArrival()
	require.Equal(t, start+time.Millisecond+5*time.Microsecond, at)
	n.AdvanceTo(at)
	require.Equal(t, []uint32{1}, receive(b.Queues()[0]))
	n.AdvanceTo(0)
	require.Equal(t, at, n.Now(), "the clock never goes back")
}

// TestQueues: frames go to the queue of the sender's number; full queues drop and count.
func TestQueues(t *testing.T) {
	n := mem.NewNetwork(mem.Options{})
	a, b := device(t, n, mem.DeviceOptions{Queues: 4}), device(t, n, mem.DeviceOptions{Queues: 3, ReceiveFrames: 2})
	for i := range uint32(4) {
		transmit(t, a, int(i), b, i)
	}
	require.Equal(t, []uint32{0, 3}, receive(b.Queues()[0]))
	require.Equal(t, []uint32{1}, receive(b.Queues()[1]))
	require.Equal(t, []uint32{2}, receive(b.Queues()[2]))
	for i := range uint32(5) {
		transmit(t, a, 1, b, i)
	}
	require.Equal(t, uint64(3), b.Queues()[1].Counters().ReceiveDropped)
	require.Equal(t, []uint32{0, 1}, receive(b.Queues()[1]))
	require.Equal(t, uint64(3), b.Queues()[1].Counters().Received)
	require.Equal(t, uint64(6), a.Queues()[1].Counters().Transmitted)
	require.Equal(t, uint64(6), a.Queues()[1].Counters().Kicks)
}

// TestTransmitBuffers: a queue lends as many buffers as it has, the same one until it is committed.
func TestTransmitBuffers(t *testing.T) {
	n := mem.NewNetwork(mem.Options{})
	a := device(t, n, mem.DeviceOptions{TransmitFrames: 3})
	q := a.Queues()[0]
	for range 3 {
		b := q.Buffer()
		require.GreaterOrEqual(t, len(b), a.MaximumFrame())
		require.Same(t, &b[0], &q.Buffer()[0])
		q.Commit(20)
	}
	require.Nil(t, q.Buffer())
	require.False(t, q.Pending())
	q.Publish()
	require.True(t, q.Pending())
	require.Nil(t, q.Buffer())
	err := q.Kick()
	require.NoError(t, err)
	require.NotNil(t, q.Buffer())
}

// TestLentFrames: a frame stays what it is from Receive until Release, whatever else goes on.
func TestLentFrames(t *testing.T) {
	n := mem.NewNetwork(mem.Options{})
	a, b := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{ReceiveFrames: 8})
	var lent []link.Frame
	for i := range uint32(8) {
		transmit(t, a, 0, b, i)
		frames := make([]link.Frame, 4)
		require.Equal(t, 1, b.Queues()[0].Receive(frames))
		lent = append(lent, frames[0])
	}
	transmit(t, a, 0, b, 99)
	require.Zero(t, b.Queues()[0].Receive(make([]link.Frame, 4)), "all are lent")
	for i, f := range lent {
		require.Equal(t, 16, f.Length())
		require.Equal(t, uint32(i), binary.BigEndian.Uint32(f.Segments[0][12:]))
	}
	b.Queues()[0].Release()
	for _, f := range lent {
		require.Equal(t, bytes.Repeat([]byte{0xDB}, 16), f.Segments[0], "whoever keeps a frame is to be found out")
	}
	b.Queues()[0].Release() // gives back nothing more
	require.Equal(t, []uint32{99}, receive(b.Queues()[0]))
}

func TestAddresses(t *testing.T) {
	n := mem.NewNetwork(mem.Options{})
	a, b := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{MTU: 1500, Name: "b"})
	require.Equal(t, "mem1", a.Information().Name)
	require.Equal(t, "b", b.Information().Name)
	addresses, err := b.Addresses()
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}, addresses)
	for _, address := range addresses {
		neighbour, err := a.Resolve(context.Background(), netip.Addr{}, address)
		require.NoError(t, err)
		require.Equal(t, b.HardwareAddr(), neighbour.HardwareAddr)
	}
	_, err = a.Resolve(context.Background(), netip.Addr{}, netip.MustParseAddr("10.0.0.3"))
	require.ErrorIs(t, err, link.ErrNoNeighbour)
	mtu, err := b.MTU()
	require.NoError(t, err)
	require.Equal(t, 1500, mtu)
	require.Equal(t, 4608, b.MaximumFrame())
	_, err = n.NewDevice(mem.DeviceOptions{MAC: a.HardwareAddr()})
	require.ErrorContains(t, err, "in use")
}

// TestClosedDevice: frames to a device that is gone reach nobody.
func TestClosedDevice(t *testing.T) {
	n := mem.NewNetwork(mem.Options{})
	b, err := n.NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	a := device(t, n, mem.DeviceOptions{})
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	transmit(t, a, 0, b, 1)
	require.Empty(t, receive(b.Queues()[0]))
	// Their names and addresses are not given out again, so the next one does not clash with those that are left.
	c, d := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{})
	require.NotEqual(t, c.HardwareAddr(), d.HardwareAddr())
	transmit(t, d, 0, c, 2)
	require.Equal(t, []uint32{2}, receive(c.Queues()[0]))
}

// TestLive: any number of goroutines may use a live network at once.
func TestLive(t *testing.T) {
	n := mem.NewNetwork(mem.Options{Seed: 1, Faults: mem.Faults{Reorder: 0.1}})
	const devices, count = 4, 2000
	var all []*mem.Device
	for range devices {
		all = append(all, device(t, n, mem.DeviceOptions{ReceiveFrames: devices * count}))
	}
	var group sync.WaitGroup
	got := make([]int, devices)
	for i, d := range all {
		group.Go(func() {
			for k := range uint32(count) {
				transmit(t, d, 0, all[(i+1)%devices], k)
				got[i] += len(receive(d.Queues()[0]))
			}
			for deadline := time.Now().Add(10 * time.Second); got[i] < count-1 && time.Now().Before(deadline); runtime.Gosched() {
				got[i] += len(receive(d.Queues()[0]))
			}
		})
	}
	group.Wait()
	total := 0
	for _, n := range got {
		total += n
	}
	require.GreaterOrEqual(t, total, devices*count-1, "one may be held back, to be late")
}

// TestSpare: a packet is harmed so often and not more; another one has a count of its own.
func TestSpare(t *testing.T) {
	n := mem.NewNetwork(mem.Options{Seed: 5, Faults: mem.Faults{Drop: 1, Spare: 3}})
	a, b := device(t, n, mem.DeviceOptions{}), device(t, n, mem.DeviceOptions{})
	template := roce.NewHeaderTemplate(roce.Path{SourceMAC: a.HardwareAddr(), DestinationMAC: b.HardwareAddr()})
	arrives := func(opcode roce.Opcode, psn roce.PSN) bool {
		q := a.Queues()[0]
		start := template.Length()
		frame := q.Buffer()[:start+roce.BTHLength+opcode.Info().HeaderLength+roce.ICRCLength]
		clear(frame)
		template.Put(frame)
		roce.BTHFields{Opcode: opcode, PSN: psn, DestinationQPN: 5, PKey: 0xFFFF}.Put(frame[start:])
		template.Seal(frame)
		q.Commit(len(frame))
		q.Publish()
		require.NoError(t, q.Kick())
		return len(receive(b.Queues()[0])) == 1
	}
	for _, psn := range []roce.PSN{7, 8} {
		for _, opcode := range []roce.Opcode{roce.RCAcknowledge, roce.RCSendOnly} {
			for try := range 6 {
				require.Equal(t, try >= 3, arrives(opcode, psn), "%v, PSN %d, try %d", opcode, psn, try)
			}
		}
	}
	require.EqualValues(t, 12, n.Harmed())
}
