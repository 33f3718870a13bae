//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/xroce/xroce/roce"
)

const captureFile = "/tmp/capture.pcap"

// capture is a running tcpdump. It sees what rdma_rxe sends after the emulator has had it, and what it is sent before.
type capture struct{ cmd *exec.Cmd }

func startCapture() *capture {
	c := &capture{exec.Command("tcpdump", "-i", "v0", "-U", "--immediate-mode", "-s", "128", "-B", "16384", "-Z", "root",
		"-w", captureFile, "udp")}
	output, err := c.cmd.StderrPipe()
	if err != nil || c.cmd.Start() != nil {
		return &capture{}
	}
	_, _ = output.Read(make([]byte, 256)) // it says that it listens
	return c
}

// stop ends the capture; needed has it wait for the last packets.
func (c *capture) stop(needed bool) {
	if c.cmd == nil {
		return
	}
	if needed {
		time.Sleep(300 * time.Millisecond)
	}
	_ = c.cmd.Process.Signal(os.Interrupt)
	_ = c.cmd.Wait()
}

// rxeFault is an error that is rdma_rxe's, with the evidence.
type rxeFault struct{ evidence string }

func (r *rxeFault) Error() string { return r.evidence }

// blame looks into the capture of a cell that has failed for what rdma_rxe is known to do wrong there. Without evidence of that
// the error stays what it is.
func blame(c cell, err error) error {
	if said := (*endError)(nil); errors.As(err, &said) || c.Operation != opAtomicWrite || c.Requester != "rxe" || c.Loss == losses[0] {
		return err
	}
	f, openErr := os.Open(captureFile)
	if openErr != nil {
		return err
	}
	defer f.Close()
	if n := nowhere(f); n > 0 {
		return &rxeFault{fmt.Sprintf("rdma_rxe sends an atomic write again with address 0 in its RETH (%d packets in the capture), "+
			"which is refused: req_retry of rxe_req.c restores the address of READ, WRITE and the older atomics only", n)}
	}
	return err
}

// nowhere is the number of atomic writes in a capture whose RETH has address 0.
func nowhere(capture io.Reader) (count int) {
	reader, err := pcapgo.NewReader(capture)
	if err != nil {
		return 0
	}
	for {
		frame, _, err := reader.ReadPacketData()
		if err != nil {
			return count
		}
		const ethernet, udp, bth = 14, 8, 12
		header := ethernet + 20 + udp
		if len(frame) > ethernet && frame[ethernet]>>4 == 6 {
			header = ethernet + 40 + udp
		}
		if len(frame) >= header+bth+8 && frame[header] == byte(roce.RCAtomicWrite) && binary.BigEndian.Uint64(frame[header+bth:]) == 0 {
			count++
		}
	}
}
