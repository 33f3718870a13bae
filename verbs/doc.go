// Package verbs is RDMA for Go programs: the verbs of libibverbs over RoCEv2 in software, on any Linux network device.
//
// [OpenDevice] attaches to a network device; [Devices] describes those that there are. A protection domain
// ([Device.AllocPD]) holds memory regions ([PD.RegMR]) and queue pairs ([PD.CreateQP]). Completions arrive in
// completion queues ([Device.CreateCQ]): [CQ.All] is a loop over them, [CQ.Poll] and [CQ.Wait] are its parts.
// [QP.Connect] connects a queue pair once both ends know each other's [Endpoint], and [QP.PostSend] and [QP.PostRecv]
// post requests. [Device.Close] ends all that belongs to the device. The names and numbers are those of libibverbs
// without the prefix ibv_ or IBV_, so that what is written about it holds here too.
//
// # Memory
//
// A work request owns the memory that its SGList names from the post until its completion; the request itself is
// copied by the post. Memory that a region opens to peers may be read and written by them at any time until
// [MR.Dereg] returns. A program learns of a write by a completion at either end, or by [MR.LoadUint64]: packets
// appear in the order of addresses, and the last whole aligned word of a message appears last, at once (unless it
// lies across two packets). Within a packet there is no other order.
//
// # Concurrency
//
// All methods of all objects may be called concurrently. Most of them do not block. Those that wait take a context:
// Wait, All, Get, GetAsyncEvent, OpenDevice, Devices, and Modify and Connect, which search for the peer for at most 3
// seconds. [Exchange] waits for its channel. Whoever posts or polls drives the engine meanwhile; while nobody does, a
// goroutine in the background does.
//
// # Events
//
// A completion channel ([Device.CreateCompChannel], [CQInitAttr].Channel) tells which of many completion queues have
// got something, to programs that block in [CompChannel.Get] or select on [CompChannel.Ready]; [CQ.ReqNotify] asks
// for it. What no completion tells, such as a completion queue without room or a shared receive queue
// ([PD.CreateSRQ]) that runs low, is an [AsyncEvent] of the device.
//
// # Errors
//
// What a program or its environment did wrong comes back as an error that wraps one of the Err values and names what
// clashes. The outcome of a work request is the Status of its [WC]: an error status means that the queue pair is in
// StateError and all its other requests are flushed. [QP.Err] makes an error of it, which matches [ErrRetryExceeded]
// and its like, and names the cause.
//
// Methods of nil and of zero values return [ErrInvalid]; those without an error panic with it, like those of [os.File].
//
// # Packages
//
// Programs depend on this package, on verbs/verbstest for their tests, and, if they need them, on roce (the codec),
// xsk (AF_XDP) and bpf (the XDP program). The API of these is kept: docs/api lists it, and CHANGELOG.md tells
// changes. The packages below roce are the engine's own, and change as it needs.
package verbs
