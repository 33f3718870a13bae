package driver

// A client in another process shares memory with the engine: a memfd with its rings, its doorbells and, if it likes,
// its data. Life of its work: it posts in the memory and rings there; the client's attendant, a goroutine that sleeps
// on an eventfd while nothing is rung, takes the doorbells and drives the shards. Life of its notifications: who drives
// leaves them to the client's courier, a goroutine that writes to the eventfd of the CQ. So everything that such a
// client can hold up are these two goroutines.
//
// The memory cannot go away under the engine: it is sealed against shrinking, and pages that are punched out of it are
// zero again when they are touched. That is why the engine takes a descriptor and maps it itself. The descriptors that
// both hold share their flags, so the client can make a write of the courier block; a read of the attendant there is
// none of, since epoll tells of each write (EPOLLET).

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

// ForeignConfig describes a client in another process.
type ForeignConfig struct {
	Limits Limits
	// Doorbells is where in the memory the doorbells are, which the client has made (queue.CreateDoorbells): a multiple
	// of 8.
	Doorbells int
	// Spin is how long the attendant looks for doorbells before it sleeps. 0, the default, suits a machine without idle
	// CPUs: the next post after a pause then costs a system call.
	Spin time.Duration
}

// Foreign is a client in another process. Its methods may be called concurrently.
type Foreign struct {
	*Client
	memory    []byte
	spin      time.Duration
	doorbells *queue.Doorbells
	slots     [queue.DoorbellSlots]atomic.Pointer[QP]

	bell   int // the eventfd that the client writes to when it has rung and the engine sleeps
	stop   int // the eventfd that ends the attendant; nobody else has it
	poller int // the epoll of both

	ending   atomic.Bool
	attended sync.WaitGroup
	courier  courier
}

// AttachForeign makes a client of memory that another process has, too: a memfd that is sealed against shrinking and
// does not consist of huge pages. The file stays the caller's. The rest of what the client needs goes through the
// methods of the Client, with rings of Foreign.Ring.
func (d *Device) AttachForeign(file *os.File, c ForeignConfig) (*Foreign, error) {
	area, err := mapSealed(file)
	if err != nil {
		return nil, err
	}
	f := &Foreign{memory: area, spin: c.Spin, bell: -1, stop: -1, poller: -1}
	if err := f.open(d, c); err != nil {
		f.free()
		return nil, err
	}
	f.attended.Go(f.attend)
	go f.courier.run()
	return f, nil
}

// mapSealed maps a file that cannot become shorter.
func mapSealed(file *os.File) ([]byte, error) {
	var area []byte
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failure error
	err = raw.Control(func(fd uintptr) { area, failure = mapSealedFD(int(fd)) })
	return area, errors.Join(err, failure)
}

func mapSealedFD(fd int) ([]byte, error) {
	// Only memory files have seals; those of a program in user space (FUSE), which could let the engine wait, do not.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: the memory of a client is not a memfd: %w", ErrInvalid, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: the memory of a client is not sealed against shrinking (F_SEAL_SHRINK)", ErrInvalid)
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return nil, fmt.Errorf("memory of a client: %w", err)
	}
	if uint32(system.Type) == unix.HUGETLBFS_MAGIC {
		// A page that was punched out may not come back, for want of another one: SIGBUS.
		return nil, fmt.Errorf("%w: the memory of a client consists of huge pages (MFD_HUGETLB)", ErrNotSupported)
	}
	var status unix.Stat_t
	if err := unix.Fstat(fd, &status); err != nil {
		return nil, fmt.Errorf("memory of a client: %w", err)
	}
	if status.Size <= 0 || status.Size != int64(int(status.Size)) {
		return nil, fmt.Errorf("%w: the memory of a client has %d bytes", ErrInvalid, status.Size)
	}
	area, err := unix.Mmap(fd, 0, int(status.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("memory of a client: mmap: %w", err)
	}
	return area, nil
}

func (f *Foreign) open(d *Device, c ForeignConfig) (err error) {
	bells, err := f.part(c.Doorbells, queue.DoorbellSize)
	if err != nil {
		return err
	}
	if f.doorbells, err = queue.NewDoorbells(bells); err != nil {
		return err
	}
	for _, fd := range []*int{&f.bell, &f.stop} {
		if *fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
			return fmt.Errorf("eventfd: %w", err)
		}
	}
	if f.poller, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	for _, fd := range []int{f.bell, f.stop} {
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
		if err := unix.EpollCtl(f.poller, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
	}
	f.courier.init()
	f.Client, err = d.NewClient(ClientConfig{Limits: c.Limits})
	return err
}

// part is a part of the memory.
func (f *Foreign) part(offset, length int) ([]byte, error) {
	if offset < 0 || offset%8 != 0 || length < 0 || offset > len(f.memory) || length > len(f.memory)-offset {
		return nil, fmt.Errorf("%w: %d bytes from %d on are not within the client's memory of %d bytes,"+
			" or not aligned to 8", ErrInvalid, length, offset, len(f.memory))
	}
	return f.memory[offset : offset+length : offset+length], nil
}

// Ring is a ring that the client has made at an offset of its memory.
func (f *Foreign) Ring(offset int, l queue.Layout) (Ring, error) {
	part, err := f.part(offset, l.Size())
	return Ring{Memory: part}, err
}

// Register makes a part of the client's memory accessible; see Client.Register.
func (f *Foreign) Register(
	domain *memory.Domain, offset, length int, address uint64, access memory.Access,
) (*memory.Region, error) {
	if offset < 0 || length < 0 || offset > len(f.memory) || length > len(f.memory)-offset {
		return nil, fmt.Errorf("%w: %d bytes from %d on are not within the client's memory of %d bytes",
			ErrInvalid, length, offset, len(f.memory))
	}
	return f.Client.Register(domain, f.memory[offset:offset+length:offset+length], address, access)
}

// CreateQP makes a queue pair whose doorbell has a slot, which no other one of the client has. The rings of the
// configuration are those of Ring.
func (f *Foreign) CreateQP(c QPConfig, slot uint32) (*QP, error) {
	if slot >= queue.DoorbellSlots {
		return nil, fmt.Errorf("%w: doorbell %d, there are %d", ErrInvalid, slot, queue.DoorbellSlots)
	}
	c.closed = func() { f.slots[slot].Store(nil) }
	q, err := f.Client.CreateQP(c)
	if err != nil {
		return nil, err
	}
	if !f.slots[slot].CompareAndSwap(nil, q) {
		q.config.closed = nil
		return nil, errors.Join(fmt.Errorf("%w: doorbell %d of the client", ErrInUse, slot), q.Close())
	}
	return q, nil
}

// CreateCQ makes a completion queue. The file is the client's copy of the eventfd that notifications of it go to; the
// caller closes it.
func (f *Foreign) CreateCQ(c CQConfig) (*CQ, *os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("eventfd: %w", err)
	}
	letter := &letter{courier: &f.courier, fd: fd}
	file, err := share(fd, "completions")
	if err != nil {
		_ = unix.Close(fd)
		return nil, nil, err
	}
	c.Notifier = letter
	c.closed = letter.retire
	f.courier.add(letter)
	q, err := f.Client.CreateCQ(c)
	if err != nil {
		letter.retire()
		return nil, nil, errors.Join(err, file.Close())
	}
	return q, file, nil
}

// Bell is the client's copy of the eventfd that it writes to when it has rung and the engine sleeps; the caller closes
// it.
func (f *Foreign) Bell() (*os.File, error) { return share(f.bell, "doorbells") }

// share makes another descriptor of the same eventfd.
func share(fd int, name string) (*os.File, error) {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return os.NewFile(uintptr(other), name), nil
}

// Close ends the client and all that it has. The engine touches its memory no more.
func (f *Foreign) Close() error {
	if f.ending.Swap(true) {
		return fmt.Errorf("client: %w", ErrClosed)
	}
	eventfd{f.stop}.signal()
	f.attended.Wait()
	err := f.Client.Close()
	f.courier.end()
	if err != nil {
		return err // something may still be in use
	}
	f.free()
	return nil
}

// free gives the memory and the descriptors back.
func (f *Foreign) free() {
	for _, fd := range []int{f.poller, f.stop, f.bell} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	_ = unix.Munmap(f.memory)
}

// attend answers the doorbells until the client is closed.
func (f *Foreign) attend() {
	var idle time.Time // since when nothing is rung, if it spins
	for !f.ending.Load() {
		if f.answer() {
			idle = time.Time{}
			continue
		}
		if f.spin > 0 {
			if idle.IsZero() {
				idle = time.Now()
			}
			if time.Since(idle) < f.spin {
				yield()
				continue
			}
		}
		if f.doorbells.Sleep() {
			f.sleep()
			f.doorbells.Awake()
		}
		idle = time.Time{}
	}
}

// answer takes up to 64 doorbells and drives the shards where their queue pairs are at home.
func (f *Foreign) answer() bool {
	homes := uint64(0)
	any := f.doorbells.Take(func(slot uint32) {
		if q := f.slots[slot].Load(); q != nil {
			home := q.shard()
			home.ring(q)
			homes |= 1 << home.index
		}
	})
	for i, s := range f.device.shards {
		if homes&(1<<i) != 0 {
			s.drive(driveBriefly)
		}
	}
	return any
}

// sleep waits until somebody writes to one of the eventfds.
func (f *Foreign) sleep() {
	var events [2]unix.EpollEvent
	_, _ = unix.EpollWait(f.poller, events[:], -1)
}

// letter is the notification of a CQ.
type letter struct {
	courier *courier
	fd      int
	waiting atomic.Bool // in the courier's list
	retired atomic.Bool // the CQ is gone
}

// Notify implements Notifier.
func (l *letter) Notify() {
	if !l.waiting.Swap(true) {
		l.courier.take(l)
	}
}

func (l *letter) retire() {
	l.retired.Store(true)
	l.Notify() // the courier closes the descriptor
}

// courier delivers the notifications of a client. It alone uses the descriptors.
type courier struct {
	wake chan struct{}
	done chan struct{}

	mu    lockorder.Mutex[lockorder.Courier]
	list  []*letter // to deliver
	all   map[*letter]struct{}
	ended bool
}

const (
	// courierPatience is how long Close waits for a courier whose client makes it block all the time, which needs a
	// client that is alive and means harm. The goroutine ends when that client does.
	courierPatience = time.Second
	courierLook     = time.Millisecond // between two attempts to free it; not measured
)

func (c *courier) init() {
	c.wake, c.done = make(chan struct{}, 1), make(chan struct{})
	c.all = make(map[*letter]struct{})
}

func (c *courier) add(l *letter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[l] = struct{}{}
}

func (c *courier) take(l *letter) {
	c.mu.Lock()
	c.list = append(c.list, l)
	c.mu.Unlock()
	signal(c.wake)
}

func (c *courier) run() {
	defer close(c.done)
	var list []*letter
	for {
		<-c.wake
		c.mu.Lock()
		list, c.list = c.list, list[:0]
		ended := c.ended
		c.mu.Unlock()
		for _, l := range list {
			l.waiting.Store(false)
			if l.retired.Load() {
				c.discard(l)
			} else if !ended {
				eventfd{l.fd}.signal() // it may block
			}
		}
		if ended {
			return
		}
	}
}

// discard closes the descriptor of a CQ that is gone, once.
func (c *courier) discard(l *letter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.all[l]; known {
		delete(c.all, l)
		_ = unix.Close(l.fd)
	}
}

// end ends the courier, whose CQs are all gone.
func (c *courier) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	signal(c.wake)
	late := time.After(courierPatience)
	for {
		c.unblock()
		select {
		case <-c.done:
			c.finish()
			return
		case <-time.After(courierLook):
		case <-late:
			go func() {
				<-c.done
				c.finish()
			}()
			return
		}
	}
}

// unblock takes what is in the eventfds, so that a write that blocks goes on. It does not block itself, whatever the
// flags are.
func (c *courier) unblock() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.all {
		var count [8]byte
		_, _ = unix.Preadv2(l.fd, [][]byte{count[:]}, -1, unix.RWF_NOWAIT)
	}
}

// finish closes what is left.
func (c *courier) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.all {
		delete(c.all, l)
		_ = unix.Close(l.fd)
	}
}
