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
