package perf

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDefaults(t *testing.T) {
	plan := func(w Wish) Plan {
		require.NoError(t, w.Check())
		p, err := w.Complete().Plan()
		require.NoError(t, err)
		return *p
	}
	require.Equal(t, Plan{Operation: "write", Test: "bw", Sizes: []int{65536}, Iterations: 5000, QPs: 1, Depth: 128, Moderation: 16, slots: 1},
		plan(Wish{Operation: "write", Test: "bw"}))
	require.Equal(t, Plan{Operation: "send", Test: "lat", Sizes: []int{2}, Iterations: 1000, QPs: 1, Depth: 16, Moderation: 1, slots: 1},
		plan(Wish{Operation: "send", Test: "lat"}))
	require.Equal(t, []int{8}, plan(Wish{Operation: "atomic", Test: "bw"}).Sizes)
	require.Equal(t, 2, plan(Wish{Operation: "write", Test: "bw", Depth: new(8)}).Moderation)
	sweep := plan(Wish{Operation: "write", Test: "bw", Sweep: new(true)})
	require.Len(t, sweep.Sizes, 23)
	require.Equal(t, 2, sweep.Sizes[0])
	require.Equal(t, 8<<20, sweep.Sizes[22])
	require.Equal(t, 1.0, sweep.Seconds)
	require.Zero(t, sweep.Iterations)
	require.Equal(t, 7, plan(Wish{Operation: "write", Test: "bw", Size: new(8 << 20), Verify: new(true)}).Depth, "bounded by the memory")
}

func TestRefused(t *testing.T) {
	for text, w := range map[string]Wish{
		"-s/--size 0 is not in 1..1073741824":                         {Size: new(0)},
		"-n/--iters 0 is not in 1..1073741824":                        {Iterations: new(0)},
		"-q/--qp 0 is not in 1..16384":                                {QPs: new(0)},
		"-t/--tx-depth 16385 is not in 1..16384":                      {Depth: new(16385)},
		"--inline 1025 is not in 0..1024":                             {Inline: new(1025)},
		"--cq-mod 0 is not in 1..65536":                               {Moderation: new(0)},
		"-m/--mtu: path MTU 1500 does not exist":                      {PathMTU: new(1500)},
		"-D/--duration 0 is not above 0 and at most 1e+06 seconds":    {Duration: new(0.0)},
		"-n/--iters and -D/--duration exclude each other":             {Duration: new(1.0), Iterations: new(1)},
		"-a/--all and -s/--size exclude each other":                   {Sweep: new(true), Size: new(1)},
		"-a/--all: an atomic has 8 bytes":                             {Operation: "atomic", Sweep: new(true)},
		"-s/--size 4: an atomic has 8 bytes":                          {Operation: "atomic", Size: new(4)},
		"--inline 8: read carries no data in its request":             {Operation: "read", Inline: new(8)},
		"-b/--bidirectional: a latency test goes one way at a time":   {Test: "lat", Both: new(true)},
		"-q/--qp 2: a latency test has 1 queue pair":                  {Test: "lat", QPs: new(2)},
		"-t/--tx-depth 5: a latency test has 1 request in flight":     {Test: "lat", Depth: new(5)},
		"--cq-mod 2: each request of a latency test has a completion": {Test: "lat", Moderation: new(2)},
	} {
		err := w.Check()
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, ErrMisuse)
	}
	for text, w := range map[string]Wish{
		`no test "" of operation "": choose send, write, write-imm, read or atomic, and bw or lat`:       {},
		`no test "" of operation "send": choose send, write, write-imm, read or atomic, and bw or lat`:   {Operation: "send"},
		"--cq-mod 9 is above -t/--tx-depth 8: no completion would ever come":                             {Operation: "send", Test: "bw", Depth: new(8), Moderation: new(9)},
		"-q/--qp 2000 with -t/--tx-depth 128 may have 1280000 completions at once, the most are 1048576": {Operation: "send", Test: "bw", QPs: new(2000)},
		"200 queue pairs with 2 places for messages of 8388608 bytes take 3200 MiB of memory, the most are 2047 MiB": {
			Operation: "send", Test: "bw", QPs: new(200), Sweep: new(true),
		},
	} {
		require.NoError(t, w.Check())
		_, err := w.Complete().Plan()
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, ErrMisuse)
	}
}

func TestDiffer(t *testing.T) {
	client := Wish{Operation: "write", Test: "bw", Verify: new(true)}.Complete()
	for _, c := range []struct {
		server             Wish
		atServer, atClient string
	}{
		{Wish{Operation: "read"}, "the operation is read here and write at the other end", "the operation is write here and read at the other end"},
		{Wish{Test: "lat"}, "the test is lat here and bw at the other end", "the test is bw here and lat at the other end"},
		{Wish{Size: new(5)}, "-s is 5 here and 65536 at the other end", "-s is 65536 here and 5 at the other end"},
		{Wish{QPs: new(2)}, "-q is 2 here and 1 at the other end", "-q is 1 here and 2 at the other end"},
		{Wish{Verify: new(false)}, "--verify is false here and true at the other end", "--verify is true here and false at the other end"},
		{Wish{Duration: new(2.5)}, "-D is 2.5 here and not given at the other end", "-D is not given here and 2.5 at the other end"},
	} {
		require.EqualError(t, Differ(client, c.server, false), c.atServer)
		require.EqualError(t, Differ(client, c.server, true), c.atClient)
	}
	for _, server := range []Wish{{}, {Operation: "write"}, {Size: new(65536), QPs: new(1)}, {PathMTU: new(256)}} {
		require.NoError(t, Differ(client, server, true))
		require.NoError(t, Differ(client, server, false))
	}
	client.PathMTU = new(512)
	require.EqualError(t, Differ(client, Wish{PathMTU: new(256)}, false), "-m is 256 here and 512 at the other end")
}

// TestPlaces: no two messages of a plan share memory, and the results of READs do not take turns with their sources.
func TestPlaces(t *testing.T) {
	p, err := Wish{Operation: "read", Test: "bw", Size: new(100), QPs: new(3), Depth: new(4), Verify: new(true)}.Complete().Plan()
	require.NoError(t, err)
	taken := make(map[int]bool)
	for qp := range 3 {
		for n := range uint64(p.slots) {
			for _, at := range []int{p.source(qp, n), p.sink(qp, n)} {
				require.False(t, taken[at])
				taken[at] = true
				require.Zero(t, at%64)
				require.LessOrEqual(t, at+100, p.memory())
			}
		}
		require.NotEqual(t, p.result(qp, uint64(p.slots-1))-p.half(), p.source(qp, uint64(p.slots-1)))
	}
	require.Len(t, taken, 2*3*17)
}
