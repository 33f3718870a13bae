package driver

import (
	"fmt"
	"slices"
	"sync"

	"github.com/xroce/xroce/roce"
)

// gids is the GID table: the addresses that the network device has right now, each at the index where it first
// appeared. An index never changes its meaning while its address is there; the slot of one that went away is
// zero until a new address takes it, as in Linux (drivers/infiniband/core/cache.c).
type gids struct {
	mu    sync.Mutex
	table []roce.GID
}

// update makes the table hold the addresses and returns a copy of it.
func (g *gids) update(present []roce.GID) []roce.GID {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, gid := range g.table {
		if !slices.Contains(present, gid) {
			g.table[i] = roce.GID{}
		}
	}
	for _, gid := range present {
		if slices.Contains(g.table, gid) {
			continue
		}
		if free := slices.Index(g.table, roce.GID{}); free >= 0 {
			g.table[free] = gid
		} else {
			g.table = append(g.table, gid)
		}
	}
	return slices.Clone(g.table)
}

// GIDs returns the GID table as it is now. Slots without an address are zero.
func (d *Device) GIDs() ([]roce.GID, error) {
	addresses, err := d.link.Addresses()
	if err != nil {
		return nil, err
	}
	present := make([]roce.GID, len(addresses))
	for i, a := range addresses {
		present[i] = roce.GIDFromAddr(a)
	}
	return d.gids.update(present), nil
}

// GID returns one entry of the GID table.
func (d *Device) GID(index int) (roce.GID, error) {
	table, err := d.GIDs()
	if err != nil {
		return roce.GID{}, err
	}
	name := d.link.Information().Name
	if index < 0 || index >= len(table) {
		return roce.GID{}, fmt.Errorf("%w: index %d, %s has %d", ErrNoGID, index, name, len(table))
	}
	if table[index].IsZero() {
		return roce.GID{}, fmt.Errorf("%w: the address of index %d is not on %s any more", ErrNoGID, index, name)
	}
	return table[index], nil
}
