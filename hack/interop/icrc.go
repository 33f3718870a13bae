//go:build linux

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/gopacket/gopacket/pcapgo"
)

// Which end is to blame when the two do not understand each other is told by a third party: this file computes the ICRC of captured
// packets from their bytes and hash/crc32, by IBTA section 7.8.1 and annex A17. It must not use package roce, whose
// mistakes it is to find.
//
// Life of a packet here: eachFrame reads it from the capture, dissect finds the parts of a RoCEv2 packet by the lengths in its headers,
// and invariantCRC computes what its last four bytes ought to be. audit does so for every packet of a cell, and blames the sender.

const (
	macV0     = 1 // last bytes of the Ethernet addresses: of rdma_rxe
	macV1     = 2 // of xroce
	macForged = 3 // and of what this program sends in the place of one of them

	rocePort  = 4791
	bthLength = 12
	udpLength = 8
)

// dissected is a RoCEv2 packet in a frame.
type dissected struct {
	sender  byte   // last byte of the Ethernet source address
	covered []byte // what the ICRC covers: from the IP header to the end of the pad
	icrc    uint32
	opcode  byte
	pad     int
	qpn     uint32 // destination
	psn     uint32
	body    []byte // extension headers, payload and pad
}

var errCut = errors.New("its lengths do not fit")

// dissect finds the packet in a frame; ok is false if that is not RoCEv2.
func dissect(frame []byte) (d dissected, ok bool, err error) {
	const ethernet = 14
	if len(frame) < ethernet+20 {
		return d, false, nil
	}
	packet := frame[ethernet:]
	var ip, length int
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		if packet[9] != 17 {
			return d, false, nil
		}
		ip, length = int(packet[0]&15)*4, int(binary.BigEndian.Uint16(packet[2:]))
	case 0x86dd:
		if packet[6] != 17 {
			return d, false, nil
		}
		ip, length = 40, 40+int(binary.BigEndian.Uint16(packet[4:]))
	default:
		return d, false, nil
	}
	if len(packet) < ip+udpLength || binary.BigEndian.Uint16(packet[ip+2:]) != rocePort {
		return d, false, nil
	}
	// Behind the packet there may be padding of Ethernet.
	d.sender = frame[11]
	if length > len(packet) || length-ip != int(binary.BigEndian.Uint16(packet[ip+4:])) || length < ip+udpLength+bthLength+4 {
		return d, true, errCut
	}
	bth := packet[ip+udpLength:]
	d.covered, d.icrc = packet[:length-4], binary.LittleEndian.Uint32(packet[length-4:])
	d.opcode, d.pad = bth[0], int(bth[1]>>4&3)
	d.qpn, d.psn = binary.BigEndian.Uint32(bth[4:])&0xffffff, binary.BigEndian.Uint32(bth[8:])&0xffffff
	d.body = packet[ip+udpLength+bthLength : length-4]
	return d, true, nil
}

// invariantCRC is the ICRC of a packet that begins with its IP header and ends with its pad. Eight bytes of ones stand for a local route
// header; what routers may change counts as ones.
func invariantCRC(packet []byte) uint32 {
	ip, variable := 20, []int{1, 8, 10, 11} // type of service, time to live, checksum
	if packet[0]>>4 == 6 {
		ip, variable = 40, []int{1, 2, 3, 7} // traffic class and flow label but for what is in byte 0, hop limit
	} else {
		ip = int(packet[0]&15) * 4
	}
	variable = append(variable, ip+6, ip+7, ip+udpLength+4) // checksum of UDP; reserved byte before the QPN, with FECN and BECN
	var header [8 + 60 + udpLength + bthLength]byte
	for i := range 8 {
		header[i] = 0xff
	}
	n := copy(header[8:], packet[:ip+udpLength+bthLength])
	for _, i := range variable {
		header[8+i] = 0xff
	}
	if packet[0]>>4 == 6 {
		header[8] |= 0x0f
	}
	return crc32.Update(crc32.ChecksumIEEE(header[:8+n]), crc32.IEEETable, packet[n:])
}

// headersTwice is the ICRC of the packet if its headers from the BTH on count twice, and the pad once more.
func (d *dissected) headersTwice() uint32 {
	again := d.covered[len(d.covered)-bthLength-len(d.body):]
	return crc32.Update(invariantCRC(d.covered), crc32.IEEETable, again)
}

// eachFrame goes through the capture. Frames are valid until the next one.
func eachFrame(path string, do func(frame []byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	reader, err := pcapgo.NewReader(bufio.NewReaderSize(f, 1<<16))
	if err != nil {
		return err
	}
	for {
		frame, _, err := reader.ZeroCopyReadPacketData()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("capture: %w", err)
		}
		if err := do(frame); err != nil {
			return err
		}
	}
}

// tallyICRC is how many packets of an end were looked at.
type tallyICRC struct {
	packets, wrong, cells int
	first                 string // what is wrong with the first one
}

// auditFile looks at every packet of a capture.
func auditFile(path string) (found map[byte]*tallyICRC, err error) {
	found = map[byte]*tallyICRC{}
	err = eachFrame(path, func(frame []byte) error {
		d, ok, err := dissect(frame)
		if !ok {
			return nil
		}
		t := found[d.sender]
		if t == nil {
			t = &tallyICRC{cells: 1}
			found[d.sender] = t
		}
		t.packets++
		what := ""
		if err != nil {
			what = err.Error()
		} else if want := invariantCRC(d.covered); want != d.icrc {
			what = fmt.Sprintf("opcode %#02x, PSN %#06x, %d bytes behind the BTH with %d of pad: ICRC %#08x instead of %#08x", d.opcode, d.psn,
				len(d.body), d.pad, d.icrc, want)
		}
		if what == "" {
			return nil
		}
		if t.wrong++; t.wrong == 1 {
			t.first = what
		}
		return nil
	})
	return found, err
}

// audit looks at every packet in the capture of a cell, and adds them to those of the run. both says that neither end can have
// been silent.
func (g *guest) audit(both bool) error {
	found, err := auditFile(captureFile)
	if err != nil {
		return err
	}
	if g.icrc == nil {
		g.icrc = map[byte]*tallyICRC{macV0: {}, macV1: {}}
	}
	var all []error
	for _, sender := range []byte{macV0, macV1} {
		t, sum := found[sender], g.icrc[sender]
		if t == nil {
			if both {
				all = append(all, fmt.Errorf("the capture has no packet of %s", g.sender(sender)))
			}
			continue
		}
		sum.packets, sum.wrong, sum.cells = sum.packets+t.packets, sum.wrong+t.wrong, sum.cells+t.cells
		if t.wrong > 0 {
			all = append(all, fmt.Errorf("%s sent a wrong ICRC in %d of %d packets, the first one: %s", g.sender(sender), t.wrong, t.packets, t.first))
		}
	}
	return errors.Join(all...)
}

// sender names who has the Ethernet address.
func (g *guest) sender(mac byte) string {
	if mac == macV0 {
		return "rdma_rxe of " + g.report.Kernel
	}
	return "xroce"
}
