package verbs_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestCase_QueuesAdded: a network device gets queues while it is served, and a peer that uses as many sends there. What
// comes in at the new ones is lost, and the device says so: in the log once, with a number, and with each request that
// ends for it. A device that was opened anew serves all of them.
func TestCase_QueuesAdded(t *testing.T) {
	for _, mode := range []verbs.XDPMode{verbs.XDPNative, verbs.XDPGeneric} {
		t.Run(mode.String(), func(t *testing.T) { queuesAdded(t, mode) })
	}
}

func queuesAdded(t *testing.T, mode verbs.XDPMode) {
	netlab.RequireRoot(t)
	log := new(records)
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	pair, err := netlab.NewPair(netlab.PairOptions{Queues: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pair.Close()) })
	channels := func(receive, transmit int) {
		for _, e := range []*netlab.End{&pair.A, &pair.B} {
			require.NoError(t, e.SetChannels(receive, transmit))
		}
	}
	channels(4, 2)
	channels(2, 2)
	b, err := verbs.OpenDevice(t.Context(), pair.B.Name, opener.CheckOwners(verbs.Options{NetNS: pair.B.Namespace.Path(), Mode: mode}))
	require.NoError(t, err)
	require.Zero(t, b.Information().QueuesAdded)
	channels(4, 2)
	channels(4, 4)
	require.Eventually(t, func() bool { return b.Information().QueuesAdded == 2 }, 5*time.Second, time.Millisecond)
	require.Contains(t, b.Information().NotTaken, "2 receive queues: they were added (ethtool -L) after the device was opened, with 2")
	require.EqualValues(t, 2, look(t, b).Steering["queues_added"])
	a := openDevice(t, &pair.A, verbs.Options{Mode: mode})
	require.Len(t, look(t, a).Shards, 4)
	lost := exchangeOverAll(t, a, b)
	if mode == verbs.XDPNative {
		require.Len(t, lost, 2) // those whose answers come in at queues 2 and 3
		require.NotContains(t, look(t, b).Steering, "pass_no_socket", "no program is there that could count")
	}
	require.NotEmpty(t, lost)
	for _, explained := range lost {
		require.Contains(t, explained, pair.B.Name+" got 2 receive queues (ethtool -L) after it was opened, and packets that come in there are lost")
	}
	require.Equal(t, 1, strings.Count(log.String(), "network device got receive queues that are not served"), log)
	requireClose(t, b)

	b, err = verbs.OpenDevice(t.Context(), pair.B.Name, opener.CheckOwners(verbs.Options{NetNS: pair.B.Namespace.Path(), Mode: mode}))
	require.NoError(t, err)
	require.Zero(t, b.Information().QueuesAdded)
	require.Empty(t, exchangeOverAll(t, a, b))
	require.NotContains(t, look(t, b).Steering, "queues_added")
	requireClose(t, b)
}

// exchangeOverAll writes from b to a over queue pairs that are at home at each of four queues, and returns what b says
// of those that ended.
func exchangeOverAll(t *testing.T, a, b *verbs.Device) (lost []string) {
	t.Run("exchange", func(t *testing.T) {
		for label := range uint32(4) {
			ea, eb := newEnd(t, a, make([]byte, 64), verbs.QPCap{}), newEnd(t, b, make([]byte, 64), verbs.QPCap{})
			connect(t, ea, eb, verbs.ConnectOptions{FlowLabel: label + 1, Timeout: roce.AckTimeout(13), RetryCnt: new(uint8(3))})
			if wc := eb.do(t, write(eb, ea, 0)); wc.Status != verbs.WCSuccess {
				require.Equal(t, verbs.WCRetryExcErr, wc.Status)
				lost = append(lost, eb.qp.Explain(wc))
			}
		}
	})
	return lost
}
