package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
)

// aWhile is how long a test gives what must not happen the time to happen.
const aWhile = 20 * time.Millisecond

func openInMemory(t *testing.T) *Device {
	t.Helper()
	l, err := mem.NewNetwork(mem.Options{}).NewDevice(mem.DeviceOptions{})
	require.NoError(t, err)
	d, err := newDevice(l, driver.Options{})
	require.NoError(t, err)
	return d
}

// TestCloseBesideDestroy: Close waits for a program that is in the middle of destroying something. What that has not
// given up yet would be in use, and Close would fail.
func TestCloseBesideDestroy(t *testing.T) {
	d := openInMemory(t)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	channel, err := d.CreateCompChannel()
	require.NoError(t, err)
	cq, err := d.CreateCQ(CQInitAttr{CQE: 1, Channel: channel})
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(SRQInitAttr{})
	require.NoError(t, err)
	qp, err := pd.CreateQP(QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq})
	require.NoError(t, err)

	pd.mu.Lock()
	destroyed, closed := make(chan error), make(chan error)
	go func() { destroyed <- qp.Destroy() }()
	require.Eventually(t, func() bool { // it has ended, and the domain still counts it
		d.belongings.mu.Lock()
		defer d.belongings.mu.Unlock()
		return len(d.belongings.objects[kindQP]) == 0
	}, 5*time.Second, time.Millisecond)
	go func() { closed <- d.Close() }()
	time.Sleep(aWhile)
	require.NoError(t, srq.driver.Over(), "Close has gone on")
	pd.mu.Unlock()
	require.NoError(t, <-destroyed)
	require.NoError(t, <-closed)
}

// TestCloseBesideCreateCQ: a CQ that is made while Close destroys all does not count at its channel.
func TestCloseBesideCreateCQ(t *testing.T) {
	d := openInMemory(t)
	channel, err := d.CreateCompChannel()
	require.NoError(t, err)
	d.belongings.life.Lock() // as Close does
	created := make(chan error)
	go func() {
		_, err := d.CreateCQ(CQInitAttr{CQE: 1, Channel: channel})
		created <- err
	}()
	time.Sleep(aWhile)
	err = d.belongings.destroy()
	d.belongings.life.Unlock()
	require.ErrorIs(t, <-created, ErrClosed) // the channel is gone
	require.NoError(t, err)
	require.NoError(t, d.Close())
}
