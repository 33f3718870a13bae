package simulation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/xroce/xroce/internal/opener"
	"github.com/xroce/xroce/roce/link/mem"
	"github.com/xroce/xroce/verbs"
)

const (
	librarySize = 1 << 16
	plotSize    = 1 << 17
	scratchSize = maxInline
)

// end is one device with what all its connections share.
type end struct {
	device *verbs.Device
	pd     *verbs.PD
	cqs    []*verbs.CQ
	memory []byte
	// The library is what is sent, and what READs ask for: bytes that nobody may change. It is registered twice, once
	// without the right to write.
	library  *slot
	scratch  []byte // inline data, which is overwritten as soon as it was posted
	arena    *verbs.MR
	readOnly *verbs.MR
	commons  *verbs.MR
	plots    [][]byte
}

// noise is where memory gets its first contents from.
var noise = func() []byte {
	random := rand.New(rand.NewPCG(7, 7))
	b := make([]byte, 1<<21)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], random.Uint64())
	}
	return b
}()

const everyRight = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic |
	verbs.AccessMWBind | verbs.AccessFlushGlobal

// newCommons makes the words that all atomics of both devices hit.
func (g *Program) newCommons() []byte {
	b := make([]byte, 2*words*8)
	for i := range words {
		add, swap := b[8*i:8*i+8], b[8*(words+i):8*(words+i)+8]
		binary.NativeEndian.PutUint64(add, g.random.Uint64())
		binary.NativeEndian.PutUint64(swap, g.random.Uint64())
		g.adders = append(g.adders, &adder{
			value: func() uint64 { return wordAt(add) }, initial: wordAt(add), before: make(map[int]uint64),
		})
		g.swappers = append(g.swappers, &swapper{value: func() uint64 { return wordAt(swap) }, initial: wordAt(swap)})
	}
	return b
}

func (g *Program) newEnd(seed uint64, o mem.DeviceOptions, window, connections int, commons []byte) (*end, error) {
	device, err := g.world.AddDevice(seed, o, window)
	if err != nil {
		return nil, err
	}
	pd, err := device.AllocPD()
	if err != nil {
		return nil, err
	}
	e := &end{device: device, pd: pd, memory: make([]byte, librarySize+connections*plotSize+scratchSize)}
	copy(e.memory, noise[8*g.random.IntN(1<<16):])
	e.library = &slot{bytes: e.memory[:librarySize]}
	e.library.versions = []version{{data: append([]byte(nil), e.library.bytes...)}}
	for i := range connections {
		e.plots = append(e.plots, e.memory[librarySize+i*plotSize:][:plotSize])
	}
	e.scratch = e.memory[len(e.memory)-scratchSize:]
	// Addresses are part of what goes over the wire, and a run must not depend on where the allocator put the buffer.
	for _, r := range []struct {
		region **verbs.MR
		buffer []byte
		access verbs.AccessFlags
	}{
		{&e.arena, e.memory, everyRight}, {&e.readOnly, e.library.bytes, verbs.AccessRemoteRead}, {&e.commons, commons, everyRight},
	} {
		if *r.region, err = pd.RegMRIOVA(r.buffer, g.address(), r.access); err != nil {
			return nil, err
		}
	}
	for range 1 + g.random.IntN(3) {
		cq, err := device.CreateCQ(verbs.CQInitAttr{CQE: 1024})
		if err != nil {
			return nil, err
		}
		e.cqs = append(e.cqs, cq)
	}
	return e, nil
}

// address draws an address for a region, which no other one is near to.
func (g *Program) address() uint64 { return g.random.Uint64N(1<<40)<<20 + g.random.Uint64N(1<<10)<<3 }

func (e *end) check() error {
	if err := e.library.check(); err != nil {
		return fmt.Errorf("library: %w", err)
	}
	return nil
}

func (e *end) close() error {
	for _, cq := range e.cqs {
		if err := cq.Destroy(); err != nil {
			return err
		}
	}
	for _, m := range []*verbs.MR{e.arena, e.readOnly, e.commons} {
		if err := m.Dereg(); err != nil {
			return err
		}
	}
	if err := e.pd.Dealloc(); err != nil {
		return err
	}
	if err := opener.InUse(e.device); err != nil {
		return err
	}
	return e.device.Close()
}

// A work request's ID names what it belongs to, so that queue pairs can share completion queues.
const receiveID = 1 << 63

func workID(flow, life, index int) uint64 { return uint64(flow)<<48 | uint64(life)<<32 | uint64(index) }

// poll takes completions out of a queue and gives each to its flow.
func (g *Program) poll(e *end, cq *verbs.CQ, most int) (n int, err error) {
	var wcs [8]verbs.WC
	if n, err = cq.Poll(wcs[:most]); err != nil {
		return 0, err
	}
	for _, wc := range wcs[:n] {
		number := int(wc.WRID&^receiveID) >> 48
		if number >= 2*len(g.connections) {
			return n, fmt.Errorf("completion of nothing: %+v", wc)
		}
		c := g.connections[number/2]
		f := c.flows[number%2]
		at, complete := f.from, f.complete
		if wc.WRID&receiveID != 0 {
			at, complete = f.to, f.receive
		}
		switch life := int(wc.WRID>>32) & 0xFFFF; {
		case life != c.life:
			err = fmt.Errorf("a completion of life %d in life %d", life, c.life)
		case at.gone:
			err = errors.New("a completion after RESET")
		case at.end != e || wc.QPN != at.qp.QPN():
			err = fmt.Errorf("a completion at the wrong queue pair")
		default:
			err = complete(&wc)
		}
		if err != nil {
			return n, fmt.Errorf("%s: %+v: %w", f.name, wc, err)
		}
	}
	return n, nil
}

// drain polls until nothing is left.
func (g *Program) drain() error {
	for _, e := range g.ends {
		for _, cq := range e.cqs {
			for more := true; more; {
				n, err := g.poll(e, cq, 8)
				if err != nil {
					return err
				}
				more = n > 0
			}
		}
	}
	return nil
}
