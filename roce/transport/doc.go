// Package transport is the InfiniBand transport: the state machine of a queue pair, its requester, completer
// and responder, and the engine that schedules the queue pairs of one shard. It does no input and output:
// packets, frames to fill and the time come in as arguments, so that a run replays exactly.
//
// Nothing here locks. An Engine and its QPs belong to one goroutine at a time (the driver holds the shard's
// mutex); completion queues and shared receive queues are interfaces whose locks are the driver's business.
//
// Way of the data: the driver parses a frame, finds the QP by its number and calls Engine.Receive. The QP (qp.go)
// counts the packet and gives it to the service of its type (service.go; rc.go is RC), which acts on it and marks the
// QP ready if there is something to send. Engine.Emit then lets the ready QPs write frames, at most as many as its
// budget: each asks its service packet by packet for the way and the bytes, and the service asks recovery (recovery.go)
// whether a request may leave now, which asks the flight (flight.go) that all QPs with one peer share. Engine.Expire
// fires deadlines; Engine.NextDeadline tells when to call it. No packet is kept for retransmission: work requests
// (sendqueue.go) and regions are still there, so packets are made again.
//
// It is the engine's own and changes as that needs; programs use package verbs.
package transport

// Time is a reading of a monotonic clock in nanoseconds. Its zero is arbitrary, but 0 is never a reading.
type Time int64
