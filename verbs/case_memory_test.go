package verbs_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

const (
	guard    = 64 // bytes on both sides of a target that must stay as they are
	patience = 20 * time.Second
	tick     = 100 * time.Microsecond
)

// guarded is a buffer with guard bytes around what is to be written.
type guarded []byte

// newGuarded fills the whole of a buffer with what the guards hold.
func newGuarded(all []byte) guarded {
	for i := range all {
		all[i] = 0xA5
	}
	return all
}

func (g guarded) inside() []byte { return g[guard : len(g)-guard] }

func (g guarded) requireIntact(t *testing.T) {
	t.Helper()
	for i := range guard {
		require.Equal(t, byte(0xA5), g[i], "byte %d before the target", guard-i)
		require.Equal(t, byte(0xA5), g[len(g)-1-i], "byte %d behind the target", guard-i)
	}
}

// straddling is memory in the middle of which one mapping ends and another begins.
func straddling(t *testing.T, size int) []byte {
	t.Helper()
	page := os.Getpagesize()
	pages := (size + page - 1) / page
	b, err := unix.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	// The kernel splits a mapping where the advice changes: what follows the middle page is a mapping of its own.
	require.NoError(t, unix.Madvise(b[pages/2*page:], unix.MADV_DONTFORK))
	return b[:size]
}

// TestCase_C5: regions that begin and end anywhere, on whatever pages: each byte comes to its place and no other.
func TestCase_C5(t *testing.T) {
	page := os.Getpagesize()
	aligned := func(t *testing.T, size int) []byte {
		b, err := verbs.AllocBuffer(size)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, verbs.FreeBuffer(b)) })
		return b
	}
	const huge = 2 << 20
	for name, c := range map[string]struct {
		buffer      func(t *testing.T, size int) []byte
		size        int // of the memory
		from, bytes int // of the region
	}{
		"page+0x10 across 3 pages": {aligned, 4 * page, page + 0x10, 2*page + 100},
		"odd":                      {aligned, 4 * page, page + 1, 2*page - 1},
		"last byte of a page":      {aligned, 3 * page, page - 1, page + 2},
		"huge pages":               {aligned, 2 * huge, huge - 0x10, 0x10 + page},
		"heap":                     {func(_ *testing.T, size int) []byte { return make([]byte, size) }, 3 * page, 0x11, 2 * page},
		"two mappings":             {straddling, 4 * page, page + 0x10, 2*page + 33},
	} {
		for _, iova := range []uint64{0, 0x1000, 0x7FFF_F001} { // 0 stands for the virtual address
			t.Run(name, func(t *testing.T) {
				da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{MTU: 1500})
				source := c.buffer(t, c.size)
				random := rand.NewChaCha8([32]byte{1})
				_, _ = random.Read(source)
				target, back := newGuarded(c.buffer(t, c.size)), newGuarded(make([]byte, c.bytes+2*guard))
				a := newEnd(t, da, source[c.from:c.from+c.bytes], verbs.QPCap{})
				b := newEnd(t, db, target[c.from:c.from+c.bytes], verbs.QPCap{})
				backMR, err := a.pd.RegMR(back, verbs.AccessLocalWrite)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, backMR.Dereg()) })
				if iova != 0 {
					for _, e := range []*end{a, b} {
						require.NoError(t, e.mr.Rereg(verbs.MRChange{Buffer: e.mr.Bytes(), IOVA: &iova}))
						require.Equal(t, iova, e.mr.Addr())
					}
				}
				connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout})
				transfer := func(opcode verbs.WROpcode, local verbs.SGE, remote uint64) verbs.WCStatus {
					return a.do(t, verbs.SendWR{Opcode: opcode, SGList: []verbs.SGE{local}, RemoteAddr: remote, RKey: b.mr.RKey()}).Status
				}
				require.Equal(t, verbs.WCSuccess, transfer(verbs.WRRDMAWrite, a.mr.SGE(0, c.bytes), b.mr.Addr()))
				require.True(t, bytes.Equal(a.mr.Bytes(), b.mr.Bytes()))
				require.Equal(t, bytes.Repeat([]byte{0xA5}, c.from), []byte(target[:c.from]))
				require.Equal(t, bytes.Repeat([]byte{0xA5}, c.size-c.from-c.bytes), []byte(target[c.from+c.bytes:]))
				require.Equal(t, verbs.WCSuccess, transfer(verbs.WRRDMARead, backMR.SGE(guard, c.bytes), b.mr.Addr()))
				require.True(t, bytes.Equal(a.mr.Bytes(), back.inside()))
				back.requireIntact(t)
				// One byte at each edge, and one beyond.
				last := uint64(c.bytes - 1)
				for _, at := range []uint64{0, last} {
					require.Equal(t, verbs.WCSuccess, transfer(verbs.WRRDMAWrite, a.mr.SGE(int(last-at), 1), b.mr.Addr()+at))
					require.Equal(t, a.mr.Bytes()[last-at], b.mr.Bytes()[at])
				}
				require.Equal(t, verbs.WCRemAccessErr, transfer(verbs.WRRDMAWrite, a.mr.SGE(0, 1), b.mr.Addr()+last+1))
				support.Object(t, "MR", "memory: "+name+", by virtual address and by iova", verbs.WCSuccess)
				support.Object(t, "MR", "memory: "+name+", one byte beyond", verbs.WCRemAccessErr)
				require.Equal(t, bytes.Repeat([]byte{0xA5}, c.size-c.from-c.bytes), []byte(target[c.from+c.bytes:]))
			})
		}
	}
}

// TestCase_C8: the largest message is what the port says, exactly.
func TestCase_C8(t *testing.T) {
	da, db := memDevices(t, mem.Options{}, mem.DeviceOptions{})
	port, err := da.QueryPort()
	require.NoError(t, err)
	require.EqualValues(t, 1<<31, port.MaxMsgSize)
	require.EqualValues(t, verbs.MaxMsgSize, port.MaxMsgSize)

	message := size(4<<20, 1<<30)
	source, target := make([]byte, message), newGuarded(make([]byte, message+2*guard))
	_, _ = rand.NewChaCha8([32]byte{8}).Read(source)
	a := newEnd(t, da, source, verbs.QPCap{MaxSendSGE: verbs.MaxSGE})
	b := newEnd(t, db, target, verbs.QPCap{MaxRecvSGE: verbs.MaxSGE})
	connect(t, a, b, verbs.ConnectOptions{Timeout: roce.AckTimeout(18)})
	remote := verbs.SendWR{Opcode: verbs.WRRDMAWrite, RemoteAddr: b.mr.Addr() + guard, RKey: b.mr.RKey(), SGList: []verbs.SGE{a.mr.SGE(0, message)}}
	require.Equal(t, verbs.WCSuccess, a.doWithin(t, remote, 10*time.Minute).Status)
	require.True(t, bytes.Equal(source, target.inside()))
	clear(source)
	remote.Opcode = verbs.WRRDMARead
	wc := a.doWithin(t, remote, 10*time.Minute)
	require.Equal(t, verbs.WCSuccess, wc.Status)
	require.EqualValues(t, message, wc.ByteLen)
	require.True(t, bytes.Equal(source, target.inside()))
	target.requireIntact(t)

	// 2^31 + 1 bytes are refused, in whatever list and operation, and 2^31 are not.
	for _, opcode := range []verbs.WROpcode{
		verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRSend, verbs.WRSendWithImm, verbs.WRSendWithInv, verbs.WRRDMARead,
	} {
		for _, list := range [][]verbs.SGE{
			{{Length: 1<<31 + 1}}, {{Length: 1 << 31}, {Length: 1}}, {{Length: 1<<32 - 1}, {Length: 1<<32 - 1}, {Length: 3}},
		} {
			err := a.qp.PostSend(verbs.SendWR{Opcode: opcode, SGList: list})
			require.ErrorIs(t, err, verbs.ErrMessageTooLong)
			require.ErrorContains(t, err, "2147483648")
			support.Limit(t, "bytes of a message", verbs.ErrMessageTooLong)
		}
	}
	require.ErrorIs(t, b.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{{Length: 1 << 31}, {Length: 1}}}), verbs.ErrMessageTooLong)
	// 2^31 bytes that are the same 64 MiB 32 times: refused by the peer, whose region is smaller, and not by the post.
	const piece = (1 << 31) / verbs.MaxSGE
	large, err := verbs.AllocBuffer(piece)
	require.NoError(t, err)
	mr, err := a.pd.RegMR(large, allAccess)
	require.NoError(t, err)
	defer func() {
		require.NoError(t, mr.Dereg())
		require.NoError(t, verbs.FreeBuffer(large))
	}()
	list := make([]verbs.SGE, verbs.MaxSGE)
	for i := range list {
		list[i] = mr.SGE(0, piece)
	}
	if *fullSize { // all of them, from pages of zeros that take no memory
		zeros, err := unix.Mmap(-1, 0, 1<<31, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		require.NoError(t, err)
		from, err := b.pd.RegMR(zeros, verbs.AccessRemoteRead)
		require.NoError(t, err)
		large[piece-1] = 1
		wc := a.doWithin(t, verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: list, RemoteAddr: from.Addr(), RKey: from.RKey()}, 10*time.Minute)
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.EqualValues(t, 1<<31, wc.ByteLen)
		require.Zero(t, large[piece-1])
		require.NoError(t, from.Dereg())
		require.NoError(t, unix.Munmap(zeros))
	}
	before := target[guard]
	require.Equal(t, verbs.WCRemAccessErr, a.do(t, verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: list, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}).Status)
	require.Equal(t, before, target[guard])
	target.requireIntact(t)
	support.Object(t, "MR", "message larger than the peer's region", verbs.WCRemAccessErr)
}

// doWithin is do for a request that takes long.
func (e *end) doWithin(t *testing.T, wr verbs.SendWR, limit time.Duration) verbs.WC {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	require.NoError(t, e.qp.PostSend(wr))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	require.NoError(t, e.sends.Wait(ctx))
	return poll(t, e.sends)
}

// records keeps what is logged.
type records struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// TestCase_C10: a registered buffer stays, though the program has dropped its last reference; a region that was dropped
// without Dereg is told of in the log, one that was deregistered is not.
func TestCase_C10(t *testing.T) {
	log := new(records)
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	keepsBuffer(t, log)
	warnsOfDropped(t, log)
}

// keepsBuffer: a registered buffer to which no other reference is left stays until Dereg.
func keepsBuffer(t *testing.T, log *records) {
	const size, writes = 32 << 10, 30
	a, b := pair(t, mem.Options{})
	freed := make(chan struct{})
	isFreed := func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	}
	register := func() (remote verbs.RemoteMemory, mr *verbs.MR) {
		buffer := new([size]byte)
		runtime.AddCleanup(buffer, func(c chan struct{}) { close(c) }, freed)
		mr, err := b.pd.RegMR(buffer[:], allAccess)
		require.NoError(t, err)
		return mr.Remote(), mr
	}
	remote, mr := register()
	var junk [][]byte
	for i := range writes {
		require.Equal(t, verbs.WCSuccess, a.do(t, verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: remote.Addr + uint64(i*8), RKey: remote.RKey,
		}).Status)
		a.mr.Bytes()[0] = byte(i + 1)
		runtime.GC()
		junk = append(junk, bytes.Repeat([]byte{0xEE}, size)) // takes the buffer's place if it is free
	}
	require.Equal(t, verbs.WCSuccess, a.do(t, verbs.SendWR{
		Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(8, 8*writes)}, RemoteAddr: remote.Addr, RKey: remote.RKey,
	}).Status)
	for i := range writes {
		require.Equal(t, byte(i), a.mr.Bytes()[8+8*i])
	}
	require.False(t, isFreed(), "the buffer is gone")
	runtime.KeepAlive(junk)
	require.NoError(t, mr.Dereg())
	mr = nil
	require.Eventually(t, isFreed, 5*time.Second, 10*time.Millisecond, "the buffer is kept after Dereg")
	require.NotContains(t, log.String(), "Dereg")
	support.Object(t, "MR", "buffer to which no other reference is left", "stays until Dereg")
}

// warnsOfDropped: the log has a warning of each region that was dropped without Dereg.
func warnsOfDropped(t *testing.T, log *records) {
	// A device that cannot be closed in the end, since something on it leaks: one without goroutine and descriptor.
	l, err := mem.NewNetwork(mem.Options{Manual: true}).NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	leaky, err := opener.Open[verbs.Device](l, driver.Options{Manual: true})
	require.NoError(t, err)
	pd, err := leaky.AllocPD()
	require.NoError(t, err)
	var keys [2]uint32
	func() {
		dropped, err := pd.RegMR(make([]byte, 12345), 0)
		require.NoError(t, err)
		fast, err := pd.AllocMR(54321)
		require.NoError(t, err)
		window, err := pd.AllocMW(verbs.MWType1)
		require.NoError(t, err)
		require.NoError(t, window.Dealloc())
		keys = [2]uint32{dropped.LKey(), fast.LKey()}
	}()
	require.NotZero(t, keys)
	require.Eventually(t, func() bool {
		runtime.GC()
		text := log.String()
		return strings.Contains(text, "bytes=12345") && strings.Contains(text, "bytes=54321")
	}, 5*time.Second, 10*time.Millisecond, "no warning: %s", log)
	require.Equal(t, 2, strings.Count(log.String(), "without Dereg"), "%s", log)
	require.Contains(t, log.String(), "level=WARN")
	require.Contains(t, log.String(), "device="+leaky.Name())
	require.ErrorIs(t, pd.Dealloc(), verbs.ErrInUse) // they are registered still
	require.NoError(t, leaky.Close())                // which ends them
	support.Object(t, "MR", "dropped without Dereg", "a warning in the log")
}

// TestCase_C11: nothing is locked into memory for a region, so the limit does not matter; what the limit forbids of the
// device's own buffers is told with its name and its value.
func TestCase_C11(t *testing.T) {
	limit := func(t *testing.T, bytes uint64) {
		var old unix.Rlimit
		require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: old.Max}))
		t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)) })
	}
	t.Run("region", func(t *testing.T) {
		a, b := pair(t, mem.Options{})
		limit(t, 64<<10)
		buffer, err := verbs.AllocBuffer(100 << 20)
		require.NoError(t, err)
		mr, err := b.pd.RegMR(buffer, allAccess)
		require.NoError(t, err)
		a.mr.Bytes()[0] = 7
		require.Equal(t, verbs.WCSuccess, a.do(t, verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: mr.Addr() + 100<<20 - 8, RKey: mr.RKey(),
		}).Status)
		require.EqualValues(t, 7, buffer[100<<20-8])
		support.Object(t, "MR", "of 100 MiB, with RLIMIT_MEMLOCK 64 KiB", verbs.WCSuccess)
		require.NoError(t, mr.Dereg())
		require.NoError(t, verbs.FreeBuffer(buffer))
	})
	t.Run("device", func(t *testing.T) {
		netlab.RequireRoot(t)
		p, err := netlab.NewPair(netlab.PairOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		limit(t, 64<<10)
		d, err := verbs.OpenDevice(t.Context(), p.A.Name, verbs.Options{NetNS: p.A.Namespace.Path()})
		if err != nil { // without CAP_IPC_LOCK
			require.ErrorContains(t, err, "RLIMIT_MEMLOCK")
			require.ErrorContains(t, err, "65536")
			return
		}
		require.NoError(t, d.Close())
	})
}

// TestReregLetsTheBufferGo: a buffer that Rereg has replaced is nobody's any more, though the region lives on.
func TestReregLetsTheBufferGo(t *testing.T) {
	const buffers = 4
	a, _ := pair(t, mem.Options{})
	var freed atomic.Int32
	for range buffers + 1 { // the last one stays
		buffer := new([32 << 10]byte)
		runtime.AddCleanup(buffer, func(n *atomic.Int32) { n.Add(1) }, &freed)
		require.NoError(t, a.mr.Rereg(verbs.MRChange{Buffer: buffer[:]}))
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		return freed.Load() == buffers
	}, 5*time.Second, 10*time.Millisecond, "replaced buffers are kept")
	require.Len(t, a.mr.Bytes(), 32<<10)
}
