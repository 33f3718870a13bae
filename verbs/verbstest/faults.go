package verbstest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/xroce/xroce/internal/pcapng"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/capture"
	"github.com/xroce/xroce/roce/link/mem"
)

// Fault is something that the network does to packets. Opcodes choose the packets by the names that counters have, "RC_SEND_ONLY" for
// one; "RC_RDMA_READ_RESPONSE*" is a pattern, and none stands for all.
type Fault struct {
	what    string
	odds    float64 // of each packet
	nth     int     // or the one packet, from 1 on
	opcodes []string
}

// Drop loses packets at random: odds is 0 to 1.
func Drop(odds float64, opcodes ...string) Fault {
	return Fault{what: dropped, odds: odds, opcodes: opcodes}
}

// Duplicate has packets arrive twice at random.
func Duplicate(odds float64, opcodes ...string) Fault {
	return Fault{what: duplicated, odds: odds, opcodes: opcodes}
}

// Reorder has packets arrive behind the next one at random.
func Reorder(odds float64, opcodes ...string) Fault {
	return Fault{what: overtaken, odds: odds, opcodes: opcodes}
}

// DropNth loses one packet, the n-th of those that the opcodes choose, from 1 on.
func DropNth(n int, opcodes ...string) Fault { return Fault{what: dropped, nth: n, opcodes: opcodes} }

// DuplicateNth is DropNth for a packet that arrives twice.
func DuplicateNth(n int, opcodes ...string) Fault {
	return Fault{what: duplicated, nth: n, opcodes: opcodes}
}

// ReorderNth is DropNth for a packet that arrives behind the next one.
func ReorderNth(n int, opcodes ...string) Fault {
	return Fault{what: overtaken, nth: n, opcodes: opcodes}
}

// The comments on packets.
const (
	dropped    = "dropped"
	duplicated = "duplicated"
	overtaken  = "arrives behind the next one"
	ofKilled   = "of a device that was killed"
)

// Faults replaces the faults of the network from now on; none ends them. Counts of packets begin anew.
func (n *Network) Faults(faults ...Fault) {
	n.t.Helper()
	rules := make([]rule, len(faults))
	for i, f := range faults {
		opcodes, err := capture.Opcodes(f.opcodes)
		if err == nil && (f.odds < 0 || f.odds > 1 || f.nth < 0 || f.nth == 0 && f.odds == 0) {
			err = fmt.Errorf("odds %v are not in 0..1, or there is no packet number %d", f.odds, f.nth)
		}
		if err != nil {
			n.t.Fatalf("verbstest: fault: %v", err)
		}
		rules[i] = rule{Fault: f, opcodes: opcodes}
	}
	n.wire.mu.Lock()
	defer n.wire.mu.Unlock()
	n.wire.rules = rules
}

// rule is a fault at work.
type rule struct {
	Fault
	opcodes []roce.Opcode
	seen    int
}

// meets counts a packet and says whether the fault is its.
func (r *rule) meets(p *roce.Packet, random *rand.Rand) bool {
	if p == nil || len(r.opcodes) > 0 && !slices.Contains(r.opcodes, p.Opcode) {
		return false
	}
	if r.seen++; r.nth > 0 {
		return r.seen == r.nth
	}
	return random.Float64() < r.odds
}

// captureLimit bounds the file, so that a test that moves much does not fill the disk.
const captureLimit = 256 << 20

// wire is what happens to packets, and the file of them. It knows nothing of the network, under whose lock intercept runs.
type wire struct {
	mu     sync.Mutex
	random *rand.Rand
	rules  []rule
	silent []roce.MAC // of devices that were killed

	file   *os.File
	out    *pcapng.Writer
	bytes  int
	failed error
}

func (w *wire) init(seed uint64) { w.random = rand.New(rand.NewPCG(seed, 0x66617573)) }

func (w *wire) silence(mac roce.MAC) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = append(w.silent, mac)
}

// intercept decides the fate of a frame.
func (w *wire) intercept(frame []byte, p *roce.Packet) (v mem.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var fate []string
	for i := range w.rules {
		if r := &w.rules[i]; r.meets(p, w.random) {
			fate = append(fate, r.what)
			v.Drop = v.Drop || r.what == dropped
			v.Duplicate = v.Duplicate || r.what == duplicated
			v.Late = v.Late || r.what == overtaken
		}
	}
	if slices.Contains(w.silent, roce.MAC(frame[6:12])) {
		fate, v.Drop = append(fate, ofKilled), true
	}
	w.write(frame, strings.Join(fate, ", "))
	return v
}

// write adds a frame to the file.
func (w *wire) write(frame []byte, comment string) {
	if w.bytes += len(frame); w.failed != nil || w.bytes > captureLimit {
		return
	}
	if w.failed = w.open(); w.failed == nil {
		w.failed = w.out.WritePacket(&pcapng.Packet{
			At: now(), Direction: pcapng.Outbound, Data: [2][]byte{frame}, Comment: comment,
		})
	}
}

func (w *wire) open() (err error) {
	if w.file != nil {
		return nil
	}
	if w.file, err = os.CreateTemp("", "verbstest-*.pcapng"); err == nil {
		w.out, err = pcapng.NewWriter(w.file, pcapng.Interface{Name: "verbstest"})
	}
	return err
}

func (w *wire) flush() (path string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		w.failed = w.open()
	}
	if w.failed == nil {
		w.failed = w.out.Flush()
	}
	if w.failed != nil {
		return "", w.failed
	}
	return w.file.Name(), nil
}

// end closes the file, and removes it unless it is to be kept.
func (w *wire) end(keep bool) (path string, err error) {
	path, err = w.flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return path, err
	}
	err = errors.Join(err, w.file.Close())
	if !keep {
		err = errors.Join(err, os.Remove(w.file.Name()))
	}
	return path, err
}
