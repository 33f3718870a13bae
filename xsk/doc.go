// Package xsk is AF_XDP for Go: raw Ethernet frames between a queue of a network
// interface and this process through shared memory, without a system call per frame
// on the way in and with one per batch on the way out.
//
// A [Socket] owns a UMEM (the memory that holds the frames), the four rings that pass
// chunks of it to the kernel and back, and the wake-up calls. It does not load
// programs: to receive, an XDP program has to redirect frames into an XSKMAP that
// holds the socket, as in the complete program below. Sending needs no program.
//
//	receive: FILL -> kernel -> RX -> Receive, Release -> FILL
//	send:    free -> Buffer, Commit, Publish -> TX -> Kick -> kernel -> COMPLETION -> Reap -> free
//
// No data call allocates, waits or, except Kick and WakeReceive, makes a system call.
//
// This program sends every frame that arrives on queue 0 of an interface back to where
// it came from (it takes the interface away from the host's own network stack; run it
// in a network namespace or on a spare interface):
//
//	package main
//
//	import (
//		"log"
//		"net"
//		"os"
//
//		"github.com/cilium/ebpf"
//		"github.com/cilium/ebpf/asm"
//		"github.com/cilium/ebpf/link"
//		"github.com/xroce/xroce/xsk"
//		"golang.org/x/sys/unix"
//	)
//
//	func check(err error) {
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
//
//	func main() {
//		device, err := net.InterfaceByName(os.Args[1])
//		check(err)
//		socket, err := xsk.Open(xsk.Options{Interface: device.Index})
//		check(err)
//		defer socket.Close()
//		log.Printf("%+v", socket.Info())
//
//		sockets, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 64})
//		check(err)
//		check(sockets.Put(uint32(0), uint32(socket.FD())))
//		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "MIT", Instructions: asm.Instructions{
//			asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), // xdp_md.rx_queue_index
//			asm.LoadMapPtr(asm.R1, sockets.FD()),
//			asm.Mov.Imm(asm.R3, 2), // XDP_PASS where the map has no socket
//			asm.FnRedirectMap.Call(),
//			asm.Return(),
//		}})
//		check(err)
//		attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: device.Index})
//		check(err)
//		defer attached.Close()
//
//		frames := make([]xsk.Frame, 64)
//		for {
//			ready := []unix.PollFd{{Fd: int32(socket.FD()), Events: unix.POLLIN}}
//			if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
//				check(err)
//			}
//			for _, frame := range frames[:socket.Receive(frames)] {
//				buffer := socket.Buffer()
//				if buffer == nil {
//					break // all buffers are in flight: lose the rest of the batch
//				}
//				n := copy(buffer, frame.Segments[0])
//				copy(buffer[0:6], frame.Segments[0][6:12]) // back to the sender
//				copy(buffer[6:12], device.HardwareAddr)
//				check(socket.Commit(n))
//			}
//			socket.Release()
//			socket.Publish()
//			for tries := 0; socket.KickPending() && tries < 16; tries++ {
//				_, err := socket.Kick()
//				check(err)
//				socket.Reap()
//			}
//		}
//	}
package xsk
