package verbs

import (
	"fmt"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce/memory"
)

// MWType is the type of a memory window; the values are those of enum ibv_mw_type.
type MWType uint8

// Types of memory windows.
const (
	// MWType1 is usable by every queue pair of its protection domain and may be bound anew at any time.
	MWType1 MWType = 1
	// MWType2 is usable by the queue pair only that bound it (type 2B), and is invalidated before it is bound anew.
	MWType2 MWType = 2
)

var mWTypeNames = [...]string{
	MWType1: "type 1",
	MWType2: "type 2",
}

func (t MWType) String() string {
	if int(t) < len(mWTypeNames) && mWTypeNames[t] != "" {
		return mWTypeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// MarshalText returns the text of String, for logs and JSON.
func (t MWType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (t *MWType) UnmarshalText(text []byte) error { return enum.Parse(t, text) }

// MW is a memory window: a key to a part of a region, opened and closed by work requests. All methods may be called
// concurrently.
type MW struct {
	pd         *PD
	kind       MWType
	allocation *memory.Allocation

	mu   lockorder.Mutex[lockorder.MW]
	key  uint32
	dead bool
}

// AllocMW makes a window, which opens nothing until it is bound.
func (p *PD) AllocMW(t MWType) (*MW, error) {
	kind := memory.KindWindow1
	switch t {
	case MWType1:
	case MWType2:
		kind = memory.KindWindow2
	default:
		return nil, fmt.Errorf("MW: %w: type %d, there are 1 and 2", ErrInvalid, t)
	}
	m := &MW{pd: p, kind: t}
	err := p.make(kindMW, m, func() (err error) {
		if m.allocation, err = p.device.driver.Memory().Allocate(&p.domain, kind, 0); err == nil {
			m.key = m.allocation.Key()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *MW) check() error {
	if m == nil || m.allocation == nil {
		return fmt.Errorf("MW: %w: nil, or not made by AllocMW", ErrInvalid)
	}
	return nil
}

// RKey is the key that the last BindMW whose post succeeded gave the window; it opens nothing before the binding was
// executed, and never if that failed.
func (m *MW) RKey() uint32 {
	must(m.check())
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.key
}

// Type is the window's type.
func (m *MW) Type() MWType {
	must(m.check())
	return m.kind
}

// Dealloc destroys the window. When it returns, no access through it is under way.
func (m *MW) Dealloc() error {
	if err := m.check(); err != nil {
		return err
	}
	return m.pd.device.end(m)
}

func (m *MW) destroy() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return fmt.Errorf("MW: %w", ErrClosed)
	}
	if err := m.allocation.Free(); err != nil {
		return err
	}
	m.dead = true
	m.pd.remove(kindMW, m)
	return nil
}

// InvalidateWR makes the work request that closes a window of type 2.
func (m *MW) InvalidateWR() SendWR { return SendWR{Opcode: WRLocalInv, InvalidateRKey: m.RKey()} }

// MWBind says what a window is bound to.
type MWBind struct {
	WRID   uint64
	Flags  SendFlags
	MR     *MR    // with AccessMWBind
	Addr   uint64 // of the first byte: an address like MR.Addr(), not an offset
	Length uint64 // bytes; 0 unbinds a window of type 1
	// Access is any of the remote rights; type 2 windows take AccessZeroBased, too.
	Access AccessFlags
}

// shares tells objects that the queue pairs of a protection domain can name by their keys from those that they cannot.
// On another device the key of a window names something else.
func (p *PD) shares(other *PD, what string) error {
	switch {
	case other == nil || other.device != p.device:
		return fmt.Errorf("MW: %w: the %s belongs to another device than the QP", ErrInvalid, what)
	case other != p:
		return fmt.Errorf("MW: %w: the %s belongs to another PD than the QP", ErrInvalid, what)
	}
	return nil
}

// BindMW posts the work request that binds the window. It gives the window the key after its last one, which RKey
// returns from then on; requests posted to this queue pair afterwards may already carry it. Programs that choose keys
// themselves post a SendWR with WRBindMW.
func (q *QP) BindMW(m *MW, b MWBind) error {
	for _, err := range []error{q.check(), m.check()} {
		if err != nil {
			return err
		}
	}
	if b.Length > 0 || m.kind == MWType2 || b.MR != nil {
		if err := b.MR.check(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return fmt.Errorf("MW: %w", ErrClosed)
	}
	if err := q.pd.shares(m.pd, "window"); err != nil {
		return err
	}
	if b.MR != nil {
		b.MR.mu.Lock()
		pd, dead := b.MR.pd, b.MR.dead
		b.MR.mu.Unlock()
		if dead {
			return fmt.Errorf("MR: %w", ErrClosed)
		}
		if err := q.pd.shares(pd, "region"); err != nil {
			return err
		}
	}
	lkey := uint32(0) // without a region a window of type 1 is unbound
	if b.MR != nil {
		lkey = b.MR.LKey()
	}
	key := IncRKey(m.key)
	err := q.PostSend(SendWR{
		WRID: b.WRID, Opcode: WRBindMW, Flags: b.Flags, RKey: key,
		Bind: BindInfo{LKey: lkey, Access: b.Access, Addr: b.Addr, Length: b.Length},
	})
	if err == nil {
		m.key = key
	}
	return err
}
