package simulation

import "github.com/xroce/xroce/roce"

// spread makes all packets of a queue pair arrive at a queue that has nothing to do with its flow label, as on a NIC
// with a hash of its own. Queue pairs then move, while everything else goes on. In half of the programs that have it
// the hash is one for the whole run, so that no packet overtakes another one, moves or not; in the others it becomes
// another one now and then.
type spread struct {
	phases    int // of the hash so far; 0 without a spread
	changes   bool
	moveAfter int
}

// drawSpread decides about the spread before the devices are made.
func (g *Program) drawSpread(queues int) {
	if queues == 1 || g.scatter && !g.chance(4) || g.chance(3) {
		return
	}
	g.spread = spread{phases: 1, changes: g.chance(2), moveAfter: []int{1, 2, 5, 20}[g.random.IntN(4)]}
	g.world.MoveAfter = g.spread.moveAfter
	g.setSpread()
}

// setSpread begins a phase.
func (g *Program) setSpread() {
	salt := g.random.Uint32() | 1
	g.world.Network.SetSpread(func(number roce.QPN) int {
		const none = 4 // one in so many goes by the sender's queue, and so changes with a move of the sender
		hash := (uint32(number) * salt) >> 16
		if g.spread.changes && hash%none == 0 {
			return -1
		}
		return int(hash / none & 3)
	})
}

// turnSpread changes the hash now and then.
func (g *Program) turnSpread() {
	if g.spread.changes && g.chance(100) {
		g.spread.phases++
		g.setSpread()
	}
}
