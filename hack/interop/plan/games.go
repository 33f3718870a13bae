//go:build linux

package plan

import "fmt"

// Stock programs of rdma-core that xroce can talk to. rping, ucmatose and udaddy meet by librdmacm's connection
// manager, and the others need UC, UD or XRC; perftest's programs compare their versions, page sizes and MTUs over
// TCP before the endpoints, and their counts behind them, in ways that go with the version.
const (
	RCPingPong  = "ibv_rc_pingpong"
	SRQPingPong = "ibv_srq_pingpong"
)

// Game is one run of a stock program against xroce.
type Game struct {
	Program string `json:"program"`
	Server  bool   `json:"server"` // the stock program is the server
	MTU     int    `json:"mtu"`
	Size    int    `json:"size"`             // of a message, in bytes
	Count   int    `json:"count"`            // of messages each way
	Events  bool   `json:"events,omitempty"` // the stock program has -e: it sleeps until there is an event
}

// Row is the name of the row that has the game in a table.
func (s Game) Row() string {
	role := "client"
	if s.Server {
		role = "server"
	}
	text := fmt.Sprintf("%s as %s, path MTU %d", s.Program, role, s.MTU)
	if s.Events {
		text += ", events"
	}
	return text
}

func (s Game) String() string { return fmt.Sprintf("%s, %d times %d bytes", s.Row(), s.Count, s.Size) }

// games are all games, or the two that "make interop" plays.
func games(brief bool) (all []Game) {
	if brief {
		return []Game{{RCPingPong, true, 1024, 4096, 100, false}, {RCPingPong, false, 1024, 4096, 100, false}}
	}
	const count = 300
	for _, server := range []bool{true, false} {
		for _, mtu := range []int{256, 1024, 4096} {
			for _, size := range []int{1, 33, 4096, 65536} {
				all = append(all, Game{RCPingPong, server, mtu, size, count, false})
			}
		}
		all = append(all, Game{RCPingPong, server, 1024, 4096, count, true},
			Game{SRQPingPong, server, 1024, 4096, count, false})
	}
	return all
}
