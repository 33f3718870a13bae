package verbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestConnectOptions: times are rounded up to what the attributes can say, what is out of range is refused before
// anything has changed, and 0 can be said where it is a choice.
func TestConnectOptions(t *testing.T) {
	a, b := pair(t, mem.Options{})
	again := func(o verbs.ConnectOptions) verbs.QPAttr {
		t.Helper()
		for _, e := range []*end{a, b} {
			require.NoError(t, e.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		}
		connect(t, a, b, o)
		return a.qp.Query()
	}
	for timeout, code := range map[time.Duration]uint8{
		0: 14, verbs.NoTimeout: 0, 1: 1, 8192 * time.Nanosecond: 1, 8193 * time.Nanosecond: 2, 67108864 * time.Nanosecond: 14,
		67108865 * time.Nanosecond: 15, time.Second: 18, time.Hour: 30, 2 * time.Hour: 31,
	} {
		require.Equal(t, code, again(verbs.ConnectOptions{Timeout: timeout}).Timeout, "%v", timeout)
	}
	for timer, code := range map[time.Duration]uint8{
		0: 12, 1: 1, 10 * time.Microsecond: 1, 11 * time.Microsecond: 2, 640 * time.Microsecond: 12, 641 * time.Microsecond: 13,
		491520 * time.Microsecond: 31, 491521 * time.Microsecond: 0, 655360 * time.Microsecond: 0,
	} {
		require.Equal(t, code, again(verbs.ConnectOptions{MinRNRTimer: timer}).MinRNRTimer, "%v", timer)
	}
	attr := again(verbs.ConnectOptions{})
	require.Equal(t, []uint8{7, 7, 16, 16}, []uint8{attr.RetryCnt, attr.RNRRetry, attr.MaxRDAtomic, attr.MaxDestRDAtomic})
	require.Equal(t, verbs.AccessRemoteRead|verbs.AccessRemoteWrite, attr.AccessFlags)
	attr = again(verbs.ConnectOptions{
		RetryCnt: new(uint8(0)), RNRRetry: new(uint8(0)), MaxRDAtomic: new(uint8(0)), AccessFlags: new(verbs.AccessFlags(0)),
		GIDIndex: new(0),
	})
	require.Equal(t, []uint8{0, 0, 0, 0}, []uint8{attr.RetryCnt, attr.RNRRetry, attr.MaxRDAtomic, attr.MaxDestRDAtomic})
	require.Zero(t, attr.AccessFlags)

	remote, err := b.qp.Endpoint(verbs.ConnectOptions{})
	require.NoError(t, err)
	for want, o := range map[string]verbs.ConnectOptions{
		"Timeout 3h0m0s, the longest is 2h26m36.": {Timeout: 3 * time.Hour},
		"MinRNRTimer 1s, want 0 to 655.36ms":      {MinRNRTimer: time.Second},
		"MinRNRTimer -1ns":                        {MinRNRTimer: -1},
	} {
		require.NoError(t, a.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
		_, err := a.qp.Endpoint(o)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, want)
		err = a.qp.Connect(t.Context(), remote, o)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, want)
		require.Equal(t, verbs.StateReset, a.qp.State())
	}
}
