package doortest

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/ccompiler"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// program is the client in C.
func program(t *testing.T) string {
	t.Helper()
	return ccompiler.Build(t, filepath.Join("testdata", "client.c"), filepath.Join("..", "..", "roce", "queue"))
}

// start starts the program as the guest's, for so many rounds, and returns when the first one is over.
func (g *guest) start(
	t *testing.T, program string, rounds int,
) (process *exec.Cmd, out *bufio.Reader, complaints *strings.Builder) {
	t.Helper()
	var arguments []string
	for _, n := range []uint64{
		uint64(rounds), areaSize, bellsAt, uint64(g.slot), sendAt, sendWR, maxSGE, cqAt, cqe, dataAt, dataSize,
		uint64(g.key), g.peer.region.Address(), uint64(g.peer.region.Key()),
	} {
		arguments = append(arguments, fmt.Sprint(n))
	}
	process = exec.Command(program, arguments...)
	process.ExtraFiles = []*os.File{g.file, g.bell, g.told}
	complaints = new(strings.Builder)
	process.Stderr = complaints
	pipe, err := process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, process.Start())
	out = bufio.NewReader(pipe)
	line, err := out.ReadString('\n')
	if err != nil || line != "running\n" {
		_ = process.Wait()
		require.Fail(t, "the program ended", "%q %v: %s", line, err, complaints)
	}
	return process, out, complaints
}

// TestClientInC: a program in C, in a process of its own, writes and reads over veth with nothing but the rings, and
// sleeps on its eventfd.
func TestClientInC(t *testing.T) {
	c := program(t)
	a, b := vethDevices(t)
	g := newGuest(t, a, newTarget(t, b))
	process, out, complaints := g.start(t, c, 600)
	report, err := io.ReadAll(out)
	require.NoError(t, err)
	require.NoError(t, process.Wait(), "%s", complaints)
	t.Logf("%s", report)
	var rings, wakes, sleeps int
	_, err = fmt.Sscanf(string(report), "%d rings, %d woke the engine, %d sleeps", &rings, &wakes, &sleeps)
	require.NoError(t, err)
	require.Equal(t, 1200, rings)
	require.Greater(t, wakes, 100)
	require.Greater(t, sleeps, 100)
}

// TestKilledClient: a client that is killed in the middle of its work leaves the engine and its other clients well, and
// one more comes in its place.
func TestKilledClient(t *testing.T) {
	c := program(t)
	a, b := vethDevices(t)
	p := newTarget(t, b)
	other, out, complaints := newGuest(t, a, p).start(t, c, 400)
	for range 3 {
		g := newGuest(t, a, newTarget(t, b))
		killed, _, _ := g.start(t, c, 0)
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, killed.Process.Kill())
		require.ErrorContains(t, killed.Wait(), "killed")
		require.NoError(t, g.foreign.Close())
		require.Len(t, a.QPs(), 1)
	}
	_, err := io.ReadAll(out)
	require.NoError(t, err)
	require.NoError(t, other.Wait(), "%s", complaints)
}

// TestRingClients: four clients with rings of their own work at the same time; each gets its bytes.
func TestRingClients(t *testing.T) {
	t.Run("asleep", func(t *testing.T) { ringClients(t, 0) })
	t.Run("spinning", func(t *testing.T) { ringClients(t, 20*time.Microsecond) })
}

func ringClients(t *testing.T, spin time.Duration) {
	rounds := uint64(200)
	if testing.Short() {
		rounds = 30
	}
	a, b := devices(t, 2)
	var group sync.WaitGroup
	failures := make(chan error, 4)
	for i := range uint64(4) {
		c := newGuestOf(t, a, newTarget(t, b), driver.ForeignConfig{Doorbells: bellsAt, Spin: spin}).client(t)
		group.Go(func() {
			random := rand.New(rand.NewPCG(i, 1))
			for round := range rounds {
				if err := c.roundTrip(random, round); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}
}

// TestAttachRefused: memory that could go away under the engine, and rings that do not fit, are refused.
func TestAttachRefused(t *testing.T) {
	a, b := devices(t, 1)
	attach := func(file *os.File, at int) error {
		f, err := a.AttachForeign(file, driver.ForeignConfig{Doorbells: at})
		if err == nil {
			require.NoError(t, f.Close())
		}
		return err
	}
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	require.NoError(t, err)
	defer plain.Close()
	require.NoError(t, plain.Truncate(areaSize))
	require.ErrorIs(t, attach(plain, 0), driver.ErrInvalid)
	loose, area := newArea(t, areaSize, unix.F_SEAL_GROW)
	require.NoError(t, queue.CreateDoorbells(area))
	require.ErrorContains(t, attach(loose, 0), "F_SEAL_SHRINK")
	zero, err := os.Open("/dev/zero")
	require.NoError(t, err)
	defer zero.Close()
	require.ErrorIs(t, attach(zero, 0), driver.ErrInvalid)
	empty, _ := newArea(t, areaSize, unix.F_SEAL_SHRINK)
	require.ErrorIs(t, attach(empty, 0), queue.ErrLayout, "no doorbells were made")
	sealed, area := newArea(t, areaSize, unix.F_SEAL_SHRINK)
	require.NoError(t, queue.CreateDoorbells(area))
	require.NoError(t, attach(sealed, 0))
	for _, at := range []int{-8, 4, areaSize - 8, areaSize, math.MaxInt - 7} {
		require.ErrorIs(t, attach(sealed, at), driver.ErrInvalid, at)
	}
	if fd, err := unix.MemfdCreate("huge", unix.MFD_HUGETLB|unix.MFD_ALLOW_SEALING); err == nil {
		huge := os.NewFile(uintptr(fd), "huge")
		defer huge.Close()
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
		require.NoError(t, err)
		require.ErrorContains(t, attach(huge, 0), "huge pages")
	}

	g := newGuest(t, a, newTarget(t, b))
	require.ErrorContains(t, g.file.Truncate(0), "not permitted")
	for _, at := range []int{-8, 4, areaSize - 8, areaSize + 8} {
		_, err := g.foreign.Ring(at, sendLayout)
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
	_, err = g.foreign.Register(&g.domain, dataAt, dataSize+1, 0, 0)
	require.ErrorIs(t, err, driver.ErrInvalid)
	r, err := g.foreign.Ring(recvAt, recvLayout)
	require.NoError(t, err)
	_, _, err = g.foreign.CreateCQ(driver.CQConfig{Capacity: 1, Ring: r})
	require.ErrorIs(t, err, queue.ErrLayout)
	config := g.qp.Config()
	require.NoError(t, config.MakeRings())
	_, err = g.foreign.CreateQP(config, g.slot)
	require.ErrorIs(t, err, driver.ErrInUse)
	_, err = g.foreign.CreateQP(config, queue.DoorbellSlots)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.Len(t, a.QPs(), 1)
	c := g.client(t)
	require.NoError(t, c.roundTrip(rand.New(rand.NewPCG(1, 1)), 1), "the slot is still that of the first one")
	require.NoError(t, g.qp.Close())
	q, err := g.foreign.CreateQP(config, g.slot)
	require.NoError(t, err, "the slot is free again")
	require.NoError(t, q.Close())
}

// TestReplaceForeign: a client in shared memory gets a larger CQ, with what is inside and its request for a
// notification.
func TestReplaceForeign(t *testing.T) {
	a, b := devices(t, 1)
	g := newGuest(t, a, newTarget(t, b))
	c := g.client(t)
	random := rand.New(rand.NewPCG(1, 4))
	require.NoError(t, c.roundTrip(random, 0))
	wr := queue.SendWR{WRID: 50, Opcode: queue.RDMAWrite, Flags: queue.SendSignaled, RKey: g.peer.region.Key()}
	require.NoError(t, c.send.PostSend(&wr, queue.SendLimits{MaxSGE: maxSGE}, nil))
	c.ring()
	require.Eventually(t, func() bool { return c.done.Available(0) == 1 }, 10*time.Second, time.Millisecond)
	c.done.Arm(false)

	const at = cqAt + 16384
	layout := queue.CompletionLayout(2 * cqe)
	require.NoError(t, queue.Create(g.area[at:], layout))
	ring, err := g.foreign.Ring(at, layout)
	require.NoError(t, err)
	released := 0
	ring.Release = func() { released++ }
	require.NoError(t, g.cq.Replace(ring, 2*cqe))
	c.done, err = queue.NewConsumer(g.area[at:], layout)
	require.NoError(t, err)
	require.NoError(t, c.send.PostSend(&wr, queue.SendLimits{MaxSGE: maxSGE}, nil))
	c.ring()
	_ = c.told.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err = c.told.Read(make([]byte, 8))
	require.NoError(t, err, "the request went over")
	var wcs [2]queue.WC
	require.Equal(t, 2, c.done.ReadCompletions(wcs[:]))
	for i := range uint64(20) {
		require.NoError(t, c.roundTrip(random, i))
	}
	require.Zero(t, released)
	require.NoError(t, g.foreign.Close())
	require.Equal(t, 1, released)
}

// TestEventfdOfHostile: the client shares the flags of its eventfds with the engine. It makes a notification block, and
// rings without end; others are not held up, and its end comes all the same.
func TestEventfdOfHostile(t *testing.T) {
	a, b := devices(t, 1)
	p := newTarget(t, b)
	hostile, honest := newGuest(t, a, newTarget(t, b)).client(t), newGuest(t, a, p).client(t)
	random := rand.New(rand.NewPCG(1, 2))
	require.NoError(t, hostile.roundTrip(random, 0))
	raw := func(file *os.File, f func(fd int)) {
		conn, err := file.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, conn.Control(func(fd uintptr) { f(int(fd)) }))
	}
	// Full, and blocking.
	raw(hostile.told, func(fd int) {
		full := []byte{0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
		n, err := unix.Write(fd, full)
		require.NoError(t, err)
		require.Equal(t, 8, n)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
		require.NoError(t, err)
	})
	raw(hostile.bell, func(fd int) {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
		require.NoError(t, err)
	})
	for i := range uint64(20) {
		hostile.done.Arm(false)
		wr := queue.SendWR{Opcode: queue.RDMAWrite, Flags: queue.SendSignaled, RKey: hostile.peer.region.Key()}
		_ = hostile.send.PostSend(&wr, queue.SendLimits{MaxSGE: maxSGE}, nil)
		hostile.bells.Ring(hostile.slot)
		raw(hostile.bell, func(fd int) { _, _ = unix.Write(fd, []byte{0: 1, 7: 0}) })
		require.NoError(t, honest.roundTrip(random, i))
	}
	start := time.Now()
	require.NoError(t, hostile.foreign.Close())
	require.Less(t, time.Since(start), 900*time.Millisecond, "the courier was freed")
	require.NoError(t, honest.roundTrip(random, 99))
	require.ErrorIs(t, hostile.foreign.Close(), driver.ErrClosed)
}

// TestCloseBesideHostile: a client that is alive and fills its eventfd again and again cannot hold up its end for long.
func TestCloseBesideHostile(t *testing.T) {
	a, b := devices(t, 1)
	g := newGuest(t, a, newTarget(t, b))
	c := g.client(t)
	require.NoError(t, c.roundTrip(rand.New(rand.NewPCG(1, 3)), 0))
	stop := make(chan struct{})
	var filler sync.WaitGroup
	fd := int(g.told.Fd())
	filler.Go(func() {
		full := []byte{0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK)
			_, _ = unix.Write(fd, full)
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
		}
	})
	for range 50 {
		c.done.Arm(false)
		wr := queue.SendWR{Opcode: queue.RDMAWrite, Flags: queue.SendSignaled, RKey: g.peer.region.Key()}
		_ = c.send.PostSend(&wr, queue.SendLimits{MaxSGE: maxSGE}, nil)
		c.ring()
	}
	start := time.Now()
	require.NoError(t, g.foreign.Close())
	require.Less(t, time.Since(start), 5*time.Second)
	close(stop)
	filler.Wait()
}

// scribbler writes nonsense into the memory of a guest, and does to its descriptors what can be done.
type scribbler struct {
	*guest
	random *rand.Rand
}

func (s *scribbler) step() {
	wild := func() byte { return byte(s.random.Uint32()) }
	word := func(at int) {
		for i := range 4 {
			s.area[at+i] = wild()
		}
	}
	switch s.random.IntN(12) {
	case 0: // indices
		word([]int{sendAt, sendAt + 64, recvAt, recvAt + 64, cqAt, cqAt + 64}[s.random.IntN(6)])
	case 1: // the arm word
		s.area[cqAt+128] = byte(s.random.IntN(4))
	case 2: // the head of a ring
		word([]int{sendAt, recvAt, cqAt}[s.random.IntN(3)] + 4*s.random.IntN(64))
	case 3: // doorbells
		word(bellsAt + 4*s.random.IntN(queue.DoorbellSize/4))
	case 4: // all of them
		for i := 128; i < queue.DoorbellSize; i++ {
			s.area[bellsAt+i] = 0xFF
		}
	case 5: // requests
		for i := range 2 * sendLayout.Stride {
			s.area[sendAt+256+i] = wild()
		}
	case 6: // requests that are nearly right
		at := sendAt + 256 + sendLayout.Stride*s.random.IntN(sendWR)
		s.area[at+8] = byte(s.random.IntN(16))
		s.area[at+9] = byte(s.random.IntN(16))
		s.area[at+10] = byte(s.random.IntN(4))
		s.area[sendAt]++
	case 7:
		word(recvAt + 256 + 4*s.random.IntN(recvWR*recvLayout.Stride/4))
	case 8: // holes, in the rings and anywhere
		at := int64(4096 * s.random.IntN(areaSize/4096))
		_ = unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, 4096)
	case 9:
		_ = unix.Ftruncate(int(s.file.Fd()), int64(s.random.IntN(areaSize)))
	case 10: // the flags of the eventfds, and their counters
		fd := []*os.File{s.bell, s.told}[s.random.IntN(2)].Fd()
		_, _ = unix.FcntlInt(fd, unix.F_SETFL, unix.O_NONBLOCK*s.random.IntN(2))
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err == nil && flags&unix.O_NONBLOCK != 0 {
			_, _ = unix.Write(int(fd), []byte{wild(), wild(), wild(), wild(), wild(), wild(), wild(), 0xFF})
		}
	default: // rings as it should, so that the nonsense is read
		bells, err := queue.NewDoorbells(s.area[bellsAt:])
		if err != nil {
			_ = queue.CreateDoorbells(s.area[bellsAt:])
			return
		}
		bells.Ring([]uint32{s.slot, s.random.Uint32N(queue.DoorbellSlots)}[s.random.IntN(2)])
		fd := s.bell.Fd()
		_, _ = unix.FcntlInt(fd, unix.F_SETFL, unix.O_NONBLOCK)
		_, _ = unix.Read(int(fd), make([]byte, 8))
		_, _ = unix.Write(int(fd), []byte{0: 1, 7: 0})
	}
}

// TestHostileRings: whatever a client writes into what it shares with the engine, and does to it, harms only its own
// queue pair. An honest client works beside it, and gets its bytes.
func TestHostileRings(t *testing.T) {
	length := 4 * time.Second
	if testing.Short() {
		length = time.Second
	}
	a, b := devices(t, 2)
	honest := newGuest(t, a, newTarget(t, b)).client(t)
	stop := make(chan struct{})
	var others sync.WaitGroup
	var failure error
	rounds := uint64(0)
	others.Go(func() {
		for random := rand.New(rand.NewPCG(7, 8)); failure == nil; rounds++ {
			select {
			case <-stop:
				return
			default:
				failure = honest.roundTrip(random, rounds)
			}
		}
	})
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 6))
	steps, lives, clients := 0, 0, 0
	for end := time.Now().Add(length); time.Now().Before(end); clients++ {
		s := &scribbler{guest: newGuest(t, a, newTarget(t, b)), random: random}
		for ; time.Now().Before(end) && s.cq.Over() == nil; lives++ {
			for s.qp.State() == transport.StateRTS && time.Now().Before(end) {
				s.step()
				if steps++; steps%16 == 0 {
					runtime.Gosched()
				}
			}
			s.connect(t)
		}
		require.NoError(t, s.foreign.Close())
	}
	close(stop)
	others.Wait()
	require.NoError(t, failure)
	t.Logf("%d rounds beside %d steps in %d lives of %d clients", rounds, steps, lives, clients)
	require.Greater(t, rounds, uint64(10))
	require.Greater(t, lives, 10)
	require.Len(t, a.QPs(), 1)
}

// FuzzHostileRings is TestHostileRings with a life for each input: first the bytes are written, each word of 6 of them
// at the place in the rings that it names itself, then so many steps are made.
func FuzzHostileRings(f *testing.F) {
	f.Add([]byte("\x00\x10\xFF\xFF\xFF\xFF\x40\x10\x00\x00\x00\x80"), uint64(1), uint8(10))
	f.Add([]byte("\x08\x11\x04\x02\x02\x00"), uint64(2), uint8(200))
	f.Fuzz(func(t *testing.T, writes []byte, seed uint64, steps uint8) {
		a, b := devices(t, 1)
		honest := newGuest(t, a, newTarget(t, b)).client(t)
		s := &scribbler{guest: newGuest(t, a, newTarget(t, b)), random: rand.New(rand.NewPCG(seed, 9))}
		own := s.client(t)
		for ; len(writes) >= 6; writes = writes[6:] {
			at := (int(writes[0]) | int(writes[1])<<8) % (dataAt - 4)
			copy(s.area[at:], writes[2:6])
			own.ring()
		}
		for range steps {
			s.step()
		}
		require.NoError(t, honest.roundTrip(s.random, 1))
		require.NoError(t, s.foreign.Close())
		require.NoError(t, honest.roundTrip(s.random, 2))
	})
}
