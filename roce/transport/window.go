package transport

// window bounds the frames in flight. RC itself leaves pacing open, but a sender that overruns the peer's receive
// ring loses up to 90 % of its frames, and go-back-N sends every one of them again. The
// window doubles per round trip until the first loss, then grows by a frame per round trip, and halves with each loss:
// additive increase, multiplicative decrease (RFC 5681), counted in frames.
type window struct {
	size, limit, threshold, least uint64
	credit                        uint64 // acknowledged frames that did not yet add up to a larger window
}

const (
	// DefaultWindow is the largest window. On veth 64 to 128 frames in flight already reach full speed, and no
	// frame is lost while the windows of all QPs together fit into the peer's fill ring.
	DefaultWindow = 64

	// Not measured: half of the largest, and just enough for a lost packet to be noticed by those behind it.
	initialWindow = 32

	// minimumWindow is what is left of it after losses, and what is sent to a peer without a receive until it has one:
	// so few that little is wasted, and enough for the next loss to be seen by what comes behind it. Not measured.
	minimumWindow = 4
)

func (w *window) start(limit uint64) {
	w.limit = limit
	w.size = min(initialWindow, w.limit)
	w.threshold = w.limit
	w.least = min(minimumWindow, w.limit)
	w.credit = 0
}

// acknowledged lets the window grow by progress of n frames.
func (w *window) acknowledged(n uint64) {
	if w.size < w.threshold {
		w.size = min(w.size+n, w.threshold)
		return
	}
	w.credit += n
	if w.credit >= w.size {
		w.credit = 0
		w.size = min(w.size+1, w.limit)
	}
}

// lost halves the window.
func (w *window) lost() {
	w.threshold = max(w.size/2, w.least)
	w.size = w.threshold
	w.credit = 0
}

// refused makes the window small, because the peer takes nothing of what is in flight for lack of a receive. It was no
// loss, so the window grows back as from the start.
func (w *window) refused() { w.size = min(w.size, minimumWindow) }

// ackInterval is how many packets may go without asking for an acknowledgement: often enough that the window
// opens in steps of a quarter.
func ackInterval(window uint64) uint64 { return max(window/4, 1) }

// windowControl is the congestion control by a window alone. It asks for no gap, and ignores marks and CNPs.
type windowControl struct{ window window }

func (c *windowControl) start(r *recovery, limit uint64) {
	c.window.start(limit)
	r.window, r.gap = c.window.size, 0
}

func (c *windowControl) acknowledged(r *recovery, _ Time, packets uint64) {
	c.window.acknowledged(packets)
	r.window = c.window.size
}

func (c *windowControl) lost(r *recovery, _ Time, _ loss) {
	c.window.lost()
	r.window = c.window.size
}

func (c *windowControl) refused(r *recovery, _ Time) {
	c.window.refused()
	r.window = c.window.size
}

func (c *windowControl) marked(*recovery, Time)   {}
func (c *windowControl) notified(*recovery, Time) {}
func (c *windowControl) expired(*recovery, Time)  {}
