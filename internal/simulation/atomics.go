package simulation

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// Words that all queue pairs of both devices hit at once. The same memory is registered with both devices.
//
// Every fetch-and-add of a word adds another power of two, so that the word is the set of those that were executed,
// and every value returned is the set of those before it. Executed once each and in some order means: these sets form
// a chain that grows. Compare-and-swaps store values that occur once, so that the word passes through every value at
// most once: the successful ones form a path, and every value returned lies on it.

// origin of an operation: operations of one life of a flow are executed in their order.
type origin struct {
	flow *flow
	life int
}

type adder struct {
	value   func() uint64
	initial uint64
	count   int
	by      []origin
	before  map[int]uint64 // of those that are complete: the set before
}

// add adds an operation and returns its number; false means that the word has had all it can take.
func (a *adder) add(o origin) (number int, ok bool) {
	if a.count == 64 {
		return 0, false
	}
	a.by = append(a.by, o)
	a.count++
	return a.count - 1, true
}

// check looks for an order that explains what was returned, when nothing is in flight any more.
func (a *adder) check() error {
	final := a.value() - a.initial
	if a.count < 64 && final>>a.count != 0 {
		return fmt.Errorf("fetch-and-add: the word has %#x, only %d operations were posted", final, a.count)
	}
	var order []int
	for number, before := range a.before {
		after := before | 1<<number
		if before == after {
			return fmt.Errorf("fetch-and-add %d was executed twice: it found %#x", number, before)
		}
		if after&^final != 0 {
			return fmt.Errorf("fetch-and-add %d found %#x, in the end there is %#x", number, before, final)
		}
		order = append(order, number)
	}
	slices.SortFunc(order, func(x, y int) int { return bits.OnesCount64(a.before[x]) - bits.OnesCount64(a.before[y]) })
	for i := range order {
		set := a.before[order[i]]
		if i > 0 {
			if last := a.before[order[i-1]] | 1<<order[i-1]; last&^set != 0 {
				return fmt.Errorf("fetch-and-add %d found %#x, %d left %#x", order[i], set, order[i-1], last)
			}
		}
		for other, o := range a.by {
			if o == a.by[order[i]] && other < order[i] && set>>other&1 == 0 {
				return fmt.Errorf("fetch-and-add %d found %#x without %d, which comes before it in its queue", order[i], set, other)
			}
		}
	}
	return nil
}

type swap struct {
	compare, value uint64
	by             origin
	known          bool
	returned       uint64
}

type swapper struct {
	value   func() uint64
	initial uint64
	swaps   []*swap
}

// check looks for the path of the word's values that explains what was returned.
func (s *swapper) check() error {
	path := []uint64{s.initial}
	if !s.extend(path) {
		text := fmt.Sprintf("compare-and-swap: from %#x to %#x nothing explains", s.initial, s.value())
		for i, w := range s.swaps {
			text += fmt.Sprintf("\n\t%d of %s: %#x for %#x", i, w.by.flow.name, w.value, w.compare)
			if w.known {
				text += fmt.Sprintf(", found %#x", w.returned)
			}
		}
		return fmt.Errorf("%s", text)
	}
	return nil
}

// extend tries every operation that may have been the next successful one.
func (s *swapper) extend(path []uint64) bool {
	at := path[len(path)-1]
	for _, w := range s.swaps {
		if w.known && w.returned == w.compare && w.compare == at {
			return s.extend(append(path, w.value)) // nothing else can have followed, as no value comes back
		}
	}
	if at == s.value() && s.explains(path) {
		return true
	}
	for _, w := range s.swaps {
		if !w.known && w.compare == at && s.extend(append(slices.Clone(path), w.value)) {
			return true
		}
	}
	return false
}

func (s *swapper) explains(path []uint64) bool {
	last := make(map[origin]int)
	for _, w := range s.swaps {
		if !w.known {
			continue
		}
		at := slices.Index(path, w.returned)
		if at < last[w.by] {
			return false // not on the path, or before what its queue has seen already
		}
		if w.returned == w.compare {
			if at+1 >= len(path) || path[at+1] != w.value {
				return false
			}
			at++
		}
		last[w.by] = at
	}
	return true
}

func wordAt(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
