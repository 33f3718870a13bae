//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const captureFile = "/tmp/capture.pcap"

// capture is a running tcpdump. It sees what rdma_rxe sends after the emulator has had it, and what it is sent before.
type capture struct {
	cmd  *exec.Cmd
	says io.Reader // standard error
}

// startCapture starts it. Of bulk transfers it keeps the headers only, of all others whole packets.
func startCapture(headers bool) *capture {
	length := "4400"
	if headers {
		length = "128"
	}
	cmd := exec.Command("tcpdump", "-i", "v0", "-U", "--immediate-mode", "-s", length, "-B", "32768", "-Z", "root",
		"-w", captureFile, "udp")
	output, err := cmd.StderrPipe()
	if err != nil || cmd.Start() != nil {
		return &capture{}
	}
	_, _ = output.Read(make([]byte, 256)) // it says that it listens
	return &capture{cmd, output}
}

// sync waits until all that has passed v0 so far is in the file: until a frame is there that was sent behind it. The emulator may
// lose one.
func (c *capture) sync() error {
	if c.cmd == nil {
		return errors.New("tcpdump did not start")
	}
	mark, frame := marker()
	for begin := time.Now(); time.Since(begin) < 20*time.Second; {
		if err := sendFrame("v0", frame); err != nil {
			return err
		}
		for range 25 {
			if there, err := endsWith(captureFile, mark); there || err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return errors.New("the capture does not go on")
}

// endsWith says whether the file has the text near its end.
func endsWith(path string, text []byte) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	var end [1 << 16]byte
	n, err := f.ReadAt(end[:], max(0, info.Size()-int64(len(end))))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return bytes.Contains(end[:n], text), err
}

// stop ends the capture; complete has it have all packets before, and says if it lacks any.
func (c *capture) stop(complete bool) (err error) {
	if complete {
		err = c.sync()
	}
	if c.cmd == nil {
		return err
	}
	_ = c.cmd.Process.Signal(os.Interrupt)
	said, _ := io.ReadAll(c.says)
	if ended := c.cmd.Wait(); ended != nil {
		err = errors.Join(err, fmt.Errorf("tcpdump: %w: %s", ended, said))
	}
	if complete {
		err = errors.Join(err, lacks(string(said)))
	}
	return err
}

// lacks reads what tcpdump says at its end: how many packets the kernel had no room for.
func lacks(said string) error {
	for line := range strings.Lines(said) {
		var n int
		if _, err := fmt.Sscanf(line, "%d", &n); err != nil || !strings.HasSuffix(strings.TrimSpace(line), "dropped by kernel") {
			continue
		}
		if n > 0 {
			return fmt.Errorf("the capture lacks %d packets", n)
		}
		return nil
	}
	return fmt.Errorf("tcpdump does not say how many packets it lacks: %q", said)
}

// rxeFault is an error that is rdma_rxe's, with the evidence.
type rxeFault struct{ evidence string }

func (r *rxeFault) Error() string { return r.evidence }

// blame looks into the capture of a cell that has failed for what rdma_rxe is known to do wrong there. Without evidence of that
// the error stays what it is: it must be the status of a request and nothing else.
func (g *guest) blame(c cell, err error) error {
	failed, ok := sole[*statusError](err)
	if !ok || g.left.name != "rxe" || c.Loss == losses[0] || failed.status != remoteAccessError && failed.status != retriesExceeded {
		return err
	}
	packets, read := readPackets()
	if read != nil {
		return errors.Join(err, read)
	}
	switch {
	// The NAK may be lost, too, and xroce sends no other one.
	case c.Operation == opAtomicWrite && c.Requester == "rxe" && (failed.status == remoteAccessError || c.Loss == losses[1]):
		if psn, refused := nowhere(packets, g.first); refused {
			return &rxeFault{fmt.Sprintf("rdma_rxe sends an atomic write again with address 0 in its RETH, which is refused: the capture has the request, in "+
				"its turn, and the NAK with its PSN %d", psn)}
		}
	case c.Operation == opRead && c.Requester == "xroce" && c.Size == 0 && failed.status == retriesExceeded:
		if n := unanswered(packets); n >= 3 {
			return &rxeFault{fmt.Sprintf("rdma_rxe does not answer a READ of 0 bytes that is sent again: the same request (QPN, PSN and RETH) %d times in "+
				"the capture, after the first one or its only response, and none of them has one. Its duplicate_request "+
				"(drivers/infiniband/sw/rxe/rxe_resp.c) compares the rkey with 0, which qp_resp_from_reth has put in its place", n)}
		}
	}
	return err
}

// nowhere is the PSN of an atomic write of rdma_rxe with address 0 that was next in turn at xroce, and that xroce has refused with a remote access
// error. All requests are atomic writes, of one packet each, the first one of them has the PSN first. So every one that came
// in its turn before has been executed, and what xroce makes of those does not count.
func nowhere(packets []dissected, first uint32) (psn uint32, refused bool) {
	const request = 0x1d
	for next := first; len(packets) > 0; packets = packets[1:] {
		d := packets[0]
		if d.sender != macV0 || d.opcode != request || d.psn != next {
			continue
		}
		if len(d.body) < 16 || binary.BigEndian.Uint64(d.body) != 0 {
			next = (next + 1) & 0xffffff
			continue
		}
		for _, a := range packets[1:] {
			if a.sender == macV1 && a.opcode == acknowledge && a.psn == next && bytes.HasPrefix(a.body, []byte{nakRemoteAccess}) {
				return next, true
			}
		}
		return 0, false
	}
	return 0, false
}

// unanswered is how often a READ of xroce was asked for again, after the first time or after the last response with its PSN. That may come
// after a second request, while both are on their way. A request that is not the same as the first one with its PSN counts for nothing.
func unanswered(packets []dissected) (most int) {
	const request = 0x0c
	first, again := map[uint32]dissected{}, map[uint32]int{}
	for _, d := range packets {
		f, asked := first[d.psn]
		switch {
		case d.sender == macV1 && d.opcode == request && !asked:
			first[d.psn], again[d.psn] = d, 0
		case d.sender == macV1 && d.opcode == request && d.qpn == f.qpn && bytes.Equal(d.body, f.body):
			again[d.psn]++
		case d.sender == macV1 && d.opcode == request:
			return 0
		case d.sender == macV0 && d.opcode == readResponseOnly:
			again[d.psn] = 0
		}
	}
	for _, n := range again {
		most = max(most, n)
	}
	return most
}

// checkMSN compares the last message sequence number in the answers of the end at v1 with the number of messages. rdma_rxe does not
// look at it, others do.
func checkMSN(packets []dissected, messages int) error {
	last := uint32(0)
	for _, d := range packets {
		// Those with an AETH: the first, last and only response to a READ, and acknowledgements.
		if d.sender == macV1 && slices.Contains([]byte{0x0d, 0x0f, 0x10, acknowledge, atomicAcknowledge}, d.opcode) && len(d.body) >= 4 {
			last = binary.BigEndian.Uint32(d.body) & 0xffffff
		}
	}
	if last != uint32(messages) {
		return fmt.Errorf("the last MSN in the answers of xroce is %d after %d messages", last, messages)
	}
	return nil
}
