package verbstest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/xroce/xroce/internal/lockorder"
	"github.com/xroce/xroce/internal/pcapng"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link/capture"
	"github.com/xroce/xroce/roce/link/mem"
)

// Fault is something that the network does to packets. Opcodes choose the packets by the names that counters have,
// "RC_SEND_ONLY" for one; "RC_RDMA_READ_RESPONSE*" is a pattern, and none stands for all.
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

// captureLimit bounds the packets that are kept, in bytes, so that a test that moves much does not fill the memory.
const captureLimit = 64 << 20

// wire is what happens to packets, and the file of them. It knows nothing of the network, under whose lock intercept
// runs.
type wire struct {
	mu     lockorder.Mutex[lockorder.Wire]
	random *rand.Rand
	rules  []rule
	silent []roce.MAC // of devices that were killed

	packets bytes.Buffer // in the format of the file
	out     *pcapng.Writer
	path    string // of the file, if somebody wanted it
}

func (w *wire) init(seed uint64) {
	w.random = rand.New(rand.NewPCG(seed, 0x66617573))
	w.out, _ = pcapng.NewWriter(&w.packets, pcapng.Interface{Name: "verbstest"}) // memory takes everything
}

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

// write keeps a frame for the file.
func (w *wire) write(frame []byte, comment string) {
	if w.packets.Len() < captureLimit {
		_ = w.out.WritePacket(&pcapng.Packet{At: now(), Direction: pcapng.Outbound, Data: [2][]byte{frame}, Comment: comment})
	}
}

// save writes the file.
func (w *wire) save() (path string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.path == "" {
		file, err := os.CreateTemp("", "verbstest-*.pcapng")
		if err != nil {
			return "", err
		}
		w.path = file.Name()
		if err := file.Close(); err != nil {
			return "", err
		}
	}
	return w.path, errors.Join(w.out.Flush(), os.WriteFile(w.path, w.packets.Bytes(), 0o600))
}

// discard removes the file, if there is one.
func (w *wire) discard() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.path == "" {
		return nil
	}
	return os.Remove(w.path)
}
