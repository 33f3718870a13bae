// Package verbs is RDMA for Go programs: the verbs of libibverbs over RoCEv2 in software, on any Linux network device.
//
// OpenDevice attaches to a network device. A protection domain (AllocPD) holds memory regions (RegMR) and queue pairs
// (CreateQP); completions arrive in completion queues (CreateCQ), which are polled (Poll) or waited for (Wait). A queue pair is
// connected with Connect, or by the three transitions of QP.Modify, once both ends know each other's Endpoint. The names and
// numbers are those of libibverbs without the prefix ibv_ or IBV_, so that what is written about it holds here too. Types that
// the engine shares, such as SendWR and WC, are aliases: "go doc roce/queue SendWR" shows their fields.
//
// # Memory
//
// A work request owns the memory that its SGList names from the post until its completion; the request itself is copied by the
// post. Memory that a region opens to peers may be read and written by them at any time until Dereg returns; a program learns of
// a write by a completion at either end, or by LoadUint64: packets appear in the order of addresses, and the last whole aligned
// word of a message appears last, at once (unless it lies across two packets). Within a packet there is no other order.
//
// # Concurrency
//
// All methods of all objects may be called concurrently. None but Wait, Get, GetAsyncEvent, OpenDevice, Devices, Exchange, and Modify and Connect for the
// search of the peer (at most 3 seconds) blocks. Whoever posts or polls drives the engine meanwhile; while nobody does, a goroutine in the
// background does.
//
// # Events
//
// A completion channel (CreateCompChannel, CQInitAttr.Channel) tells which of many completion queues have got something, to programs that
// block in Get or select on Ready; CQ.ReqNotify asks for it. What no completion tells, such as a completion queue without room
// or a shared receive queue (CreateSRQ) that runs low, is an AsyncEvent of the device.
//
// # Errors
//
// What a program or its environment did wrong comes back as an error that wraps one of the Err values and names what clashes. The outcome of a work request is a value, the
// Status of its WC: an error status means that the queue pair is in StateError and all its other requests are flushed.
package verbs
