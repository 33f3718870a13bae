package transport

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce"
)

// TestCountersAddAll: every field has a name, and Add adds every one.
func TestCountersAddAll(t *testing.T) {
	var one, sum Counters
	v := reflect.ValueOf(&one).Elem()
	plain, next := 0, uint64(0)
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.Uint64 {
			plain++
			next++
			f.SetUint(next)
			continue
		}
		for j := range f.Len() {
			next++
			f.Index(j).SetUint(next)
		}
	}
	sum.Add(&one)
	require.Equal(t, one, sum)
	sum.Add(&one)
	require.Equal(t, 2*one.SentPackets, sum.SentPackets)
	require.Equal(t, 2*one.ReceivedOpcodes[opcodeMask], sum.ReceivedOpcodes[opcodeMask])
	named := one.Named()
	require.Len(t, named, plain)
	require.EqualValues(t, counterKinds, plain, "each field is counted")
	require.Equal(t, one.Timeouts, named["local_ack_timeout_err"])
	require.Len(t, one.Dropped(), int(roce.DropReasons))
	require.Equal(t, one.Drops[roce.DropICRC], one.Dropped()["icrc_bad"])
	require.Equal(t, one.SentOpcodes[roce.RCWriteOnly], one.Sent()["RC_RDMA_WRITE_ONLY"])
	require.Equal(t, one.ReceivedOpcodes[roce.RCAcknowledge], one.Received()["RC_ACKNOWLEDGE"])
}

func TestRoundTrip(t *testing.T) {
	var r roundTrip
	r.acknowledged(50, 7)
	require.Zero(t, r.smoothed, "nothing was asked")
	r.asked(100, 10)
	r.asked(110, 11)
	r.acknowledged(150, 10)
	require.Zero(t, r.smoothed, "that is what came before")
	r.acknowledged(180, 12)
	require.Equal(t, Time(80), r.smoothed)
	r.asked(200, 12)
	r.acknowledged(360, 13)
	require.Equal(t, Time(90), r.smoothed, "an eighth of the way from 80 to 160")
	r.asked(400, 13)
	r.abandon()
	r.acknowledged(9000, 14)
	require.Equal(t, Time(90), r.smoothed, "a packet that was sent again tells nothing")
	r.asked(9000, 14)
	r.acknowledged(9000, 15)
	require.Positive(t, r.smoothed)
}
