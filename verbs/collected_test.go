package verbs_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/roce/transport"
	"github.com/xroce/xroce/verbs"
)

// TestClosedDeviceIsCollected: what is closed is not kept, although its parts lead to one another and to what the
// program made.
func TestClosedDeviceIsCollected(t *testing.T) {
	collected := make(chan struct{})
	func() {
		network := mem.NewNetwork(mem.Options{Manual: true})
		l, err := network.NewDevice(mem.DeviceOptions{})
		require.NoError(t, err)
		var regions []*verbs.MR
		device, err := opener.Open[verbs.Device](l, driver.Options{Manual: true, Clock: func() transport.Time {
			return transport.Time(len(regions)) + 1 // so the device leads to its regions
		}})
		require.NoError(t, err)
		pd, err := device.AllocPD()
		require.NoError(t, err)
		mr, err := pd.RegMR(make([]byte, 4096), 0)
		require.NoError(t, err)
		require.NoError(t, mr.Rereg(verbs.MRChange{Buffer: make([]byte, 8192)}))
		fast, err := pd.AllocMR(4096)
		require.NoError(t, err)
		regions = append(regions, mr, fast)
		runtime.AddCleanup(mr, func(c chan struct{}) { close(c) }, collected)
		require.NoError(t, mr.Dereg())
		require.NoError(t, fast.Dereg())
		require.NoError(t, pd.Dealloc())
		requireClose(t, device)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-collected:
			return true
		default:
			return false
		}
	}, 5*time.Second, 10*time.Millisecond, "the closed device is kept")
}
