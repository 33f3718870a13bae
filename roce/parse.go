package roce

import "encoding/binary"

// The receive side. A frame arrives as one to four segments of device memory. Parse walks it once
// from the outside in: Ethernet, IP, UDP, BTH. Each step believes only what an earlier one has
// checked, takes lengths from IP and UDP (short frames carry Ethernet padding behind the ICRC), and
// gives up with a reason at the first fault. The ICRC comes last, since it is the only step that
// touches the payload. What is left are views of the headers and pieces of payload in the frame;
// nothing has been copied but the addresses.
//
// A packet with a fault found here is never answered. Faults that an RC responder answers with a NAK,
// such as a wrong payload length, are left to the transport, and so is all that needs the path MTU.

// Parse takes a frame apart and checks it, ICRC included. The segments are the frame from its
// Ethernet header on, in order; all headers must lie in the first one. Parse only reads them, and
// keeps them, not the slice of slices, until the next Parse.
func (p *Packet) Parse(segments [][]byte) DropReason {
	if reason := p.ParseHeaders(segments); reason != DropNone {
		return reason
	}
	return p.CheckICRC(segments)
}

// ParseHeaders is Parse without the ICRC, for those who want to look up the queue pair first. No
// state may change because of the packet before [Packet.CheckICRC] has passed it.
func (p *Packet) ParseHeaders(segments [][]byte) DropReason {
	if len(segments) == 0 {
		return DropTooShort
	}
	if len(segments) > MaxSegments {
		return DropTooManySegments
	}
	frame := segments[0]
	total := len(frame)
	for _, segment := range segments[1:] {
		total += len(segment)
	}

	if len(frame) < ethernetLength {
		return cutShort(total, ethernetLength)
	}
	p.DestinationMAC = MAC(frame[0:6])
	p.SourceMAC = MAC(frame[6:12])
	p.VLAN, p.Priority, p.Tagged = 0, 0, false
	etherType := binary.BigEndian.Uint16(frame[12:14])
	p.ipOffset = ethernetLength
	if etherType == etherTypeVLAN {
		p.ipOffset = ethernetLength + vlanLength
		if len(frame) < p.ipOffset {
			return cutShort(total, p.ipOffset)
		}
		tag := binary.BigEndian.Uint16(frame[14:16])
		p.VLAN, p.Priority, p.Tagged = tag&0xFFF, uint8(tag>>13), true
		etherType = binary.BigEndian.Uint16(frame[16:18])
	}

	var ipPayload int // bytes that the IP header says follow it
	var reason DropReason
	switch etherType {
	case etherTypeIPv4:
		ipPayload, reason = p.parseIPv4(frame, total)
	case etherTypeIPv6:
		ipPayload, reason = p.parseIPv6(frame, total)
	default:
		return DropNotRoCE
	}
	if reason != DropNone {
		return reason
	}
	return p.parseTransport(segments, total, ipPayload)
}

// cutShort tells why the first segment ends before byte need of the frame.
func cutShort(total, need int) DropReason {
	if total >= need {
		return DropHeaderSplit
	}
	return DropTooShort
}

func (p *Packet) parseIPv4(frame []byte, total int) (payload int, reason DropReason) {
	end := p.ipOffset + ipv4Length
	if len(frame) < end {
		return 0, cutShort(total, end)
	}
	ip := frame[p.ipOffset:end]
	switch {
	case ip[0] != 0x45: // Version 4, no options: annex A17 allows none.
		return 0, DropMalformedIP
	case binary.BigEndian.Uint16(ip[6:8])&0x3FFF != 0: // more fragments, or not the first one
		return 0, DropFragment
	case fold(ipv4Sum(ip)) != 0xFFFF:
		return 0, DropIPChecksum
	case ip[9] != protocolUDP:
		return 0, DropNotRoCE
	}
	payload = int(binary.BigEndian.Uint16(ip[2:4])) - ipv4Length
	if payload < 0 {
		return 0, DropMalformedIP
	}
	p.IP = ip
	p.TrafficClass, p.HopLimit, p.FlowLabel = ip[1], ip[8], 0
	copy(p.Source[:12], mappedPrefix[:])
	copy(p.Source[12:], ip[12:16])
	copy(p.Destination[:12], mappedPrefix[:])
	copy(p.Destination[12:], ip[16:20])
	return payload, DropNone
}

func (p *Packet) parseIPv6(frame []byte, total int) (payload int, reason DropReason) {
	end := p.ipOffset + ipv6Length
	if len(frame) < end {
		return 0, cutShort(total, end)
	}
	ip := frame[p.ipOffset:end]
	first := binary.BigEndian.Uint32(ip[0:4])
	switch {
	case first>>28 != 6:
		return 0, DropMalformedIP
	case ip[6] != protocolUDP: // Extension headers, fragments among them, are not RoCE either.
		return 0, DropNotRoCE
	}
	p.IP = ip
	p.TrafficClass, p.HopLimit, p.FlowLabel = uint8(first>>20), ip[7], first&flowLabelMask
	p.Source = GID(ip[8:24])
	p.Destination = GID(ip[24:40])
	return int(binary.BigEndian.Uint16(ip[4:6])), DropNone
}

// parseTransport goes on with the UDP header, which follows p.IP.
func (p *Packet) parseTransport(segments [][]byte, total, ipPayload int) DropReason {
	frame := segments[0]
	udpOffset := p.ipOffset + len(p.IP)
	bthOffset := udpOffset + udpLength
	if ipPayload < udpLength {
		return DropUDPLength
	}
	if len(frame) < bthOffset {
		return cutShort(total, bthOffset)
	}
	udp := frame[udpOffset:bthOffset]
	if binary.BigEndian.Uint16(udp[2:4]) != UDPPort {
		return DropNotRoCE
	}
	if total < udpOffset+ipPayload {
		return DropTooShort
	}
	length := int(binary.BigEndian.Uint16(udp[4:6]))
	if length < udpLength || length > ipPayload {
		return DropUDPLength
	}
	p.SourcePort = binary.BigEndian.Uint16(udp[0:2])
	p.end = udpOffset + length
	p.ChecksumWrong = false
	if udp[6]|udp[7] != 0 {
		var pieces [MaxSegments][]byte
		n := cut(&pieces, segments, udpOffset, p.end)
		p.ChecksumWrong = !udpChecksumValid(p.IP, p.Is4(), length, pieces[:n])
	}

	if length < udpLength+BTHLength {
		return DropTooShort
	}
	if len(frame) < bthOffset+BTHLength {
		return DropHeaderSplit
	}
	bth := BTH(frame[bthOffset : bthOffset+BTHLength])
	p.BTH, p.Opcode, p.PadCount = bth, bth.Opcode(), bth.PadCount()
	info := p.Opcode.Info()
	if info == nil {
		return DropUnknownOpcode
	}
	// Whether pad and ICRC fit must be known before there is a payload length: a pad count larger
	// than what is there would make it negative.
	headers := BTHLength + info.HeaderLength
	payload := length - udpLength - headers - int(p.PadCount) - ICRCLength
	if payload < 0 {
		return DropTooShort
	}
	if len(frame) < bthOffset+headers {
		return DropHeaderSplit
	}
	p.Info, p.PayloadLength = info, payload
	p.DestinationQPN, p.PSN = bth.DestinationQPN(), bth.PSN()
	switch {
	case bth.TransportVersion() != 0:
		return DropTransportVersion
	case p.DestinationQPN == 0:
		return DropQPN0
	case !(info.Request && p.Opcode.Transport() == TransportRC) && !info.Payload.Fits(payload, p.PadCount, 0):
		return DropPayloadLength
	}
	p.transport = frame[bthOffset : bthOffset+headers]
	p.payloadCount = cut(&p.payload, segments, bthOffset+headers, bthOffset+headers+payload)
	return DropNone
}

// CheckICRC checks the ICRC of the frame that the last ParseHeaders passed; segments is the same.
func (p *Packet) CheckICRC(segments [][]byte) DropReason {
	crc, hashed := icrcHeaders(segments[0][p.ipOffset:], p.Is4())
	// The ICRC is hashed with the rest: the result is then a constant if it is right, in whatever
	// way it lies across segments.
	crc = icrcSegments(crc, segments, p.ipOffset+hashed, p.end)
	if crc != icrcResidue {
		return DropICRC
	}
	return DropNone
}

// cut stores the pieces of the frame's bytes start to end and returns how many there are. Empty
// pieces are left out.
func cut(pieces *[MaxSegments][]byte, segments [][]byte, start, end int) int {
	n := 0
	for _, segment := range segments {
		if stop := min(end, len(segment)); start < stop {
			pieces[n] = segment[start:stop]
			n++
		}
		start, end = max(start-len(segment), 0), end-len(segment)
	}
	return n
}
