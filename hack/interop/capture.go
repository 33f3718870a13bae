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
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/xroce/xroce/roce"
)

const captureFile = "/tmp/capture.pcap"

// capture is a running tcpdump. It sees what rdma_rxe sends after the emulator has had it, and what it is sent before.
type capture struct{ cmd *exec.Cmd }

// startCapture starts it. Of bulk transfers it keeps the headers only, of all others whole packets.
func startCapture(headers bool) *capture {
	length := "4400"
	if headers {
		length = "128"
	}
	c := &capture{exec.Command("tcpdump", "-i", "v0", "-U", "--immediate-mode", "-s", length, "-B", "32768", "-Z", "root",
		"-w", captureFile, "udp")}
	output, err := c.cmd.StderrPipe()
	if err != nil || c.cmd.Start() != nil {
		return &capture{}
	}
	_, _ = output.Read(make([]byte, 256)) // it says that it listens
	return c
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

// stop ends the capture; needed has it have all packets before.
func (c *capture) stop(needed bool) (err error) {
	if needed {
		err = c.sync()
	}
	if c.cmd != nil {
		_ = c.cmd.Process.Signal(os.Interrupt)
		_ = c.cmd.Wait()
	}
	return err
}

// rxeFault is an error that is rdma_rxe's, with the evidence.
type rxeFault struct{ evidence string }

func (r *rxeFault) Error() string { return r.evidence }

// blame looks into the capture of a cell that has failed for what rdma_rxe is known to do wrong there. Without evidence of that
// the error stays what it is.
func blame(c cell, err error) error {
	if said := (*endError)(nil); errors.As(err, &said) || c.Loss == losses[0] {
		return err
	}
	packets := readCapture()
	switch {
	case c.Operation == opAtomicWrite && c.Requester == "rxe":
		if n := nowhere(packets); n > 0 {
			return &rxeFault{fmt.Sprintf("rdma_rxe sends an atomic write again with address 0 in its RETH (%d packets in the capture), "+
				"which is refused", n)}
		}
	case c.Operation == opRead && c.Requester == "xroce" && c.Size == 0:
		if n := unanswered(packets); n >= 3 {
			return &rxeFault{fmt.Sprintf("rdma_rxe does not answer a READ of 0 bytes that is sent again: the same request %d times in "+
				"the capture, after the first one or its only response, and none of them has one", n)}
		}
	}
	return err
}

// packet is what a capture shows of a packet: BTH and what follows.
type packet struct {
	source byte // last byte of the Ethernet address: 1 is v0, 2 is v1
	opcode roce.Opcode
	psn    uint32
	rest   []byte
}

func readCapture() (packets []packet) {
	f, err := os.Open(captureFile)
	if err != nil {
		return nil
	}
	defer f.Close()
	reader, err := pcapgo.NewReader(f)
	if err != nil {
		return nil
	}
	for {
		frame, _, err := reader.ReadPacketData()
		if err != nil {
			return packets
		}
		const ethernet, udp, bth = 14, 8, 12
		header := ethernet + 20 + udp
		if len(frame) > ethernet && frame[ethernet]>>4 == 6 {
			header = ethernet + 40 + udp
		}
		if len(frame) < header+bth+8 {
			continue
		}
		packets = append(packets, packet{
			frame[11], roce.Opcode(frame[header]), binary.BigEndian.Uint32(frame[header+8:]) & 0xffffff, frame[header+bth:],
		})
	}
}

// nowhere is the number of atomic writes whose RETH has address 0.
func nowhere(packets []packet) (count int) {
	for _, p := range packets {
		if p.opcode == roce.RCAtomicWrite && binary.BigEndian.Uint64(p.rest) == 0 {
			count++
		}
	}
	return count
}

// unanswered is how often a READ was asked for again, after the first time or after the last response with its PSN. That may come after a
// second request, while both are on their way.
func unanswered(packets []packet) (most int) {
	again := map[uint32]int{}
	for _, p := range packets {
		switch p.opcode {
		case roce.RCReadRequest:
			if n, asked := again[p.psn]; asked {
				again[p.psn] = n + 1
			} else {
				again[p.psn] = 0
			}
		case roce.RCReadResponseOnly:
			again[p.psn] = 0
		}
	}
	for _, n := range again {
		most = max(most, n)
	}
	return most
}

// checkMSN compares the last message sequence number in the answers of the end at v1 with the number of messages. rdma_rxe does not
// look at it, others do.
func checkMSN(packets []packet, messages int) error {
	last := uint32(0)
	for _, p := range packets {
		if p.source == 2 && p.opcode.Info().Has(roce.HeaderAETH) {
			last = binary.BigEndian.Uint32(p.rest) & 0xffffff
		}
	}
	if last != uint32(messages) {
		return fmt.Errorf("the last MSN in the answers of xroce is %d after %d messages", last, messages)
	}
	return nil
}
