package perf

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/verbs"
)

// Wish is what the user of one end has said. Fields that are nil or empty were left out.
type Wish struct {
	Operation  string   `json:"operation,omitempty" flag:"the operation"`
	Test       string   `json:"test,omitempty" flag:"the test"`
	Size       *int     `json:"bytes,omitempty" flag:"-s"`
	Sweep      *bool    `json:"sweep,omitempty" flag:"-a"`
	Iterations *int     `json:"iterations,omitempty" flag:"-n"`
	Duration   *float64 `json:"seconds,omitempty" flag:"-D"`
	QPs        *int     `json:"qps,omitempty" flag:"-q"`
	Depth      *int     `json:"txDepth,omitempty" flag:"-t"`
	PathMTU    *int     `json:"pathMTU,omitempty" flag:"-m"`
	Both       *bool    `json:"bothWays,omitempty" flag:"-b"`
	Inline     *int     `json:"inlineBytes,omitempty" flag:"--inline"`
	Moderation *int     `json:"cqModeration,omitempty" flag:"--cq-mod"`
	Verify     *bool    `json:"verify,omitempty" flag:"--verify"`
}

// Defaults are those of perftest, with two exceptions. It sends 5000 messages only for the bandwidth of WRITE, and 1000
// otherwise, which is too short to say much. Here a request in 16 asks for a completion instead of one in 100, so that
// the send queue never runs empty for want of one.
const (
	defaultBandwidthSize       = 65536
	defaultLatencySize         = 2
	defaultBandwidthIterations = 5000
	defaultLatencyIterations   = 1000
	defaultDepth               = 128
	defaultModeration          = 16
	sweepSeconds               = 1.0 // of each size
	atomicSize                 = 8
	latencyDepth               = 16 // sends whose completion has not been taken
	largestSweep               = 8 << 20
	maxSize                    = 1 << 30
)

// Check finds what makes no sense, whatever the other end says.
func (w Wish) Check() error {
	for _, limit := range []struct {
		flag        string
		value       *int
		least, most int
	}{
		{"-s/--size", w.Size, 1, maxSize}, {"-n/--iters", w.Iterations, 1, 1 << 30}, {"-q/--qp", w.QPs, 1, 1 << 14},
		{"-t/--tx-depth", w.Depth, 1, verbs.MaxQPWR / receivesPerSend}, {"--inline", w.Inline, 0, queue.MaxInline},
		{"--cq-mod", w.Moderation, 1, verbs.MaxQPWR},
	} {
		if v := limit.value; v != nil && (*v < limit.least || *v > limit.most) {
			return misused("%s %d is not in %d..%d", limit.flag, *v, limit.least, limit.most)
		}
	}
	const most = 1e6
	if d := w.Duration; d != nil && !(*d > 0 && *d <= most) {
		return misused("-D/--duration %v is not above 0 and at most %v seconds", *d, most)
	}
	switch {
	case w.PathMTU != nil && !slices.Contains([]int{256, 512, 1024, 2048, 4096}, *w.PathMTU):
		return misused("-m/--mtu: path MTU %d does not exist", *w.PathMTU)
	case w.Iterations != nil && w.Duration != nil:
		return misused("-n/--iters and -D/--duration exclude each other")
	case said(w.Sweep) && w.Size != nil:
		return misused("-a/--all and -s/--size exclude each other")
	}
	return w.checkTest()
}

// checkTest finds what does not fit the operation or the test.
func (w Wish) checkTest() error {
	o := operations[w.Operation]
	switch {
	case w.Operation == "atomic" && said(w.Sweep):
		return misused("-a/--all: an atomic has %d bytes", atomicSize)
	case w.Operation == "atomic" && w.Size != nil && *w.Size != atomicSize:
		return misused("-s/--size %d: an atomic has %d bytes", *w.Size, atomicSize)
	case w.Operation != "" && !o.inline && w.Inline != nil && *w.Inline > 0:
		return misused("--inline %d: %s carries no data in its request", *w.Inline, w.Operation)
	case w.Test != latency:
		return nil
	case said(w.Both):
		return misused("-b/--bidirectional: a latency test goes one way at a time")
	case w.QPs != nil && *w.QPs != 1:
		return misused("-q/--qp %d: a latency test has 1 queue pair", *w.QPs)
	case w.Depth != nil:
		return misused("-t/--tx-depth %d: a latency test has 1 request in flight", *w.Depth)
	case w.Moderation != nil && *w.Moderation != 1:
		return misused("--cq-mod %d: each request of a latency test has a completion", *w.Moderation)
	}
	return nil
}

func said(flag *bool) bool { return flag != nil && *flag }

// Complete returns the wish of a client with the defaults of what it has left out.
func (w Wish) Complete() Wish {
	size, iterations := defaultBandwidthSize, defaultBandwidthIterations
	depth, moderation := defaultDepth, defaultModeration
	if w.Test == latency {
		size, iterations = defaultLatencySize, defaultLatencyIterations
		depth, moderation = latencyDepth, 1
	}
	if w.Operation == "atomic" {
		size = atomicSize
	}
	w.QPs, w.Depth = orNew(w.QPs, 1), orNew(w.Depth, depth)
	w.Moderation = orNew(w.Moderation, min(moderation, windows(*w.Depth)))
	w.Inline, w.Both = orNew(w.Inline, 0), orNew(w.Both, false)
	w.Verify, w.Sweep = orNew(w.Verify, false), orNew(w.Sweep, false)
	if !*w.Sweep {
		w.Size = orNew(w.Size, size)
	}
	switch {
	case w.Duration != nil || w.Iterations != nil:
	case *w.Sweep:
		w.Duration = new(sweepSeconds)
	default:
		w.Iterations = new(iterations)
	}
	return w
}

// windows is how many requests may have one completion together so that others are in flight while it is awaited.
func windows(depth int) int { return max(1, depth/4) }

// Differ says in which flag the server's wish is another than the client's, which is complete, from the view of one
// end. What the server has left out is as the client says, and both have a say in the path MTU.
func Differ(client, server Wish, atClient bool) error {
	asked, wanted := reflect.ValueOf(client), reflect.ValueOf(server)
	for i := range asked.NumField() {
		flag := asked.Type().Field(i).Tag.Get("flag")
		here, there := text(wanted.Field(i)), text(asked.Field(i))
		if wanted.Field(i).IsZero() || here == there || flag == "-m" && client.PathMTU == nil {
			continue
		}
		if atClient {
			here, there = there, here
		}
		return misused("%s is %s here and %s at the other end", flag, here, there)
	}
	return nil
}

// text names the value of a field of Wish.
func text(v reflect.Value) string {
	switch {
	case v.Kind() != reflect.Pointer:
		return v.String()
	case v.IsNil():
		return "not given"
	}
	return fmt.Sprint(v.Elem().Interface())
}

// Plan is what is measured. Both ends make the same one of the client's wish.
type Plan struct {
	Operation    string  `json:"operation"`
	Test         string  `json:"test"`
	Sizes        []int   `json:"sizes"`           // bytes of a message, one run each
	Iterations   int     `json:"iterations"`      // messages of each queue pair and direction, 0 if seconds are given
	Seconds      float64 `json:"limitSeconds"`    // of each run, 0 if iterations are given
	QPs          int     `json:"qps"`             //
	Depth        int     `json:"txDepth"`         // requests of a queue pair in flight, at most
	Moderation   int     `json:"cqModeration"`    // requests that are posted at once, of which the last has a completion
	PathMTUAsked int     `json:"pathMTUAskedFor"` // bytes, 0 for the largest that both ends carry
	Both         bool    `json:"bothWays"`        //
	Inline       int     `json:"inlineBytes"`     // messages of up to so many bytes lie in their requests
	Verify       bool    `json:"verify"`          // whoever receives data checks them
	slots        int     // places for messages of each queue pair, see memory
}

// memoryToVerify is how much of the memory of one direction the messages in flight may take, in bytes. Each has a place
// of its own if the data are checked.
const memoryToVerify = 256 << 20

// mostMemory is how much one end registers, in bytes.
const mostMemory = 2<<30 - 1

// receivesPerSend are the receives that are posted for each request that the peer may have in flight: their owner may
// be late by so many.
const receivesPerSend = 4

// Plan makes a plan of a complete wish that has passed Check.
func (w Wish) Plan() (*Plan, error) {
	if !slices.Contains(Operations(), w.Operation) || !slices.Contains(Tests(), w.Test) {
		return nil, misused("no test %q of operation %q: choose send, write, write-imm, read or atomic, and bw or lat",
			w.Test, w.Operation)
	}
	p := &Plan{
		Operation: w.Operation, Test: w.Test, QPs: *w.QPs, Depth: *w.Depth, Moderation: *w.Moderation, Both: *w.Both,
		Inline: *w.Inline, Verify: *w.Verify,
	}
	p.PathMTUAsked = *orNew(w.PathMTU, 0)
	if w.Duration != nil {
		p.Seconds = *w.Duration
	} else {
		p.Iterations = *w.Iterations
	}
	if !*w.Sweep {
		p.Sizes = []int{*w.Size}
	} else {
		for s := 2; s <= largestSweep; s *= 2 {
			p.Sizes = append(p.Sizes, s)
		}
	}
	return p, p.fit()
}

// fit makes the number of requests in flight fit the memory, if each needs a place of its own, and checks the rest.
func (p *Plan) fit() error {
	if p.Moderation > p.Depth {
		return misused("--cq-mod %d is above -t/--tx-depth %d: no completion would ever come", p.Moderation, p.Depth)
	}
	p.slots = 1
	if p.Verify {
		places := memoryToVerify / (int64(p.QPs) * int64(p.stride()))
		p.Depth = int(max(1, min(int64(p.Depth), (places-1)/receivesPerSend)))
		p.Moderation = min(p.Moderation, windows(p.Depth))
		p.slots = receivesPerSend*p.Depth + 1
	}
	if n := p.completions(); n > verbs.MaxCQE {
		return misused("-q/--qp %d with -t/--tx-depth %d may have %d completions at once, the most are %d",
			p.QPs, p.Depth, n, verbs.MaxCQE)
	}
	if n := 2 * int64(p.QPs) * int64(p.slots) * int64(p.stride()); n > mostMemory {
		return misused("%d queue pairs with %d places for messages of %d bytes take %d MiB of memory, the most are %d MiB",
			p.QPs, 2*p.slots, p.largest(), n>>20, mostMemory>>20)
	}
	return nil
}

func (p *Plan) receives() int    { return receivesPerSend * p.Depth }
func (p *Plan) completions() int { return p.QPs * (p.Depth + p.receives()) }
func (p *Plan) operation() operation {
	return operations[p.Operation]
}

func (p *Plan) largest() int { return p.Sizes[len(p.Sizes)-1] }

// stride is the distance of two messages in memory: whole lines of the cache.
func (p *Plan) stride() int { return (p.largest() + 63) &^ 63 }

// memory is what one end registers: the source, of what this end provides (its own messages, and what peers READ and
// change by atomics), and behind it the sink, for what arrives (receives, WRITEs of the peer, results of own READs and
// atomics). Each queue pair has the same number of slots in both.
func (p *Plan) memory() int { return 2 * p.half() }

func (p *Plan) half() int { return p.QPs * p.slots * p.stride() }

func (p *Plan) place(qp, slot int) int { return (qp*p.slots + slot) * p.stride() }

// source and sink return the offset of a slot of a queue pair. Slots are used in turn.
func (p *Plan) source(qp int, number uint64) int { return p.place(qp, int(number%uint64(p.slots))) }

func (p *Plan) sink(qp int, number uint64) int { return p.half() + p.source(qp, number) }

// result returns the offset in the sink where the result of a READ or an atomic comes. It takes turns of another length
// than the peer's slots, so that what comes into a place differs from what was there.
func (p *Plan) result(qp int, number uint64) int {
	return p.half() + p.place(qp, int(number%uint64(max(1, p.slots-1))))
}

// orNew is what a pointer chooses, or something else.
func orNew[T any](choice *T, standard T) *T {
	if choice != nil {
		return choice
	}
	return &standard
}
