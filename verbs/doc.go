// Package verbs is RDMA for Go programs: the verbs of libibverbs over RoCEv2 in software, on any Linux network device.
//
// OpenDevice attaches to a network device. A protection domain (AllocPD) holds memory regions (RegMR) and queue pairs
// (CreateQP); completions arrive in completion queues (CreateCQ), which are polled (Poll) or waited for (Wait). A queue pair is
// connected with Connect, or by the three transitions of ModifyQP, once both ends know each other's Endpoint. The names and
// numbers are those of libibverbs without the prefix ibv_ or IBV_, so that what is written about it holds here too.
//
// # Memory
//
// A work request owns the memory that its SGList names from the post until its completion; the request itself is copied by the
// post. Memory that a region opens to peers may be read and written by them at any time until Dereg returns; a program learns of
// a write by a completion at either end, or by LoadUint64. Writes appear in the order of addresses, and the last whole
// word of a message appears last.
//
// # Concurrency
//
// All methods of all objects may be called concurrently. No method but Wait, ModifyQP (to RTR, for the search of the peer) and
// OpenDevice blocks. Whoever posts or polls drives the engine meanwhile; while nobody does, a goroutine in the
// background does.
//
// # Errors
//
// Methods return errors that wrap one of the Err values and name what clashes. The outcome of a work request is a value, the
// Status of its WC: an error status means that the queue pair is in StateError and all its other requests are flushed.
package verbs
