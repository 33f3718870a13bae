package xdp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/xsk"
)

// driver plays a driver: which of the ways to open a socket it has.
type driver struct {
	zeroCopy, zeroCopySegments bool // zero copy at all, and together with multi-buffer
	busy                       bool
	opened                     []xsk.Options
}

func (d *driver) open(o xsk.Options) (bool, error) {
	d.opened = append(d.opened, o)
	switch {
	case d.busy:
		return false, &xsk.Error{Step: "bind", Detail: "taken", Kind: xsk.ErrQueueBusy, Err: unix.EBUSY}
	case o.Mode == ZeroCopy && (!d.zeroCopy || o.MultiBuffer && !d.zeroCopySegments):
		return false, &xsk.Error{Step: "bind", Detail: "no zero copy", Kind: xsk.ErrNotSupported, Err: unix.EOPNOTSUPP}
	}
	return o.Mode != CopyOnly && d.zeroCopy && (!o.MultiBuffer || d.zeroCopySegments), nil
}

// What the first socket obtains, and that the second one gets the same, without veth's bound to copying.
func TestChoiceOfSockets(t *testing.T) {
	frags, none := error(nil), multiBufferObstacle(bpf.RungNative)
	const noZeroCopy = "zero copy: xsk: bind: no zero copy: operation not supported"
	given := "multi-buffer: " + errZeroCopy.Error()
	const rung = "multi-buffer: it needs an XDP program with frags, and the rung is native"
	const unwanted = "multi-buffer: not wanted"
	for _, c := range []struct {
		copyMode              CopyMode
		want                  MultiBuffer
		obstacle              error
		driver                driver
		zeroCopy, multiBuffer bool
		notTaken              []string
	}{
		{CopyAuto, MultiBufferAuto, frags, driver{}, false, true, []string{noZeroCopy}},
		{CopyAuto, MultiBufferAuto, none, driver{}, false, false, []string{noZeroCopy, rung}},
		{CopyAuto, MultiBufferAuto, frags, driver{zeroCopy: true, zeroCopySegments: true}, true, false, []string{given}},
		{CopyAuto, MultiBufferAuto, none, driver{zeroCopy: true}, true, false, []string{rung}},
		{CopyAuto, MultiBufferOn, frags, driver{zeroCopy: true, zeroCopySegments: true}, true, true, nil},
		{CopyAuto, MultiBufferOn, frags, driver{zeroCopy: true}, false, true, []string{noZeroCopy}},
		{CopyAuto, MultiBufferOff, frags, driver{zeroCopy: true}, true, false, []string{unwanted}},
		{CopyAuto, MultiBufferOff, frags, driver{}, false, false, []string{noZeroCopy, unwanted}},
		{CopyOnly, MultiBufferAuto, frags, driver{zeroCopy: true}, false, true, nil},
		{CopyOnly, MultiBufferAuto, none, driver{zeroCopy: true}, false, false, []string{rung}},
		{ZeroCopy, MultiBufferAuto, frags, driver{zeroCopy: true}, true, false, []string{given}},
		{ZeroCopy, MultiBufferOn, frags, driver{zeroCopy: true, zeroCopySegments: true}, true, true, nil},
	} {
		t.Run(fmt.Sprintf("%v, multi-buffer %v, %v, %+v", c.copyMode, c.want, c.obstacle, c.driver), func(t *testing.T) {
			s := sockets[bool]{
				options: Options{Copy: c.copyMode, MultiBuffer: c.want}, index: 7, obstacle: c.obstacle, open: c.driver.open,
			}
			for queue := range 2 {
				zeroCopy, err := s.next(queue)
				require.NoError(t, err)
				require.Equal(t, c.zeroCopy, zeroCopy, "queue %d", queue)
				last := c.driver.opened[len(c.driver.opened)-1]
				require.Equal(t, []any{7, queue, c.multiBuffer}, []any{last.Interface, last.Queue, last.MultiBuffer})
			}
			require.Equal(t, c.multiBuffer, s.multiBuffer)
			require.Equal(t, c.notTaken, s.notTaken)
		})
	}
}

// In generic mode a driver that would bind zero copy is not asked for it.
func TestGenericModeCopies(t *testing.T) {
	for _, rung := range []bpf.Rung{bpf.RungGenericFrags, bpf.RungGeneric} {
		driver := driver{zeroCopy: true, zeroCopySegments: true}
		s := sockets[bool]{obstacle: multiBufferObstacle(rung), copied: zeroCopyObstacle(rung), open: driver.open}
		for queue := range 2 {
			zeroCopy, err := s.next(queue)
			require.NoError(t, err)
			require.False(t, zeroCopy)
		}
		require.Len(t, driver.opened, 2)
		require.Equal(t, rung.Frags(), s.multiBuffer)
		require.Contains(t, s.notTaken, "zero copy: it needs an XDP program in native mode, and the rung is "+rung.String())

		s = sockets[bool]{options: Options{Copy: ZeroCopy}, copied: zeroCopyObstacle(rung), open: driver.open}
		_, err := s.next(0)
		require.ErrorIs(t, err, ErrNotSupported)
		require.ErrorContains(t, err, rung.String())
		require.Len(t, driver.opened, 2)
	}
	require.NoError(t, zeroCopyObstacle(bpf.RungNative))
	require.NoError(t, zeroCopyObstacle(bpf.RungNativeFrags))
}

func TestChoiceOfSocketsFails(t *testing.T) {
	for _, c := range []struct {
		options  Options
		obstacle error
		driver   driver
		kind     error
		attempts int
	}{
		{Options{MultiBuffer: MultiBufferOn}, multiBufferObstacle(bpf.RungGeneric), driver{}, ErrNotSupported, 0},
		{Options{Copy: ZeroCopy}, nil, driver{}, xsk.ErrNotSupported, 1},
		{Options{Copy: ZeroCopy, MultiBuffer: MultiBufferOn}, nil, driver{zeroCopy: true}, xsk.ErrNotSupported, 1},
		{Options{}, nil, driver{busy: true}, xsk.ErrQueueBusy, 1}, // and not a second time, with its wait
	} {
		s := sockets[bool]{options: c.options, obstacle: c.obstacle, open: c.driver.open}
		_, err := s.next(0)
		require.ErrorIs(t, err, c.kind)
		require.Len(t, c.driver.opened, c.attempts)
	}
}
