package transport

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
)

var allStates = []State{StateReset, StateInit, StateRTR, StateRTS, StateSQD, StateError}

// valid are attributes of which each is in range.
func valid() Attributes {
	return Attributes{
		Port: 1, Access: memory.RemoteRead, PathMTU: roce.MTU1024, DestinationQPN: 5, RQPSN: 1, SQPSN: 2,
		MaxRDAtomic: 3, MaxDestRDAtomic: 4, MinRNRTimer: 5, Timeout: 14, RetryCount: 6, RNRRetry: 7,
	}
}

type noReceives struct{}

func (noReceives) Take(*queue.RecvWR) (found, valid bool) { return false, false }

func (noReceives) Waiting() int { return 0 }
func (noReceives) Discard()     {}

// fullCQ has no room.
type fullCQ struct{}

func (fullCQ) Complete(*queue.WC, bool) bool { return false }

// newQP makes a queue pair with empty queues.
func newQP(t require.TestingT, e *Engine) *QP {
	layout := queue.SendLayout(4, 1, 0)
	ring, err := queue.New(layout)
	require.NoError(t, err)
	send, err := queue.NewConsumer(ring, layout)
	require.NoError(t, err)
	q, err := NewQP(Config{
		QPN: 0x1234, Type: RC, Domain: new(memory.Domain), Send: send, Receive: noReceives{}, SendCQ: fullCQ{}, RecvCQ: fullCQ{},
		MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	require.NoError(t, err)
	q.Attach(e)
	return q
}

// in makes a queue pair that is in a state.
func in(t require.TestingT, state State) *QP {
	q := newQP(t, NewEngine(memory.NewTable(1).NewUser()))
	a := valid()
	for _, step := range []struct {
		to   State
		mask AttributeMask
	}{
		{StateInit, MaskPKeyIndex | MaskPort | MaskAccess},
		{StateRTR, MaskAV | MaskPathMTU | MaskDestinationQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer},
		{StateRTS, MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic},
		{StateSQD, 0},
		{StateError, 0},
	} {
		if q.State() == state {
			return q
		}
		if state == StateError && q.State() == StateInit {
			step.to, step.mask = StateError, 0
		}
		a.State = step.to
		require.NoError(t, q.Modify(1, &a, MaskState|step.mask))
	}
	require.Equal(t, state, q.State())
	return q
}

// table is qp_state_table of drivers/infiniband/core/verbs.c for RC, without what RoCE does not have. What is not in it
// does not exist.
var table = map[[2]State]struct{ required, optional AttributeMask }{
	{StateReset, StateReset}: {},
	{StateReset, StateInit}:  {required: MaskPKeyIndex | MaskPort | MaskAccess},
	{StateInit, StateReset}:  {},
	{StateInit, StateError}:  {},
	{StateInit, StateInit}:   {optional: MaskPKeyIndex | MaskPort | MaskAccess},
	{StateInit, StateRTR}: {
		required: MaskAV | MaskPathMTU | MaskDestinationQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer,
		optional: MaskAccess | MaskPKeyIndex,
	},
	{StateRTR, StateReset}: {},
	{StateRTR, StateError}: {},
	{StateRTR, StateRTS}: {
		required: MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic,
		optional: MaskCurrentState | MaskAccess | MaskMinRNRTimer,
	},
	{StateRTS, StateReset}: {},
	{StateRTS, StateError}: {},
	{StateRTS, StateRTS}:   {optional: MaskCurrentState | MaskAccess | MaskMinRNRTimer},
	{StateRTS, StateSQD}:   {optional: MaskEnSQDNotify},
	{StateSQD, StateRTS}:   {optional: MaskCurrentState | MaskAccess | MaskMinRNRTimer},
	{StateSQD, StateSQD}: {
		optional: MaskPort | MaskAV | MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskMaxRDAtomic | MaskMaxDestRDAtomic |
			MaskAccess | MaskPKeyIndex | MaskMinRNRTimer,
	},
	{StateSQD, StateReset}:   {},
	{StateSQD, StateError}:   {},
	{StateError, StateReset}: {},
	{StateError, StateError}: {},
}

// eachBit calls f with every attribute there is but STATE.
func eachBit(f func(bit AttributeMask)) {
	for _, n := range maskNames {
		if n.Bit != MaskState {
			f(n.Bit)
		}
	}
	f(1 << 18) // PATH_MIG_STATE, unknown here
}

// TestTransitions tries every transition: with the required attributes, with each of them missing, and with each other
// one on top. A refusal changes nothing.
func TestTransitions(t *testing.T) {
	for _, from := range allStates {
		for _, to := range append(allStates, StateSQE, 200) {
			t.Run(fmt.Sprintf("%v to %v", from, to), func(t *testing.T) {
				row, exists := table[[2]State{from, to}]
				try := func(mask AttributeMask) error {
					q := in(t, from)
					before := q.Attributes()
					a := valid()
					a.State, a.CurrentState = to, from
					err := q.Modify(1, &a, MaskState|mask)
					if err != nil {
						require.Equal(t, before, q.Attributes())
						require.ErrorIs(t, err, ErrTransition)
					} else {
						require.Equal(t, to, q.State())
					}
					return err
				}
				if !exists {
					require.Error(t, try(0))
					require.Error(t, try(MaskPKeyIndex|MaskPort|MaskAccess))
					return
				}
				require.NoError(t, try(row.required))
				require.NoError(t, try(row.required|row.optional))
				support.Transition(t, from, to, nil, "")
				eachBit(func(bit AttributeMask) {
					switch {
					case row.required&bit != 0:
						require.ErrorContains(t, try(row.required&^bit), bit.String())
						support.Transition(t, from, to, bit, "required")
					case row.optional&bit != 0:
						require.NoError(t, try(row.required|bit))
						support.Transition(t, from, to, bit, "optional")
					default:
						require.ErrorContains(t, try(row.required|bit), bit.String())
					}
				})
			})
		}
	}
}

// TestModifyWithoutState changes attributes in place.
func TestModifyWithoutState(t *testing.T) {
	q := in(t, StateRTS)
	a := Attributes{Access: memory.RemoteWrite, MinRNRTimer: 9}
	require.NoError(t, q.Modify(1, &a, MaskAccess|MaskMinRNRTimer))
	require.Equal(t, memory.RemoteWrite, q.Attributes().Access)
	require.Equal(t, uint8(9), q.Attributes().MinRNRTimer)
	require.ErrorIs(t, q.Modify(1, &a, MaskTimeout), ErrTransition)
	require.ErrorIs(t, in(t, StateReset).Modify(1, &a, MaskAccess), ErrTransition)
}

// TestCurrentState: the user may say in which state he believes the queue pair to be.
func TestCurrentState(t *testing.T) {
	q := in(t, StateRTS)
	require.NoError(t, q.Modify(1, &Attributes{CurrentState: StateRTS}, MaskCurrentState))
	err := q.Modify(1, &Attributes{CurrentState: StateRTR}, MaskCurrentState)
	require.ErrorIs(t, err, ErrTransition)
	require.ErrorContains(t, err, "RTR")
	require.ErrorContains(t, err, "RTS")
}

// TestRanges: every attribute at its limit, and one beyond.
func TestRanges(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(a *Attributes, beyond bool)
	}{
		{"PKEY_INDEX", func(a *Attributes, beyond bool) { a.PKeyIndex = pick[uint16](beyond, 0, 1) }},
		{"PORT", func(a *Attributes, beyond bool) { a.Port = pick[uint8](beyond, 1, 2) }},
		{"PORT", func(a *Attributes, beyond bool) { a.Port = pick[uint8](beyond, 1, 0) }},
		{"PATH_MTU", func(a *Attributes, beyond bool) { a.PathMTU = pick(beyond, roce.MTU4096, 6) }},
		{"PATH_MTU", func(a *Attributes, beyond bool) { a.PathMTU = pick[roce.MTU](beyond, roce.MTU256, 0) }},
		{"DEST_QPN", func(a *Attributes, beyond bool) { a.DestinationQPN = pick[roce.QPN](beyond, 1<<24-1, 1<<24) }},
		{"TIMEOUT", func(a *Attributes, beyond bool) { a.Timeout = pick[uint8](beyond, 31, 32) }},
		{"MIN_RNR_TIMER", func(a *Attributes, beyond bool) { a.MinRNRTimer = pick[uint8](beyond, 31, 32) }},
		{"RETRY_CNT", func(a *Attributes, beyond bool) { a.RetryCount = pick[uint8](beyond, 7, 8) }},
		{"RNR_RETRY", func(a *Attributes, beyond bool) { a.RNRRetry = pick[uint8](beyond, 7, 8) }},
		{"MAX_QP_RD_ATOMIC", func(a *Attributes, beyond bool) { a.MaxRDAtomic = pick[uint8](beyond, 128, 129) }},
		{"MAX_DEST_RD_ATOMIC", func(a *Attributes, beyond bool) { a.MaxDestRDAtomic = pick[uint8](beyond, 128, 129) }},
		{"ACCESS_FLAGS", func(a *Attributes, beyond bool) { a.Access = pick[memory.Access](beyond, 0x31F, 0x20) }},
	} {
		var bit AttributeMask
		for _, n := range maskNames {
			if n.Name == c.name {
				bit = n.Bit
			}
		}
		for key, row := range table {
			if (row.required|row.optional)&bit == 0 {
				continue
			}
			for _, beyond := range []bool{false, true} {
				q := in(t, key[0])
				a := valid()
				a.State = key[1]
				c.set(&a, beyond)
				before := q.Attributes()
				err := q.Modify(1, &a, MaskState|row.required|bit)
				if !beyond {
					require.NoError(t, err, "%s, %v", c.name, key)
					continue
				}
				require.ErrorIs(t, err, ErrAttribute)
				require.ErrorContains(t, err, c.name)
				require.Equal(t, before, q.Attributes())
				support.Limit(t, c.name, err)
			}
		}
	}
}

func pick[T any](beyond bool, limit, over T) T {
	if beyond {
		return over
	}
	return limit
}

// TestPSNsAreMasked: the upper 8 bits of a PSN mean nothing, as in Linux.
func TestPSNsAreMasked(t *testing.T) {
	q := in(t, StateInit)
	a := valid()
	a.State, a.RQPSN = StateRTR, 0xAB000001
	require.NoError(t, q.Modify(1, &a, MaskState|table[[2]State{StateInit, StateRTR}].required))
	a.State, a.SQPSN = StateRTS, 0xFF000002
	require.NoError(t, q.Modify(1, &a, MaskState|table[[2]State{StateRTR, StateRTS}].required))
	require.Equal(t, roce.PSN(1), q.Attributes().RQPSN)
	require.Equal(t, roce.PSN(2), q.Attributes().SQPSN)
}

// TestResetForgets: after RESET a queue pair is as it was made.
func TestResetForgets(t *testing.T) {
	for _, from := range allStates {
		q := in(t, from)
		require.NoError(t, q.Modify(1, &Attributes{State: StateReset}, MaskState))
		require.Equal(t, Attributes{}, q.Attributes())
		require.Equal(t, queue.WC{}, q.Failure())
		require.Equal(t, roce.SyndromeNone, q.Status().LastSyndrome)
		require.True(t, q.engine.Idle())
	}
}

func TestMaskNames(t *testing.T) {
	total := AttributeMask(0)
	for _, n := range maskNames {
		require.Equal(t, 1, bits.OnesCount32(uint32(n.Bit)))
		require.Zero(t, total&n.Bit)
		require.Equal(t, n.Name, n.Bit.String())
		total |= n.Bit
	}
	require.Equal(t, "STATE|PORT|0x80000000", (MaskState | MaskPort | 1<<31).String())
	require.Equal(t, AttributeMask(1<<20), MaskDestinationQPN, "as in enum ibv_qp_attr_mask")
	require.Equal(t, AttributeMask(1<<17), MaskMaxDestRDAtomic)
	require.Equal(t, AttributeMask(1<<13), MaskMaxRDAtomic)
}

func TestOnlyRC(t *testing.T) {
	_, err := NewQP(Config{Type: 3})
	require.ErrorContains(t, err, "QP type 3")
}
