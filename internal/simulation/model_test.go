package simulation

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the models call wrong is what the engine must never do; here it is shown to them.

func TestAdder(t *testing.T) {
	one, other := origin{flow: &flow{}}, origin{flow: &flow{}, life: 1}
	const initial = 1<<64 - 3 // the word wraps
	check := func(final uint64, before map[int]uint64) error {
		a := &adder{value: func() uint64 { return initial + final }, initial: initial, before: before}
		for _, o := range []origin{one, one, other} {
			_, ok := a.add(o)
			require.True(t, ok)
		}
		return a.check()
	}
	require.NoError(t, check(0b111, map[int]uint64{0: 0, 1: 0b101, 2: 0b001}))
	require.NoError(t, check(0b011, map[int]uint64{0: 0}), "1 was executed, 2 was not")
	require.NoError(t, check(0b101, map[int]uint64{2: 0b001}), "0 was executed, nobody knows its result")
	for name, c := range map[string]struct {
		final  uint64
		before map[int]uint64
	}{
		"executed twice":               {0b1000, map[int]uint64{0: 0, 1: 0b001, 2: 0b011}},
		"not executed":                 {0b011, map[int]uint64{2: 0b011}},
		"same result twice":            {0b101, map[int]uint64{0: 0, 2: 0}},
		"before its neighbour":         {0b011, map[int]uint64{1: 0}},
		"found itself":                 {0b001, map[int]uint64{0: 0b001}},
		"found what is not there":      {0b001, map[int]uint64{0: 0b100}},
		"one that nobody ever posted ": {0b1001, map[int]uint64{0: 0}},
	} {
		require.Error(t, check(c.final, c.before), name)
	}
	a := &adder{}
	for range 64 {
		a.add(one)
	}
	_, ok := a.add(one)
	require.False(t, ok)
}

func TestSwapper(t *testing.T) {
	one, other := origin{flow: &flow{}}, origin{flow: &flow{name: "other"}}
	check := func(final uint64, swaps ...*swap) error {
		s := &swapper{value: func() uint64 { return final }, initial: 10, swaps: swaps}
		for _, w := range swaps {
			if w.by == (origin{}) {
				w.by = one
			}
		}
		return s.check()
	}
	known := func(compare, value, returned uint64) *swap {
		return &swap{compare: compare, value: value, known: true, returned: returned}
	}
	require.NoError(t, check(10))
	require.NoError(t, check(12, known(10, 11, 10), known(11, 12, 11)))
	require.NoError(t, check(11, known(10, 11, 10), known(10, 12, 11)), "the second one fails")
	require.NoError(t, check(12, &swap{compare: 10, value: 11}, known(11, 12, 11)), "one without a result was executed")
	require.NoError(t, check(10, &swap{compare: 10, value: 11}), "or not")
	require.Error(t, check(10, known(10, 11, 10)), "successful without effect")
	require.Error(t, check(11, known(10, 11, 10), known(10, 12, 10)), "both found the first value")
	require.Error(t, check(11, known(10, 11, 10), known(7, 12, 9)), "a value that never was")
	require.Error(t, check(11, known(10, 11, 10), known(7, 12, 10)), "a value of the time before its queue's last one")
	late := known(7, 12, 10)
	late.by = other
	require.NoError(t, check(11, known(10, 11, 10), late), "another queue's may have been first")
}

func TestSlot(t *testing.T) {
	memory := make([]byte, 256)
	p := &plot{bytes: memory, truth: make([]byte, 256), base: 1000}
	at := p.reserve(4)
	require.Equal(t, 16, at)
	s := p.slot(at, 4)
	require.NoError(t, p.check())
	first, second := s.write(0, []byte{1, 1, 1, 1}), s.write(2, []byte{2, 2})
	copy(s.bytes, []byte{1, 0, 2, 1})
	require.NoError(t, p.check(), "anything of the three versions")
	s.settle(first)
	require.ErrorContains(t, p.check(), "byte 1017,")
	s.bytes[1] = 1
	require.NoError(t, p.check())
	s.settle(second)
	require.ErrorContains(t, p.check(), "byte 1019,")
	s.bytes[3] = 2
	require.NoError(t, p.forget())
	s.bytes[0] = 9
	require.ErrorContains(t, p.check(), "nobody may write")
	s.bytes[0] = 1
	memory[p.next+4] = 1
	require.Error(t, p.check(), "a guard")
	memory[p.next+4] = 0
	for p.reserve(40) >= 0 {
	}
	require.Less(t, p.next, 256-guard+1)
}

// TestReadVersions: a READ returns what was written last when it was posted, or later, until a fence.
func TestReadVersions(t *testing.T) {
	source := &slot{bytes: make([]byte, 4), versions: []version{{data: []byte{0, 0, 0, 0}}}}
	oldest := source.write(0, []byte{1, 1, 1, 1})
	r := &read{source: source, offset: 1, oldest: oldest, newest: -1}
	into := &slot{bytes: make([]byte, 2), versions: []version{{data: []byte{7, 7}}}}
	number := into.expect(r, 1)
	for b, before := range map[byte]bool{0: false, 1: true, 2: false, 7: true} {
		into.bytes[0], into.bytes[1] = b, 1
		require.Equal(t, before, into.check() == nil, "%d", b)
	}
	_, ok := into.versions[number].known(2)
	require.False(t, ok)
	source.write(0, []byte{1, 1, 2, 3})
	copy(into.bytes, []byte{2, 1})
	require.NoError(t, into.check())
	r.newest = oldest
	require.Error(t, into.check())
	data, ok := into.versions[number].known(2)
	require.True(t, ok)
	require.Equal(t, []byte{1, 1}, data)
	require.Error(t, into.learn(number))
	copy(into.bytes, data)
	require.NoError(t, into.learn(number))
	require.Equal(t, uint64(1), wordAt(binary.NativeEndian.AppendUint64(nil, 1)))
}
