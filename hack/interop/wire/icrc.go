//go:build linux

package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/gopacket/gopacket/pcapgo"
)

// Which end is to blame when the two do not understand each other is told by a third party: this file computes the
// ICRC of captured packets from their bytes and hash/crc32, by IBTA section 7.8.1 and annex A17. It must not use
// package roce, whose mistakes it is to find.
//
// Life of a packet here: eachFrame reads it from the capture, dissect finds the parts of a RoCEv2 packet by the
// lengths in its headers, and invariantCRC computes what its last four bytes ought to be. audit does so for every
// packet of a cell, and blames the sender.

const (
	MACV0     = 1 // last bytes of the Ethernet addresses: of rdma_rxe
	MACV1     = 2 // of xroce
	MACForged = 3 // and of what this program sends in the place of one of them

	rocePort  = 4791
	bthLength = 12
	udpLength = 8
)

// Packet is a RoCEv2 packet in a frame.
type Packet struct {
	Sender  byte   // last byte of the Ethernet source address
	Covered []byte // what the ICRC covers: from the IP header to the end of the pad
	ICRC    uint32
	Opcode  byte
	Pad     int
	QPN     uint32 // destination
	PSN     uint32
	Body    []byte // extension headers, payload and pad
}

var errCut = errors.New("its lengths do not fit")

// Dissect finds the packet in a frame; ok is false if that is not RoCEv2.
func Dissect(frame []byte) (d Packet, ok bool, err error) {
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
	d.Sender = frame[11]
	if length > len(packet) || length-ip != int(binary.BigEndian.Uint16(packet[ip+4:])) || length < ip+udpLength+bthLength+4 {
		return d, true, errCut
	}
	bth := packet[ip+udpLength:]
	d.Covered, d.ICRC = packet[:length-4], binary.LittleEndian.Uint32(packet[length-4:])
	d.Opcode, d.Pad = bth[0], int(bth[1]>>4&3)
	d.QPN, d.PSN = binary.BigEndian.Uint32(bth[4:])&0xffffff, binary.BigEndian.Uint32(bth[8:])&0xffffff
	d.Body = packet[ip+udpLength+bthLength : length-4]
	return d, true, nil
}

// InvariantCRC is the ICRC of a packet that begins with its IP header and ends with its pad. Eight bytes of ones
// stand for a local route header; what routers may change counts as ones.
func InvariantCRC(packet []byte) uint32 {
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

// HeadersTwice is the ICRC of the packet if its headers from the BTH on count twice, and the pad once more.
func (d *Packet) HeadersTwice() uint32 {
	again := d.Covered[len(d.Covered)-bthLength-len(d.Body):]
	return crc32.Update(InvariantCRC(d.Covered), crc32.IEEETable, again)
}

// EachFrame goes through the capture. Frames are valid until the next one.
func EachFrame(path string, do func(frame []byte) error) error {
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

// ReadPackets are all packets in the capture.
func ReadPackets() (packets []Packet, err error) {
	err = EachFrame(CaptureFile, func(frame []byte) error {
		d, ok, err := Dissect(bytes.Clone(frame))
		if ok && err == nil {
			packets = append(packets, d)
		}
		return err
	})
	return packets, err
}

// Tally is how many packets of an end were looked at.
type Tally struct {
	Packets, Wrong, Cells int
	First                 string // what is wrong with the first one
}

// Audit looks at every packet of a capture.
func Audit(path string) (found map[byte]*Tally, err error) {
	found = map[byte]*Tally{}
	err = EachFrame(path, func(frame []byte) error {
		d, ok, err := Dissect(frame)
		if !ok {
			return nil
		}
		t := found[d.Sender]
		if t == nil {
			t = &Tally{Cells: 1}
			found[d.Sender] = t
		}
		t.Packets++
		what := ""
		if err != nil {
			what = err.Error()
		} else if want := InvariantCRC(d.Covered); want != d.ICRC {
			what = fmt.Sprintf("opcode %#02x, PSN %#06x, %d bytes behind the BTH with %d of pad: ICRC %#08x instead of %#08x",
				d.Opcode, d.PSN,
				len(d.Body), d.Pad, d.ICRC, want)
		}
		if what == "" {
			return nil
		}
		if t.Wrong++; t.Wrong == 1 {
			t.First = what
		}
		return nil
	})
	return found, err
}
