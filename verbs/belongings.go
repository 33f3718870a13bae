package verbs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/xroce/xroce/internal/lockorder"
)

// kind is a kind of object, in the order in which Device.Close destroys them: what needs others goes before them.
type kind int

const (
	kindQP kind = iota
	kindSRQ
	kindMW
	kindMR
	kindCQ
	kindChannel
	kindPD
	kinds
)

// object is what a device has made.
type object interface {
	// destroy ends the object. It fails with ErrClosed if somebody else has done so.
	destroy() error
}

// belongings are the objects of a device.
type belongings struct {
	life   lockorder.RWMutex[lockorder.Life] // held by Close, and for reading by those who make or end something
	closed bool                              // guarded by life

	mu      lockorder.Mutex[lockorder.Belongings]
	objects [kinds]map[object]struct{}
}

// make makes an object, unless the device is closed or has as many as it can have. Close waits meanwhile.
func (d *Device) make(k kind, o object, create func() error) error {
	b := &d.belongings
	b.life.RLock()
	defer b.life.RUnlock()
	if b.closed {
		return d.closedError()
	}
	if err := b.add(k, o); err != nil {
		return err
	}
	if err := create(); err != nil {
		b.remove(k, o)
		return err
	}
	return nil
}

func (d *Device) closedError() error { return fmt.Errorf("device %s: %w", d.Name(), ErrClosed) }

// names of objects, and how many of a kind there may be where nobody below counts them.
var kindNames = [kinds]struct {
	name string
	most int
}{
	kindQP: {name: "QP"}, kindSRQ: {name: "SRQ"}, kindMW: {"memory window", MaxMW}, kindMR: {"memory region", MaxMR},
	kindCQ: {name: "CQ"}, kindChannel: {name: "completion channel"}, kindPD: {"protection domain", MaxPD},
}

func (b *belongings) add(k kind, o object) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if limit := kindNames[k]; limit.most > 0 && len(b.objects[k]) >= limit.most {
		return fmt.Errorf("%w: %s number %d, the device has %d", ErrLimit, limit.name, len(b.objects[k])+1, limit.most)
	}
	if b.objects[k] == nil {
		b.objects[k] = make(map[object]struct{})
	}
	b.objects[k][o] = struct{}{}
	return nil
}

// end destroys an object for the program. Close waits meanwhile: an object gives up what it uses bit by bit, and what it
// has not given up yet would be in use. A memory region does without it: its own lock is held until its domain has let
// go of it.
func (d *Device) end(o object) error {
	d.belongings.life.RLock()
	defer d.belongings.life.RUnlock()
	return o.destroy()
}

// remove forgets an object that is destroyed.
func (b *belongings) remove(k kind, o object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects[k], o)
}

// destroy destroys all objects. The caller holds life, so that none is added.
func (b *belongings) destroy() error {
	var failures []error
	for k := range kinds {
		b.mu.Lock()
		list := slices.Collect(maps.Keys(b.objects[k]))
		b.mu.Unlock()
		for _, o := range list {
			if err := o.destroy(); !errors.Is(err, ErrClosed) {
				failures = append(failures, err)
			}
		}
	}
	return errors.Join(failures...)
}

// inUse says with ErrInUse what there is, if anything is.
func (b *belongings) inUse() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []string
	for k := range kinds {
		if n := len(b.objects[k]); n > 0 {
			found = append(found, fmt.Sprintf("%d %ss", n, kindNames[k].name))
		}
	}
	if found == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInUse, strings.Join(found, ", "))
}
