package puppet_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

// TestForgedLoopback: a packet from the wire that says it comes from the device's own address must not reach a queue
// pair on loopback, whose traffic never leaves the process.
func TestForgedLoopback(t *testing.T) {
	stage := puppet.NewStage(t, mem.Options{})
	end := stage.NewEnd(puppet.EndOptions{})
	p := stage.NewPuppet()
	p.Connect(end) // aims the puppet at the QP
	require.NoError(t, end.QP.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
	gid, err := end.Device.QueryGID(0)
	require.NoError(t, err)
	attr := puppet.Attributes()
	attr.AH.DGID, attr.DestQPN = gid, end.QP.QPN()
	puppet.Establish(t, end.QP, attr)
	before := bytes.Clone(end.Bytes(0, 4))
	packet := write(end, 100)
	packet.Wrong.Source = gid.Addr()
	p.Send(packet)
	stage.Pass(time.Millisecond)
	require.Equal(t, before, end.Bytes(0, 4), "written from the wire")
	counters := opener.Counters(end.Device)
	require.Equal(t, map[string]uint64{"address_mismatch": 1}, counters.DropReasons())
}
