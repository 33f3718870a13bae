package roce

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// opcodeRow is one line of the opcode table in the specification, written down a second time and in
// another form than the one under test.
type opcodeRow struct {
	opcode  byte
	name    string
	headers string // in wire order
	length  int    // of the headers
	payload string
	role    string
	place   string
}

var opcodeRows = []opcodeRow{
	{0x00, "RC_SEND_FIRST", "", 0, "mtu", "request", "first"},
	{0x01, "RC_SEND_MIDDLE", "", 0, "mtu", "request", "middle"},
	{0x02, "RC_SEND_LAST", "", 0, "1..mtu", "request", "last"},
	{0x03, "RC_SEND_LAST_WITH_IMMEDIATE", "ImmDt", 4, "1..mtu", "request", "last"},
	{0x04, "RC_SEND_ONLY", "", 0, "0..mtu", "request", "only"},
	{0x05, "RC_SEND_ONLY_WITH_IMMEDIATE", "ImmDt", 4, "0..mtu", "request", "only"},
	{0x06, "RC_RDMA_WRITE_FIRST", "RETH", 16, "mtu", "request", "first"},
	{0x07, "RC_RDMA_WRITE_MIDDLE", "", 0, "mtu", "request", "middle"},
	{0x08, "RC_RDMA_WRITE_LAST", "", 0, "1..mtu", "request", "last"},
	{0x09, "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE", "ImmDt", 4, "1..mtu", "request", "last"},
	{0x0A, "RC_RDMA_WRITE_ONLY", "RETH", 16, "0..mtu", "request", "only"},
	{0x0B, "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", "RETH ImmDt", 20, "0..mtu", "request", "only"},
	{0x0C, "RC_RDMA_READ_REQUEST", "RETH", 16, "none", "request", "only"},
	{0x0D, "RC_RDMA_READ_RESPONSE_FIRST", "AETH", 4, "mtu", "response", "first"},
	{0x0E, "RC_RDMA_READ_RESPONSE_MIDDLE", "", 0, "mtu", "response", "middle"},
	{0x0F, "RC_RDMA_READ_RESPONSE_LAST", "AETH", 4, "1..mtu", "response", "last"},
	{0x10, "RC_RDMA_READ_RESPONSE_ONLY", "AETH", 4, "0..mtu", "response", "only"},
	{0x11, "RC_ACKNOWLEDGE", "AETH", 4, "none", "response", "only"},
	{0x12, "RC_ATOMIC_ACKNOWLEDGE", "AETH AtomicAckETH", 12, "none", "response", "only"},
	{0x13, "RC_COMPARE_SWAP", "AtomicETH", 28, "none", "request", "only"},
	{0x14, "RC_FETCH_ADD", "AtomicETH", 28, "none", "request", "only"},
	{0x16, "RC_SEND_LAST_WITH_INVALIDATE", "IETH", 4, "1..mtu", "request", "last"},
	{0x17, "RC_SEND_ONLY_WITH_INVALIDATE", "IETH", 4, "0..mtu", "request", "only"},
	{0x1C, "RC_FLUSH", "FETH RETH", 20, "none", "request", "only"},
	{0x1D, "RC_ATOMIC_WRITE", "RETH", 16, "8", "request", "only"},
	{0x20, "UC_SEND_FIRST", "", 0, "mtu", "request", "first"},
	{0x21, "UC_SEND_MIDDLE", "", 0, "mtu", "request", "middle"},
	{0x22, "UC_SEND_LAST", "", 0, "1..mtu", "request", "last"},
	{0x23, "UC_SEND_LAST_WITH_IMMEDIATE", "ImmDt", 4, "1..mtu", "request", "last"},
	{0x24, "UC_SEND_ONLY", "", 0, "0..mtu", "request", "only"},
	{0x25, "UC_SEND_ONLY_WITH_IMMEDIATE", "ImmDt", 4, "0..mtu", "request", "only"},
	{0x26, "UC_RDMA_WRITE_FIRST", "RETH", 16, "mtu", "request", "first"},
	{0x27, "UC_RDMA_WRITE_MIDDLE", "", 0, "mtu", "request", "middle"},
	{0x28, "UC_RDMA_WRITE_LAST", "", 0, "1..mtu", "request", "last"},
	{0x29, "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE", "ImmDt", 4, "1..mtu", "request", "last"},
	{0x2A, "UC_RDMA_WRITE_ONLY", "RETH", 16, "0..mtu", "request", "only"},
	{0x2B, "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", "RETH ImmDt", 20, "0..mtu", "request", "only"},
	{0x64, "UD_SEND_ONLY", "DETH", 8, "0..mtu", "request", "only"},
	{0x65, "UD_SEND_ONLY_WITH_IMMEDIATE", "DETH ImmDt", 12, "0..mtu", "request", "only"},
	{0x81, "CNP", "", 0, "16", "response", "only"},
}

func TestOpcodeTable(t *testing.T) {
	rows := map[byte]opcodeRow{}
	for _, row := range opcodeRows {
		rows[row.opcode] = row
	}
	require.Len(t, rows, 25+12+3)

	headers := map[Header]string{
		HeaderRETH: "RETH", HeaderAETH: "AETH", HeaderImmDt: "ImmDt", HeaderIETH: "IETH", HeaderDETH: "DETH",
		HeaderAtomicETH: "AtomicETH", HeaderAtomicAckETH: "AtomicAckETH", HeaderFETH: "FETH",
	}
	rules := map[PayloadRule]string{
		PayloadNone: "none", PayloadFull: "mtu", PayloadSome: "1..mtu", PayloadAny: "0..mtu", PayloadEight: "8", PayloadSixteen: "16",
	}
	roles := map[bool]string{true: "request", false: "response"}
	positions := map[Position]string{PositionFirst: "first", PositionMiddle: "middle", PositionLast: "last", PositionOnly: "only"}

	for n := 0; n < 256; n++ {
		opcode := Opcode(n)
		info := opcode.Info()
		row, defined := rows[byte(n)]
		if !defined {
			require.Nil(t, info, "opcode %#02x", n)
			require.Equal(t, fmt.Sprintf("opcode %#02x", n), opcode.String())
			continue
		}
		require.NotNil(t, info, row.name)
		atOffset := map[int]string{}
		for bit, name := range headers {
			require.Equal(t, info.Has(bit), info.Offset(bit) >= 0, row.name)
			if offset := info.Offset(bit); offset >= 0 {
				atOffset[offset] = name
			}
		}
		found := ""
		for offset := 0; offset < BTHLength+info.HeaderLength; offset++ {
			if name := atOffset[offset]; name != "" {
				found += " " + name
			}
		}
		if found != "" {
			found = found[1:]
		}
		require.Equal(t, row, opcodeRow{
			byte(n), opcode.String(), found, info.HeaderLength, rules[info.Payload], roles[info.Request], positions[info.Position],
		})
		require.Equal(t, row.place == "first" || row.place == "only", info.Starts(), row.name)
		require.Equal(t, row.place == "last" || row.place == "only", info.Ends(), row.name)
		require.Equal(t, -1, info.Offset(0), row.name)
	}
}

// The offsets that come up in two-header packets, spelled out.
func TestOpcodeHeaderOffsets(t *testing.T) {
	require.Equal(t, 12, RCWriteOnlyImmediate.Info().Offset(HeaderRETH))
	require.Equal(t, 28, RCWriteOnlyImmediate.Info().Offset(HeaderImmDt))
	require.Equal(t, 12, RCFlush.Info().Offset(HeaderFETH))
	require.Equal(t, 16, RCFlush.Info().Offset(HeaderRETH))
	require.Equal(t, 12, RCAtomicAcknowledge.Info().Offset(HeaderAETH))
	require.Equal(t, 16, RCAtomicAcknowledge.Info().Offset(HeaderAtomicAckETH))
	require.Equal(t, 12, UDSendOnlyImmediate.Info().Offset(HeaderDETH))
	require.Equal(t, 20, UDSendOnlyImmediate.Info().Offset(HeaderImmDt))
}

func TestOpcodeOperations(t *testing.T) {
	operations := map[Operation][]Opcode{
		OperationSend: {
			0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x16, 0x17, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x64, 0x65,
		},
		OperationWrite:             {0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x2B},
		OperationRead:              {0x0C},
		OperationReadResponse:      {0x0D, 0x0E, 0x0F, 0x10},
		OperationAcknowledge:       {0x11},
		OperationAtomicAcknowledge: {0x12},
		OperationCompareSwap:       {0x13},
		OperationFetchAdd:          {0x14},
		OperationFlush:             {0x1C},
		OperationAtomicWrite:       {0x1D},
		OperationCNP:               {0x81},
	}
	found := map[Operation][]Opcode{}
	for n := 0; n < 256; n++ {
		if info := Opcode(n).Info(); info != nil {
			found[info.Operation] = append(found[info.Operation], Opcode(n))
		}
	}
	require.Equal(t, operations, found)
}

func TestTransport(t *testing.T) {
	names := map[Opcode]string{RCFetchAdd: "RC", UCWriteOnly: "UC", 0x44: "RD", UDSendOnly: "UD", CNP: "CNP", 0xA4: "XRC", 0xFF: "Transport(7)"}
	for opcode, name := range names {
		require.Equal(t, name, opcode.Transport().String())
	}
}

func TestPayloadRuleFits(t *testing.T) {
	for _, c := range []struct {
		rule   PayloadRule
		length int
		pad    uint8
		mtu    MTU
		fits   bool
	}{
		{PayloadNone, 0, 0, MTU1024, true},
		{PayloadNone, 4, 0, MTU1024, false},
		{PayloadNone, 0, 3, MTU1024, false},
		{PayloadFull, 1024, 0, MTU1024, true},
		{PayloadFull, 1023, 1, MTU1024, false},
		{PayloadFull, 512, 0, MTU1024, false},
		{PayloadFull, 2048, 0, MTU1024, false},
		{PayloadFull, 512, 0, 0, true},
		{PayloadFull, 4096, 0, 0, true},
		{PayloadFull, 768, 0, 0, false},
		{PayloadFull, 8192, 0, 0, false},
		{PayloadFull, 0, 0, 0, false},
		{PayloadSome, 0, 0, MTU256, false},
		{PayloadSome, 1, 3, MTU256, true},
		{PayloadSome, 1, 0, MTU256, false},
		{PayloadSome, 256, 0, MTU256, true},
		{PayloadSome, 257, 3, MTU256, false},
		{PayloadSome, 257, 3, 0, true},
		{PayloadAny, 0, 0, MTU256, true},
		{PayloadAny, 2, 2, MTU256, true},
		{PayloadAny, 3, 1, MTU256, true},
		{PayloadAny, 3, 2, MTU256, false},
		{PayloadAny, 257, 3, MTU256, false},
		{PayloadAny, 4097, 3, 0, false},
		{PayloadAny, -4, 0, 0, false},
		{PayloadEight, 8, 0, MTU256, true},
		{PayloadEight, 7, 1, MTU256, false},
		{PayloadEight, 12, 0, MTU256, false},
		{PayloadSixteen, 16, 0, MTU256, true},
		{PayloadSixteen, 12, 0, MTU256, false},
		{PayloadRule(200), 0, 0, MTU256, false},
	} {
		require.Equal(t, c.fits, c.rule.Fits(c.length, c.pad, c.mtu), "%+v", c)
	}
}
