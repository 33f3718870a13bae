package verbs_test

import (
	"bytes"
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/verbs"
)

var deregistrations = flag.Int("c3", 300, "rounds of TestCase_C3_Traffic; 10000 is the long run")

// TestCase_C3_Traffic deregisters a region while a peer writes to it: after Dereg has returned no byte changes, and the
// peer gets a remote access error. The plain writes to the buffer are what the race detector looks at.
func TestCase_C3_Traffic(t *testing.T) {
	a, b := partners(t)
	buffer := make([]byte, 4096)
	untouched := bytes.Repeat([]byte{0xA5}, len(buffer))
	copy(a.mr.Bytes(), bytes.Repeat([]byte{0x11}, len(buffer)))
	for round := range *deregistrations {
		if round > 0 { // the last round has ended the connection
			for _, e := range []*end{a, b} {
				require.NoError(t, e.qp.Modify(t.Context(), verbs.QPAttr{State: verbs.StateReset}, verbs.QPStateMask))
			}
			connect(t, a, b, verbs.ConnectOptions{Timeout: noTimeout, AccessFlags: new(verbs.AccessRemoteWrite)})
		}
		mr, err := b.pd.RegMR(buffer, allAccess)
		require.NoError(t, err)
		failed := make(chan verbs.WC, 1)
		go func() { failed <- a.writeUntilError(mr.Remote(), len(buffer)) }()
		time.Sleep(time.Duration(round%10) * 50 * time.Microsecond)
		require.NoError(t, mr.Dereg())
		copy(buffer, untouched)
		require.Equal(t, verbs.WCRemAccessErr, (<-failed).Status)
		require.True(t, bytes.Equal(untouched, buffer), "written after Dereg had returned")
		require.Equal(t, verbs.StateError, b.qp.State())
	}
	support.Object(t, "MR", "Dereg while a peer writes, for the peer", verbs.WCRemAccessErr)
	support.Object(t, "MR", "Dereg while a peer writes, for the buffer", "untouched from its return on")
}

// writeUntilError keeps 32 WRITEs under way until one fails, waits for the rest and returns the completion of the one
// that failed; it is the zero value if a post or a poll does.
func (e *end) writeUntilError(to verbs.RemoteMemory, length int) (failed verbs.WC) {
	var wcs [64]verbs.WC
	for posted, done := 0, 0; failed.Status == verbs.WCSuccess || done < posted; {
		if failed.Status == verbs.WCSuccess && posted-done < 32 {
			err := e.qp.PostSend(verbs.SendWR{
				WRID: uint64(posted), Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{e.mr.SGE(0, length)}, RemoteAddr: to.Addr, RKey: to.RKey,
			})
			if err != nil {
				return verbs.WC{}
			}
			posted++
		}
		n, err := e.sends.Poll(wcs[:])
		if err != nil {
			return verbs.WC{}
		}
		done += n
		for _, wc := range wcs[:n] {
			if failed.Status == verbs.WCSuccess {
				failed = wc
			}
		}
	}
	return failed
}
