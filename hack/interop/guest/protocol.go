//go:build linux

package guest

// The two ends of a cell, whatever they are made of, are processes that obey commands: a line of JSON on standard
// input for each, and a line with the answer on standard output. peer.go is the end made of xroce, peer.py that of
// rdma_rxe; they know the same commands and decide nothing.
//
// Contents of regions come from one file of random bytes (patternFile), which both ends map: so what is to be where
// is said by offsets, and compared byte by byte.

// command is what an end is to do. Fields that its verb (Do) does not name are zero.
type command struct {
	Do string `json:"do"`

	// open: the device of that name. Copy asks xroce for "copy" or "zero" copy, Mode for "native" or "generic",
	// MultiBuffer for "on" or "off".
	Device      string `json:"device,omitempty"`
	Copy        string `json:"copy,omitempty"`
	Mode        string `json:"mode,omitempty"`
	MultiBuffer string `json:"multi_buffer,omitempty"`

	// create: a region of Length bytes, a CQ and a queue pair, at the address. Access is what the peer may do.
	Address string   `json:"address,omitempty"`
	Length  int      `json:"length,omitempty"`
	Access  []string `json:"access,omitempty"` // read, write, atomic, flush
	// Special is an operation that rdma-core has in its extended queue pairs only: atomic write or FLUSH.
	Special string `json:"special,omitempty"`

	// connect
	Remote   *endpoint `json:"remote,omitempty"`
	MTU      int       `json:"mtu,omitempty"` // bytes
	RNRRetry int       `json:"rnr_retry"`
	Retry    int       `json:"retry"`

	// fill, check: what is where in the region.
	Pieces []piece `json:"pieces,omitempty"`

	// receive, window: receives are posted, windows of type 2 bound.
	Slots []slot `json:"slots,omitempty"`

	// post
	Requests []request `json:"requests,omitempty"`

	// wait: for Count completions, at most Seconds.
	Count   int     `json:"count,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`

	// load: the word at this offset of the region.
	At int `json:"at"`
}

// endpoint is what the other end needs to connect and to reach the region.
type endpoint struct {
	Address string `json:"address"`
	QPN     uint32 `json:"qpn"`
	PSN     uint32 `json:"psn"`
	Addr    uint64 `json:"addr"`
	RKey    uint32 `json:"rkey"`
}

// piece says that Length bytes at offset At of the region are those at offset From of the pattern. From -1 are zeros.
type piece struct {
	At     int `json:"at"`
	From   int `json:"from"`
	Length int `json:"length"`
}

type slot struct {
	At     int `json:"at"`
	Length int `json:"length"`
}

// request is a send work request; the names of operations are those of cells.
type request struct {
	Operation  string `json:"operation"`
	At         int    `json:"at"` // of the region
	Length     int    `json:"length"`
	Immediate  uint32 `json:"immediate"`
	Invalidate uint32 `json:"invalidate"`
	Addr       uint64 `json:"addr"`
	RKey       uint32 `json:"rkey"`
	CompareAdd uint64 `json:"compare_add"`
	Swap       uint64 `json:"swap"`
}

// answer is the end's answer. Error is what went wrong; Refused says that it is a refusal: this end, or what is
// beneath it, does not have what was asked for and says so.
type answer struct {
	Error   string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"`

	Information string            `json:"information,omitempty"` // open
	Obtained    obtained          `json:"obtained,omitzero"`     // open (xroce only)
	Endpoint    *endpoint         `json:"endpoint,omitempty"`    // create
	Keys        []uint32          `json:"keys,omitempty"`        // window
	Completions []completion      `json:"completions,omitempty"` // wait
	Word        uint64            `json:"word"`                  // load
	State       string            `json:"state,omitempty"`       // state
	Counters    map[string]uint64 `json:"counters,omitempty"`    // counters; those that are not zero
}

// completion is a work completion, of a receive or of the request with that place in the post. Status is that of enum
// ibv_wc_status.
type completion struct {
	Receive     bool   `json:"receive"`
	Place       int    `json:"place"`
	Status      int    `json:"status"`
	Length      int    `json:"length"`
	Immediate   uint32 `json:"immediate"`
	Invalidated uint32 `json:"invalidated"`
}
