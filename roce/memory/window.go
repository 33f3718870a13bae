package memory

// Bind names the part of a region that a window is to show.
type Bind struct {
	Window  uint32 // the rkey that the window gets: the upper 24 bits name the window, the low 8 bits are free to choose
	Region  uint32 // lkey of the region
	Address uint64 // of the first byte, as the region counts
	Length  uint64 // in bytes; 0 unbinds a type 1 window and is an error with type 2
	// Access is any of the remote rights, whether the region grants them or not, and for type 2 ZeroBased: the window's
	// addresses start at 0 then, otherwise they are the region's.
	Access Access
}

// Bind makes a window show a part of a region that has BindWindow, and LocalWrite if the window gets RemoteWrite or
// RemoteAtomic. A type 1 window may be bound already: when Bind returns, no access through its old key is under way and
// none will begin. A type 2 window must be free, and works for p's queue pair only. A fault leaves everything as it
// was.
func (u *User) Bind(p *Principal, b Bind) Fault {
	t := u.table
	t.mu.Lock()
	defer t.mu.Unlock()
	a, fault := t.find(p, b.Window)
	if fault != FaultNone {
		return fault
	}
	if a.kind == KindFast || a.kind == KindWindow2 && a.region != nil {
		return FaultState
	}
	if a.kind == KindWindow1 && b.Length == 0 {
		a.set(nil)
		return FaultNone
	}
	window, fault := t.newWindow(p, a.kind, b)
	if fault != FaultNone {
		return fault
	}
	window.parent.bound++
	a.set(window)
	return FaultNone
}

// newWindow checks what a binding asks for, and makes the region of it.
func (t *Table) newWindow(p *Principal, kind Kind, b Bind) (*Region, Fault) {
	access := b.Access &^ optionalAccess
	legal := windowAccess
	if kind == KindWindow2 {
		legal |= ZeroBased
	}
	need := BindWindow
	if access&(RemoteWrite|RemoteAtomic) != 0 {
		need |= LocalWrite
	}
	parent := t.lookup(b.Region)
	if parent == nil {
		return nil, FaultKey
	}
	switch fault := parent.check(p, need, b.Address, b.Length); {
	case fault != FaultNone:
		return nil, fault
	case access&^legal != 0, parent.access&ZeroBased != 0:
		return nil, FaultAccess
	case b.Length == 0:
		return nil, FaultBounds
	}
	offset := b.Address - parent.start
	window := &Region{
		key: b.Window, kind: kind, domain: p.Domain, access: access, start: b.Address,
		buffer: parent.buffer[offset : offset+b.Length : offset+b.Length], parent: parent,
	}
	if kind == KindWindow2 {
		window.owner = p
	}
	if access&ZeroBased != 0 {
		window.start = 0
	}
	return window, FaultNone
}
