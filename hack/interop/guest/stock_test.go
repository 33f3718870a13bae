//go:build linux

package guest

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/hack/interop/plan"
	"github.com/xroce/xroce/hack/interop/report"
)

// TestJudge: a game works only if both ends say so, by every sign that they give.
func TestJudge(t *testing.T) {
	played := plan.Game{Program: plan.RCPingPong, Server: true, MTU: 1024, Size: 33, Count: 300}
	const said = "  local address:  LID 0x0000\n19800 bytes in 0.10 seconds = 1.58 Mbit/sec\n300 iters in 0.10 seconds = 333.33 usec/iter\n"
	counters := func(sent, received, bytes uint64) answer {
		return answer{Counters: map[string]uint64{"sent": sent, "received": received, "bytes": bytes}}
	}
	good := counters(300, 300, 9900)
	require.NoError(t, judgeGame(played, good, nil, said, nil, nil))
	failed := errors.New("exit status 1")
	for name, err := range map[string]error{
		"its content":      judgeGame(played, good, nil, said+"invalid data in page 0\n", nil, nil),
		"its status":       judgeGame(played, good, nil, said, failed, nil),
		"its iterations":   judgeGame(played, good, nil, "\n19800 bytes in 1\n299 iters in 1\n", nil, nil),
		"its bytes":        judgeGame(played, good, nil, "\n19799 bytes in 1\n300 iters in 1\n", nil, nil),
		"it is silent":     judgeGame(played, good, nil, "", nil, nil),
		"it did not end":   judgeGame(played, good, nil, said, failed, context.DeadlineExceeded),
		"xroce's content":  judgeGame(played, answer{Error: "content differs"}, failed, said, nil, nil),
		"xroce's end":      judgeGame(played, good, failed, said, nil, nil),
		"xroce sent":       judgeGame(played, counters(299, 300, 9900), nil, said, nil, nil),
		"xroce received":   judgeGame(played, counters(300, 299, 9900), nil, said, nil, nil),
		"xroce's bytes":    judgeGame(played, counters(300, 300, 9899), nil, said, nil, nil),
		"not over in time": judgeGame(played, answer{Error: "late"}, failed, said, failed, context.DeadlineExceeded),
		"refused, but the program went on": judgeGame(played, answer{Error: "path MTU", Refused: true}, failed, "", failed,
			context.Canceled),
	} {
		require.Error(t, err, name)
		require.Equal(t, report.Fails, outcomeOf(err), name)
	}
	require.Equal(t, report.Refused,
		outcomeOf(judgeGame(played, answer{Error: "path MTU", Refused: true}, failed, "", failed, nil)))
}

// TestEndpointText: the text that the stock programs exchange has this length and form.
func TestEndpointText(t *testing.T) {
	e := endpoint{Address: "10.0.0.2", QPN: 0x11, PSN: 0xabcdef}
	text := endpointText(e)
	require.Equal(t, "0000:000011:abcdef:00000000000000000000ffff0a000002\x00", text)
	back, err := parseEndpoint([]byte(text))
	require.NoError(t, err)
	require.Equal(t, e, back)
	for _, wrong := range []string{"", ":::", "0000:000011:abcdef:0000", "0000:00001g:abcdef:00000000000000000000ffff0a00000g"} {
		_, err := parseEndpoint([]byte(wrong))
		require.Error(t, err, "%q", wrong)
	}
}

// TestBall: what either end sends is what the other one got last, but for the client's first message.
func TestBall(t *testing.T) {
	c := &PingPongCommand{Size: 5000, Count: 2, Fill: 0x7b, Checked: true}
	pattern := make([]byte, 20000)
	for i := range pattern {
		pattern[i] = byte(i%255 + 1)
	}
	server := &ball{PingPongCommand: c, pattern: pattern}
	first := server.expected(0)
	require.Equal(t, []byte{0, 0x7b}, first[:2])
	require.Equal(t, []byte{0x7b, 0, 0x7b}, first[4095:4098])
	require.Equal(t, server.content(0), server.expected(1))
	require.NotEqual(t, server.content(0), server.content(1))
	for _, at := range []int{0, 4096} {
		require.Zero(t, server.content(1)[at])
	}
	client := &ball{PingPongCommand: &PingPongCommand{Size: 5000, Server: "10.0.0.1"}, pattern: pattern}
	require.Equal(t, client.content(3), client.expected(3))
}
