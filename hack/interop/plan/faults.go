//go:build linux

package plan

import (
	"fmt"
	"time"
)

// FaultLength is the length of the regions of both ends, in bytes.
const FaultLength = 8192

// Fault is one request that must go wrong in a known way, or right in spite of something.
type Fault struct {
	Name      string `json:"name"`
	Requester string `json:"requester"` // the name of the end that posts it
	Operation string `json:"operation"`
	Length    int    `json:"length"`
	// From is where the request begins in the responder's region: the first one of its bytes is 0.
	From     int      `json:"from,omitempty"`
	WrongKey bool     `json:"wrong_key,omitempty"`
	Access   []string `json:"access,omitempty"`    // what the responder's region permits; nil: reads, writes and atomics
	RNRRetry int      `json:"rnr_retry,omitempty"` // 0: 7, which is for ever
	// Receive is the length of a receive of the responder, in bytes. 0: there is none.
	Receive int           `json:"receive,omitempty"`
	Late    time.Duration `json:"late,omitempty"` // how long after the request the receive is posted
	Kill    bool          `json:"kill,omitempty"` // the responder's process is killed before the request is posted
	// What must be seen, by what the responder is made of: the status of the request, the status of the receive if
	// there is one, and the state of the responder's queue pair afterwards.
	Status   map[string]int `json:"status"`
	Received map[string]int `json:"received,omitempty"`
	State    string         `json:"state,omitempty"`
}

func (f Fault) String() string { return fmt.Sprintf("%s, requester %s", f.Name, f.Requester) }

// both is the same status whatever the responder is.
func both(status int) map[string]int { return map[string]int{Xroce: status, Rxe: status} }

// refusedBy is a request that the responder refuses with a remote access error. The receive that waits at it is
// flushed.
func refusedBy(f Fault) Fault {
	f.Receive, f.Status, f.Received, f.State = 64, both(StatusRemAccessErr), both(StatusFlushErr), "ERR"
	return f
}

// accessFaults are the requests of an operation that the responder's memory does not permit.
func accessFaults(operation string) []Fault {
	length := 3000
	if word(operation) {
		length = 8
	}
	other := map[string]string{Write: "read", Read: "write"}
	permitted := other[operation]
	if permitted == "" {
		permitted = "read"
	}
	return []Fault{
		refusedBy(Fault{Name: operation + " with a wrong rkey", Operation: operation, Length: length, WrongKey: true}),
		refusedBy(Fault{Name: operation + " before the region", Operation: operation, Length: length, From: -8}),
		refusedBy(Fault{
			Name: operation + " that the region does not permit", Operation: operation, Length: length, Access: []string{permitted},
		}),
	}
}

// faultCases are all faults, each with both requesters. left is the name of the end at v0; only rdma_rxe there gets a
// FLUSH, whose ICRC it computes in a way of its own.
func faultCases(left string) (all []Fault) {
	var once []Fault
	for _, operation := range []string{Write, Read, FetchAdd} {
		once = append(once, accessFaults(operation)...)
	}
	const short = 100 // of the request's bytes lie in the region
	once = append(once,
		refusedBy(Fault{Name: "WRITE past the end of the region", Operation: Write, Length: 3000, From: FaultLength - short}),
		refusedBy(Fault{Name: "READ past the end of the region", Operation: Read, Length: 3000, From: FaultLength - short}),
		// rdma_rxe answers "remote operational error" where the specification has "invalid request", and its receive
		// completes with the status that goes with that.
		Fault{
			Name: "SEND that is too long", Operation: Send, Length: 2500, Receive: 1000,
			Status:   map[string]int{Xroce: StatusRemInvReqErr, Rxe: StatusRemOpErr},
			Received: map[string]int{Xroce: StatusLocLenErr, Rxe: StatusLocQPOpErr}, State: "ERR",
		},
		Fault{
			Name: "SEND before its receive is posted", Operation: Send, Length: 2500, Receive: 4000, Late: 100 * time.Millisecond,
			Status: both(StatusSuccess), Received: both(StatusSuccess), State: "RTS",
		},
		Fault{
			Name: "SEND without a receive, RNR retry count 2", Operation: Send, Length: 100, RNRRetry: 2,
			Status: both(StatusRNRRetryExcErr), State: "RTS",
		},
		Fault{Name: "responder dies", Operation: Write, Length: 3000, Kill: true, Status: both(StatusRetryExcErr)},
	)
	if left == Rxe {
		once = append(once, Fault{Name: Flush, Operation: Flush, Length: 100})
	}
	for _, f := range once {
		for _, f.Requester = range []string{Xroce, left} {
			all = append(all, f)
		}
	}
	return all
}
