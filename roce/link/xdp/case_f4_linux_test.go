package xdp

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/netlab"
	"github.com/xroce/xroce/xsk"
)

var fullSize = flag.Bool("full", false, "run the cases whose full size takes long at full size")

// TestCase_F4: a process that is killed is started again at once, many times in a row, and finds its queues free each
// time within the bounded repetitions of the bind; every other time it is started before the old one is known to be
// gone.
func TestCase_F4(t *testing.T) {
	p := newPair(t, netlab.PairOptions{Queues: 2})
	rounds := 10
	if *fullSize {
		rounds = 100
	}
	longest := time.Duration(0)
	for i := range rounds {
		begin := time.Now()
		cmd, line := startChild(t, p.A.Namespace, nil)
		took := time.Since(begin)
		longest = max(longest, took)
		require.Equal(t, "open", line, i)
		require.Less(t, took, 2*time.Second)
		require.NoError(t, cmd.Process.Kill())
		if i%2 == 0 {
			require.Error(t, cmd.Wait())
		}
	}
	t.Logf("%d starts, the longest took %v", rounds, longest)
}

// TestCase_F4_Taken: a queue that another socket really has is refused after a while, with the processes that may have
// it.
func TestCase_F4_Taken(t *testing.T) {
	p := newPair(t, netlab.PairOptions{Queues: 2})
	var socket *xsk.Socket
	require.NoError(t, p.A.Namespace.Do(func() (err error) {
		socket, err = xsk.Open(xsk.Options{Interface: p.A.Index, Queue: 1})
		return err
	}))
	begin := time.Now()
	requireFails(t, "veth0", Options{NetNS: p.A.Namespace.Path()}, ErrTaken,
		fmt.Sprintf("queue 1 of ifindex %d is taken by another AF_XDP socket", p.A.Index), "pids of processes with AF_XDP sockets: ", fmt.Sprint(os.Getpid()))
	require.Less(t, time.Since(begin), openPatience+soon)
	require.NoError(t, socket.Close())
	openEnd(t, p.A, Options{})
}
