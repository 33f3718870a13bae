//go:build linux

package xsk_test

import (
	"fmt"
	"log"

	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/xsk"
)

// Send one broadcast frame and wait for it to be on its way.
func Example() {
	socket, err := xsk.Open(xsk.Options{Interface: 3, Queue: 0})
	if err != nil {
		log.Fatal(err) // names the step, the values and the way out
	}
	defer socket.Close()

	buffer := socket.Buffer()
	n := copy(buffer, "\xff\xff\xff\xff\xff\xff"+"\x02\x00\x00\x00\x00\x01"+"\x88\xb5"+"hello, everybody")
	if err := socket.Commit(n); err != nil {
		log.Fatal(err)
	}
	socket.Publish()
	for tries := 0; socket.KickPending() && tries < 16; tries++ {
		if _, err := socket.Kick(); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("sent, and", socket.Reap(), "buffer is free again")
}

// Receive in batches; the frames are valid until Release.
func ExampleSocket_Receive() {
	socket, err := xsk.Open(xsk.Options{Interface: 3, MultiBuffer: true})
	if err != nil {
		log.Fatal(err)
	}
	defer socket.Close()
	// An XDP program that redirects to socket.FD() goes here, see the package comment.

	frames := make([]xsk.Frame, 64)
	for {
		ready := []unix.PollFd{{Fd: int32(socket.FD()), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
			log.Fatal(err)
		}
		for _, frame := range frames[:socket.Receive(frames)] {
			fmt.Println(frame.Len(), "bytes in", len(frame.Segments), "segments")
		}
		socket.Release()
	}
}
