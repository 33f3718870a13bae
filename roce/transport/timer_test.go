package transport

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/xroce/xroce/roce/memory"
)

// TestTimerModel compares the heap with a plain list of deadlines: each fires once, in time, never early, and the next
// deadline is never later than the earliest one. An RNR wait is used as the deadline, since it does nothing but end.
func TestTimerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := NewEngine(memory.NewTable(1).NewUser())
		var qps []*QP
		for range rapid.IntRange(1, 12).Draw(t, "queue pairs") {
			q := newQP(t, e)
			q.setState(StateRTS)
			qps = append(qps, q)
		}
		now := Time(1)
		model := make(map[int]Time)
		index := rapid.IntRange(0, len(qps)-1)
		span := rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 1000))
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				i := index.Draw(t, "i")
				deadline := now + Time(span.Draw(t, "in"))
				qps[i].recovery.waitingRNR = true
				qps[i].recovery.retransmission = deadline
				qps[i].schedule()
				model[i] = deadline
			},
			"stop": func(t *rapid.T) {
				i := index.Draw(t, "i")
				qps[i].recovery.retransmission = 0
				qps[i].schedule()
				delete(model, i)
			},
			"remove": func(t *rapid.T) {
				i := index.Draw(t, "i")
				e.Remove(qps[i])
				require.False(t, qps[i].timer.queued)
				delete(model, i)
			},
			"advance": func(t *rapid.T) {
				now += Time(span.Draw(t, "by"))
				e.Expire(now, now)
				for i, deadline := range model {
					require.Equal(t, deadline > now, qps[i].recovery.waitingRNR, "deadline %d at %d", deadline, now)
					if deadline <= now {
						delete(model, i)
					}
				}
			},
			"to the next": func(t *rapid.T) {
				if next, some := e.NextDeadline(); some {
					now = max(now, next)
					e.Expire(now, now)
					for i, deadline := range model {
						require.Equal(t, deadline > now, qps[i].recovery.waitingRNR)
						if deadline <= now {
							delete(model, i)
						}
					}
				}
			},
			"": func(t *rapid.T) {
				next, some := e.NextDeadline()
				earliest := Time(math.MaxInt64)
				for _, deadline := range model {
					earliest = min(earliest, deadline)
				}
				if len(model) > 0 {
					require.True(t, some)
					require.LessOrEqual(t, next, earliest)
				}
				require.LessOrEqual(t, len(e.timers), len(qps), "one entry for each queue pair")
				for i, q := range e.timers {
					require.Equal(t, i, q.timer.index)
					require.True(t, q.timer.queued)
					require.LessOrEqual(t, e.timers[(i-min(i, 1))/2].timer.at, q.timer.at, "heap order")
				}
			},
		})
	})
}

// TestExpireEnds: a deadline that was moved on or taken back leaves the heap in the end.
func TestExpireEnds(t *testing.T) {
	e := NewEngine(memory.NewTable(1).NewUser())
	q := newQP(t, e)
	q.setState(StateRTS)
	for i := Time(10); i < 1000; i += 10 {
		q.setTimer(i)
	}
	at, some := e.NextDeadline()
	require.True(t, some)
	require.Equal(t, Time(10), at, "moving a deadline on costs no walk through the heap")
	e.Expire(10, 10)
	at, _ = e.NextDeadline()
	require.Equal(t, Time(990), at)
	q.setTimer(0)
	e.Expire(2000, 2000)
	_, some = e.NextDeadline()
	require.False(t, some)
}

// TestReadyQueue: ready queue pairs get their turn in order, once each, those that owe something from the next turn on,
// and a removed one gets none.
func TestReadyQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := NewEngine(memory.NewTable(1).NewUser())
		qps := make([]*QP, 5)
		for i := range qps {
			qps[i] = newQP(t, e)
		}
		var model, owing []*QP
		putOff := false
		without := func(list []*QP, q *QP) []*QP {
			return slices.DeleteFunc(list, func(o *QP) bool { return o == q })
		}
		ready := func(q *QP) {
			owing = without(owing, q)
			if !slices.Contains(model, q) {
				model = append(model, q)
			}
		}
		index := rapid.IntRange(0, len(qps)-1)
		t.Repeat(map[string]func(*rapid.T){
			"ready": func(t *rapid.T) {
				q := qps[index.Draw(t, "i")]
				e.Ready(q)
				ready(q)
			},
			"owe": func(t *rapid.T) {
				q := qps[index.Draw(t, "i")]
				e.owe(q)
				if !putOff {
					ready(q)
				} else if !slices.Contains(model, q) && !slices.Contains(owing, q) {
					owing = append(owing, q)
				}
			},
			"begin": func(t *rapid.T) {
				putOff = rapid.Bool().Draw(t, "put off")
				e.Begin(putOff)
				for len(owing) > 0 {
					ready(owing[0])
				}
			},
			"remove": func(t *rapid.T) {
				q := qps[index.Draw(t, "i")]
				e.Remove(q)
				model, owing = without(model, q), without(owing, q)
			},
			"pop": func(t *rapid.T) {
				if len(model) > 0 {
					require.Same(t, model[0], e.ready.head)
					e.ready.head.unlist()
					model = model[1:]
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(model) == 0, e.Idle())
				require.Equal(t, len(owing) > 0, e.Owes())
			},
		})
	})
}
