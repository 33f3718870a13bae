package driver

import (
	"fmt"
	"slices"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/roce"
)

// gids is the GID table: the addresses that the network device has right now, each at the index where it first
// appeared. An index never changes its meaning while its address is there or queue pairs use it; after that the slot is
// zero until a new address takes it, as in Linux (drivers/infiniband/core/cache.c).
type gids struct {
	mu    lockorder.Mutex[lockorder.GIDs]
	table []gidEntry
}

type gidEntry struct {
	gid     roce.GID // zero in a free slot
	present bool     // the network device has the address now
	users   int      // queue pairs whose address vector names the index
}

// update makes the table hold the addresses and returns a copy of it.
func (g *gids) update(present []roce.GID) []roce.GID {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.table {
		e := &g.table[i]
		if e.present = slices.Contains(present, e.gid); !e.present && e.users == 0 {
			e.gid = roce.GID{}
		}
	}
	for _, gid := range present {
		if g.find(gid) >= 0 {
			continue
		}
		entry := gidEntry{gid: gid, present: true}
		if free := g.find(roce.GID{}); free >= 0 {
			g.table[free] = entry
		} else {
			g.table = append(g.table, entry)
		}
	}
	list := make([]roce.GID, len(g.table))
	for i, e := range g.table {
		if e.present {
			list[i] = e.gid
		}
	}
	return list
}

func (g *gids) find(gid roce.GID) int {
	return slices.IndexFunc(g.table, func(e gidEntry) bool { return e.gid == gid })
}

// hold makes an index keep its meaning until release. It fails if the index means another GID by now.
func (g *gids) hold(index int, gid roce.GID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if index >= len(g.table) || g.table[index].gid != gid {
		return false
	}
	g.table[index].users++
	return true
}

func (g *gids) release(index int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table[index].users-- // whoever looks at the table next frees the slot if the address is gone
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
