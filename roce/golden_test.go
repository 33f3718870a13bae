package roce

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/internal/support"
)

// describe puts all that Parse found into one line, as in testdata/vector-fields.tsv.
func describe(p *Packet) string {
	b := p.BTH.Fields()
	flags := ""
	for _, f := range []struct {
		set  bool
		name string
	}{{b.Solicited, "S"}, {b.MigReq, "M"}, {b.FECN, "F"}, {b.BECN, "B"}, {b.AckRequest, "A"}} {
		if f.set {
			flags += f.name
		}
	}
	s := fmt.Sprintf("%s>%s %s>%s tc=%02x hl=%d fl=%05x sp=%04x", p.SourceMAC, p.DestinationMAC, p.Source, p.Destination,
		p.TrafficClass, p.HopLimit, p.FlowLabel, p.SourcePort)
	if p.Tagged {
		s += fmt.Sprintf(" vlan=%d/%d", p.VLAN, p.Priority)
	}
	s += fmt.Sprintf(" | %s[%s] pkey=%04x qpn=%x psn=%x payload=%d+%d", p.Opcode, flags, b.PKey, uint32(p.DestinationQPN), p.PSN, p.PayloadLength, p.PadCount)
	if p.ChecksumWrong {
		s += " | UDP checksum wrong"
	}
	if h := p.DETH(); h != nil {
		s += fmt.Sprintf(" | DETH %x %x", h.QKey(), uint32(h.SourceQPN()))
	}
	if h := p.FETH(); h != nil {
		s += fmt.Sprintf(" | FETH %x %x", h.Selectivity(), h.Placement())
	}
	if h := p.RETH(); h != nil {
		s += fmt.Sprintf(" | RETH %x %x %d", h.VA(), h.RKey(), h.Length())
	}
	if h := p.AtomicETH(); h != nil {
		s += fmt.Sprintf(" | AtomicETH %x %x %x %x", h.VA(), h.RKey(), h.SwapAdd(), h.Compare())
	}
	if h := p.AETH(); h != nil {
		s += fmt.Sprintf(" | AETH %02x %d", uint8(h.Syndrome()), h.MSN())
	}
	if h := p.AtomicAckETH(); h != nil {
		s += fmt.Sprintf(" | AtomicAckETH %x", h.Original())
	}
	if h := p.ImmDt(); h != nil {
		s += fmt.Sprintf(" | ImmDt %x", h.Value())
	}
	if h := p.IETH(); h != nil {
		s += fmt.Sprintf(" | IETH %x", h.RKey())
	}
	return s
}

// pathOf returns the path by which a packet came.
func pathOf(p *Packet) Path {
	return Path{
		SourceMAC: p.SourceMAC, DestinationMAC: p.DestinationMAC, VLAN: p.VLAN, Priority: p.Priority, Tagged: p.Tagged,
		Source: p.Source, Destination: p.Destination,
		TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, FlowLabel: p.FlowLabel, SourcePort: p.SourcePort,
	}
}

// rebuild makes a frame anew from nothing but the fields of a parsed packet. What no sender of ours
// varies, IPv4 identification and UDP checksum, is taken over from the original.
func rebuild(p *Packet, original []byte) []byte {
	template := NewHeaderTemplate(pathOf(p))
	frame := make([]byte, template.Length()+BTHLength+p.Info.HeaderLength+p.PayloadLength+int(p.PadCount)+ICRCLength)
	template.Put(frame)
	bth := frame[template.Length():]
	p.BTH.Fields().Put(bth)
	at := func(h Header) []byte { return bth[p.Info.Offset(h):] }
	if h := p.DETH(); h != nil {
		h.Fields().Put(at(HeaderDETH))
	}
	if h := p.FETH(); h != nil {
		h.Fields().Put(at(HeaderFETH))
	}
	if h := p.RETH(); h != nil {
		h.Fields().Put(at(HeaderRETH))
	}
	if h := p.AtomicETH(); h != nil {
		h.Fields().Put(at(HeaderAtomicETH))
	}
	if h := p.AETH(); h != nil {
		h.Fields().Put(at(HeaderAETH))
	}
	if h := p.AtomicAckETH(); h != nil {
		h.Fields().Put(at(HeaderAtomicAckETH))
	}
	if h := p.ImmDt(); h != nil {
		h.Fields().Put(at(HeaderImmDt))
	}
	if h := p.IETH(); h != nil {
		h.Fields().Put(at(HeaderIETH))
	}
	copy(bth[BTHLength+p.Info.HeaderLength:], bytes.Join(p.Payload(), nil))

	if ip := template.Length() - 28; p.Is4() {
		copy(frame[ip+4:ip+6], original[ip+4:ip+6])
		var sum uint32
		for i := 0; i < 20; i += 2 {
			if i != 10 {
				sum += uint32(binary.BigEndian.Uint16(frame[ip+i:]))
			}
		}
		sum = sum>>16 + sum&0xFFFF
		sum += sum >> 16
		binary.BigEndian.PutUint16(frame[ip+10:], ^uint16(sum))
	}
	copy(frame[template.Length()-2:template.Length()], original[template.Length()-2:])
	template.Seal(frame)
	return frame
}

func readTable(t testing.TB, file string) (header []string, rows [][]string) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	reader := csv.NewReader(f)
	reader.Comma = '\t'
	rows, err = reader.ReadAll()
	require.NoError(t, err)
	return rows[0], rows[1:]
}

func TestGoldenVectors(t *testing.T) {
	fields := map[string]string{}
	_, rows := readTable(t, "testdata/vector-fields.tsv")
	for _, row := range rows {
		fields[row[0]] = row[1]
	}
	var pattern [256]byte
	for j := range pattern {
		pattern[j] = byte(1 + 7*j)
	}
	patterned := 0
	for _, v := range readVectors(t) {
		frame := v.frame(t)
		var p Packet
		require.Equal(t, DropNone, p.Parse([][]byte{frame}), v.Name)
		require.Equal(t, fields[v.Name], describe(&p), v.Name)
		payload := bytes.Join(p.Payload(), nil)
		require.Len(t, payload, p.PayloadLength)
		if len(payload) > 0 && payload[0] == 1 && p.Opcode != RCAtomicWrite && p.DestinationQPN != QPNGSI {
			require.Equal(t, pattern[:len(payload)], payload, v.Name)
			patterned++
		}
		if p.Opcode == CNP {
			require.Equal(t, make([]byte, 16), payload)
		}
		rebuilt := rebuild(&p, frame)
		if v.Name == "rc-send-only-ipv4-len0" {
			require.Len(t, frame, 60)
			frame = frame[:58]
		}
		require.Equal(t, frame, rebuilt, v.Name)
		support.Opcode(t, p.Opcode, support.Codec)
	}
	require.Equal(t, 15, patterned)
}

func TestGoldenCaptures(t *testing.T) {
	header, rows := readTable(t, "testdata/tshark.tsv")
	require.Len(t, rows, 646)

	var p Packet
	var badICRC []string
	other := 0
	for _, c := range readCaptures(t) {
		name := fmt.Sprintf("%s %d", c.file, c.number)
		reason := p.ParseHeaders([][]byte{c.bytes})
		if !isRoCE(c.bytes) {
			require.Equal(t, DropNotRoCE, reason, name)
			other++
			continue
		}
		require.Equal(t, DropNone, reason, name)
		require.NotEmpty(t, rows, name)
		compareWithTable(t, &p, c, header, rows[0])
		rows = rows[1:]

		rebuilt, original := rebuild(&p, c.bytes), c.bytes
		switch p.Parse([][]byte{original}) {
		case DropNone:
			support.Opcode(t, p.Opcode, support.Codec)
		case DropICRC:
			badICRC = append(badICRC, fmt.Sprintf("%s %s", c.file, p.Opcode))
			original, rebuilt = original[:len(original)-ICRCLength], rebuilt[:len(rebuilt)-ICRCLength]
		default:
			require.Fail(t, name)
		}
		require.Equal(t, original, rebuilt, name)
	}
	require.Empty(t, rows)
	require.Positive(t, other)
	require.Equal(t, []string{"rc-flush-atomic-write RC_FLUSH", "rc-flush-atomic-write RC_FLUSH"}, badICRC)
}

// tableRow is a row of tshark's table, by the title of the column.
type tableRow struct {
	t      *testing.T
	name   string
	column map[string]string
}

func (r tableRow) text(title string) string { return r.column[title] }

// either is the one of two columns that has something.
func (r tableRow) either(a, b string) string { return r.column[a] + r.column[b] }

func (r tableRow) has(title string) bool { return r.column[title] != "" }

// number reads the text of a number.
func (r tableRow) number(text string) uint64 {
	v, err := strconv.ParseUint(text, 0, 64)
	require.NoError(r.t, err, "%s: %q", r.name, text)
	return v
}

// equal compares a column with a number.
func (r tableRow) equal(title string, got uint64) {
	r.t.Helper()
	require.Equal(r.t, r.number(r.text(title)), got, "%s: %s", r.name, title)
}

// flag compares a column with a bit.
func (r tableRow) flag(title string, got bool) {
	r.t.Helper()
	require.Equal(r.t, r.text(title), map[bool]string{false: "0", true: "1"}[got], "%s: %s", r.name, title)
}

// compareWithTable compares a packet with a line of testdata/tshark.tsv.
func compareWithTable(t *testing.T, p *Packet, c capturedFrame, header, row []string) {
	r := tableRow{t, fmt.Sprintf("%s %d", c.file, c.number), map[string]string{}}
	for i, title := range header {
		r.column[title] = row[i]
	}
	gid := func(s string) GID { return GIDFromAddr(netip.MustParseAddr(s)) }
	require.Equal(t, c.file, r.text("file"))
	require.Equal(t, strconv.Itoa(c.number), r.text("frame.number"), r.name)
	require.Equal(t, r.text("eth.src"), p.SourceMAC.String(), r.name)
	require.Equal(t, r.text("eth.dst"), p.DestinationMAC.String(), r.name)
	require.Equal(t, r.has("vlan.id"), p.Tagged, r.name)
	if p.Tagged {
		r.equal("vlan.id", uint64(p.VLAN))
		r.equal("vlan.priority", uint64(p.Priority))
	}
	require.Equal(t, gid(r.either("ip.src", "ipv6.src")), p.Source, r.name)
	require.Equal(t, gid(r.either("ip.dst", "ipv6.dst")), p.Destination, r.name)
	require.Equal(t, r.has("ip.src"), p.Is4(), r.name)
	require.Equal(t, r.number(r.either("ip.dsfield", "ipv6.tclass")), uint64(p.TrafficClass), r.name)
	require.Equal(t, r.number(r.either("ip.ttl", "ipv6.hlim")), uint64(p.HopLimit), r.name)
	r.equal("udp.srcport", uint64(p.SourcePort))

	bth := p.BTH.Fields()
	r.equal("infiniband.bth.opcode", uint64(p.Opcode))
	require.Equal(t, p.Opcode, bth.Opcode)
	r.flag("infiniband.bth.se", bth.Solicited)
	r.flag("infiniband.bth.m", bth.MigReq)
	r.flag("infiniband.bth.a", bth.AckRequest)
	r.equal("infiniband.bth.padcnt", uint64(p.PadCount))
	r.equal("infiniband.bth.p_key", uint64(bth.PKey))
	r.equal("infiniband.bth.destqp", uint64(p.DestinationQPN))
	r.equal("infiniband.bth.psn", uint64(p.PSN))
	overhead := udpLength + BTHLength + p.Info.HeaderLength + int(p.PadCount) + ICRCLength
	require.Equal(t, int(r.number(r.text("udp.length")))-overhead, p.PayloadLength, r.name)
	compareExtensions(r, p)
}

// compareExtensions does the same for the extension headers.
func compareExtensions(r tableRow, p *Packet) {
	known := p.Opcode != RCFlush && p.Opcode != RCAtomicWrite // to tshark
	if h := p.RETH(); h != nil && known {
		r.equal("infiniband.reth.va", h.VA())
		r.equal("infiniband.reth.r_key", uint64(h.RKey()))
		r.equal("infiniband.reth.dmalen", uint64(h.Length()))
	}
	if h := p.AtomicETH(); h != nil {
		r.equal("infiniband.reth.va", h.VA())
		r.equal("infiniband.reth.r_key", uint64(h.RKey()))
		r.equal("infiniband.atomiceth.swapdt", h.SwapAdd())
		r.equal("infiniband.atomiceth.cmpdt", h.Compare())
	}
	if h := p.AETH(); h != nil {
		r.equal("infiniband.aeth.syndrome", uint64(h.Syndrome()))
		r.equal("infiniband.aeth.msn", uint64(h.MSN()))
	}
	if h := p.AtomicAckETH(); h != nil {
		r.equal("infiniband.atomicacketh.origremdt", h.Original())
	}
	if h := p.ImmDt(); h != nil {
		require.Equal(r.t, r.number("0x"+r.text("infiniband.immdt")), uint64(h.Value()), r.name)
	}
	if h := p.IETH(); h != nil {
		require.Equal(r.t, r.number("0x"+r.text("infiniband.ieth")), uint64(h.RKey()), r.name)
	}
	if h := p.DETH(); h != nil {
		r.equal("infiniband.deth.q_key", uint64(h.QKey()))
		r.equal("infiniband.deth.srcqp", uint64(h.SourceQPN()))
	}
	require.Equal(r.t, r.has("infiniband.reth.va"), (p.RETH() != nil && known) || p.AtomicETH() != nil, r.name)
	require.Equal(r.t, r.has("infiniband.aeth.syndrome"), p.AETH() != nil, r.name)
	require.Equal(r.t, r.has("infiniband.immdt"), p.ImmDt() != nil, r.name)
	require.Equal(r.t, r.has("infiniband.ieth"), p.IETH() != nil, r.name)
	require.Equal(r.t, r.has("infiniband.deth.q_key"), p.DETH() != nil, r.name)
}

// The messages of these captures carry a known pattern, which shows where a payload begins and ends.
func TestGoldenCapturePayload(t *testing.T) {
	// What the responder's pattern differs by: in most captures a WRITE has replaced it before the READ.
	patterned := map[string]byte{
		"rc-send-ipv4": 0, "rc-send-ipv6": 0, "rc-write-ipv4": 0, "uc-ipv4": 0, "rc-read-ipv4": 128, "rc-read-ipv6": 128,
		"rc-mtu256": 0, "rc-mtu1024": 0, "rc-mtu2048": 0, "rc-mtu4096": 0, "rc-vlan-ipv4": 0, "rc-vlan-ipv6": 0,
	}
	var p Packet
	var offset, packets, total int
	for _, c := range readCaptures(t) {
		difference, ok := patterned[c.file]
		if !ok || p.Parse([][]byte{c.bytes}) != DropNone {
			continue
		}
		if p.Info.Starts() {
			offset = 0
		}
		for _, b := range bytes.Join(p.Payload(), nil) {
			require.Equal(t, byte(7*offset+offset/256)+difference, b, "%s %d, byte %d of the message", c.file, c.number, offset)
			offset++
			total++
		}
		packets++
	}
	require.Equal(t, 393, packets)
	require.Positive(t, total)
}
