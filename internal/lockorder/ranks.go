package lockorder

// Rank is a lock's place in the table: each type of this file is one, of the lock that its method names.
// docs/architecture.md has the same table, with what each lock guards.
type Rank interface {
	// rank gives the row of the table, which counts from 1, or leaf; and the name of the lock: package, type and field.
	rank() (row int, name string)
}

// leaf is the row of the locks under which nothing is locked. It is the last one, so the rule for rows covers it.
const leaf = 1 << 10

// The rows, from top to bottom.
type (
	Life      struct{}
	MW        struct{}
	MR        struct{}
	PD        struct{}
	Sender    struct{}
	Receiver  struct{}
	Taker     struct{}
	Control   struct{}
	Captures  struct{}
	Kick      struct{}
	Shard     struct{}
	Device    struct{}
	CQ        struct{}
	Take      struct{}
	Produce   struct{}
	Sleepers  struct{}
	Sleep     struct{}
	XDPDevice struct{}
	XDPQueue  struct{}
	Memory    struct{}
)

func (Life) rank() (int, string)      { return 1, "verbs.belongings.life" }
func (MW) rank() (int, string)        { return 2, "verbs.MW.mu" }
func (MR) rank() (int, string)        { return 3, "verbs.registration.mu" }
func (PD) rank() (int, string)        { return 4, "verbs.PD.mu" }
func (Sender) rank() (int, string)    { return 5, "verbs.sender.mu" }
func (Receiver) rank() (int, string)  { return 6, "verbs.receiver.mu" }
func (Taker) rank() (int, string)     { return 7, "verbs.taker.mu" }
func (Control) rank() (int, string)   { return 8, "driver.QP.control" }
func (Captures) rank() (int, string)  { return 9, "driver.captures.mu" }
func (Kick) rank() (int, string)      { return 10, "driver.Shard.kickMu" }
func (Shard) rank() (int, string)     { return 11, "driver.Shard.mu" }
func (Device) rank() (int, string)    { return 11, "driver.Device.mu" }
func (CQ) rank() (int, string)        { return 12, "driver.CQ.mu" }
func (Take) rank() (int, string)      { return 13, "driver.SRQ.take" }
func (Produce) rank() (int, string)   { return 13, "driver.CQ.produce" }
func (Sleepers) rank() (int, string)  { return 14, "driver.sleepers.mu" }
func (Sleep) rank() (int, string)     { return 14, "driver.sleep.mu" }
func (XDPDevice) rank() (int, string) { return 15, "xdp.Device.mu" }
func (XDPQueue) rank() (int, string)  { return 15, "xdp.queue.mu" }
func (Memory) rank() (int, string)    { return 15, "mem.Network.mu" }

// The leaves.
type (
	Belongings     struct{}
	Buffers        struct{}
	Wire           struct{}
	Ends           struct{}
	Opened         struct{}
	Courier        struct{}
	Backlog        struct{}
	Doubts         struct{}
	Routes         struct{}
	Numbers        struct{}
	GIDs           struct{}
	ShardSet       struct{}
	Waiter         struct{}
	Hops           struct{}
	NetlinkSockets struct{}
	Socket         struct{}
	Program        struct{}
)

func (Belongings) rank() (int, string)     { return leaf, "verbs.belongings.mu" }
func (Buffers) rank() (int, string)        { return leaf, "verbs.buffers.mu" }
func (Wire) rank() (int, string)           { return leaf, "verbstest.wire.mu" }
func (Ends) rank() (int, string)           { return leaf, "verbstest.Network.mu" }
func (Opened) rank() (int, string)         { return leaf, "driver.opened.mu" }
func (Courier) rank() (int, string)        { return leaf, "driver.courier.mu" }
func (Backlog) rank() (int, string)        { return leaf, "backlog.List.Mu" }
func (Doubts) rank() (int, string)         { return leaf, "driver.doubts.mu" }
func (Routes) rank() (int, string)         { return leaf, "driver.routes.mu" }
func (Numbers) rank() (int, string)        { return leaf, "driver.numbers.mu" }
func (GIDs) rank() (int, string)           { return leaf, "driver.gids.mu" }
func (ShardSet) rank() (int, string)       { return leaf, "driver.shardSet.mu" }
func (Waiter) rank() (int, string)         { return leaf, "driver.waiter.mu" }
func (Hops) rank() (int, string)           { return leaf, "xdp.hops.mu" }
func (NetlinkSockets) rank() (int, string) { return leaf, "xdp.netlinkSockets.life" }
func (Socket) rank() (int, string)         { return leaf, "xsk.Socket.life" }
func (Program) rank() (int, string)        { return leaf, "bpf.Program.mu" }
