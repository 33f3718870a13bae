package puppet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/puppet"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/verbs"
)

// TestExplainSizes: Explain speaks of an MTU on the way if shorter packets than the one that was not answered had
// been answered, and none that was as long.
func TestExplainSizes(t *testing.T) {
	const short = "packets with up to 8 bytes of payload passed, those with 1024 did not: a link on the way"
	for _, c := range []struct {
		name          string
		first, second int  // bytes of two requests
		part          bool // the first packet of the second one is acknowledged
		want          string
	}{
		{"short, then long", 8, 3000, false, short},
		{"short, then a part of long", 8, 3000, true, ""},
		{"long, then long", 1024, 3000, false, ""},
		{"short, then short", 8, 8, false, ""},
		{"short, then the end of a message", 8, 1024 + 4, true, ""},
		{"empty, then the least that an MTU can stop", 0, 256, false, "packets with up to 0 bytes of payload passed, those with 256 did not"},
		{"empty, then less", 0, 255, false, ""},
		{"nothing before", -1, 3000, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, end, p := sender(t, func(a *verbs.QPAttr) { a.RetryCnt = 1 })
			psn := puppet.FirstPSNOfQP
			if c.first >= 0 {
				end.Post(end.Request(1, verbs.WRSend, 0, c.first))
				p.ExpectPacket(roce.RCSendOnly, psn)
				p.Ack(psn, 1)
				end.ExpectSend(1, verbs.WCSuccess)
				psn = psn.Add(1)
			}
			end.Post(end.Request(2, verbs.WRSend, 0, c.second))
			if c.part {
				p.ExpectPacket(roce.RCSendFirst, psn)
				p.Ack(psn, 1)
			}
			text := end.QP.Explain(end.ExpectSend(2, verbs.WCRetryExcErr))
			if c.want == "" {
				require.NotContains(t, text, "a link on the way", text)
			} else {
				require.Contains(t, text, c.want)
			}
		})
	}
}
