package verbs_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/verbs"
)

// text checks that values of a type show their names in texts, JSON and both handlers of log/slog, no two the same, and
// that they come back from JSON. Numbers without a name do so, too.
func text[T interface {
	comparable
	fmt.Stringer
}](t *testing.T, names map[T]string, unknown ...T,
) {
	t.Helper()
	seen := make(map[string]bool)
	for value, name := range names {
		require.Equal(t, name, value.String())
	}
	for _, value := range unknown {
		names[value] = value.String()
	}
	for value, name := range names {
		require.False(t, seen[name], "%T: %s", value, name)
		seen[name] = true
		require.Equal(t, name, fmt.Sprint(value))
		line, err := json.Marshal(struct{ V T }{value})
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(`{"V":%q}`, name), string(line), "%T", value)
		var back struct{ V T }
		require.NoError(t, json.Unmarshal(line, &back), "%T: %s", value, line)
		require.Equal(t, value, back.V)

		require.Contains(t, logged(func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) }, value),
			fmt.Sprintf(`"v":%q`, name), "%T", value)
		require.Contains(t, logged(func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) }, value), name, "%T", value)
	}
	into, ok := any(new(T)).(encoding.TextUnmarshaler)
	require.True(t, ok)
	require.ErrorContains(t, into.UnmarshalText([]byte("no such name")), `"no such name" is no `)
}

// logged is what a handler makes of a value under the key v.
func logged(handler func(*bytes.Buffer) slog.Handler, value any) string {
	var b bytes.Buffer
	slog.New(handler(&b)).Info("message", "v", value)
	return b.String()
}

// TestNamesInTexts: whatever the verbs enumerate shows its name, not its number.
func TestNamesInTexts(t *testing.T) {
	text(t, map[verbs.WCStatus]string{
		verbs.WCSuccess: "success", verbs.WCLocLenErr: "local length error", verbs.WCLocQPOpErr: "local QP operation error",
		verbs.WCLocProtErr: "local protection error", verbs.WCWRFlushErr: "work request flushed",
		verbs.WCMWBindErr: "memory window bind error", verbs.WCBadRespErr: "bad response",
		verbs.WCLocAccessErr: "local access error", verbs.WCRemInvReqErr: "remote invalid request error",
		verbs.WCRemAccessErr: "remote access error", verbs.WCRemOpErr: "remote operation error",
		verbs.WCRetryExcErr: "transport retry counter exceeded", verbs.WCRNRRetryExcErr: "RNR retry counter exceeded",
		verbs.WCFatalErr: "fatal error", verbs.WCGeneralErr: "general error",
	}, 3, 255)
	text(t, map[verbs.WCOpcode]string{
		verbs.WCSend: "SEND", verbs.WCRDMAWrite: "RDMA WRITE", verbs.WCRDMARead: "RDMA READ",
		verbs.WCCompSwap: "compare-and-swap", verbs.WCFetchAdd: "fetch-and-add", verbs.WCBindMW: "bind memory window",
		verbs.WCLocalInv: "local invalidate", verbs.WCFlush: "FLUSH", verbs.WCAtomicWrite: "atomic write",
		verbs.WCRegMR: "register memory region", verbs.WCRecv: "RECV",
		verbs.WCRecvRDMAWithImm: "RECV of RDMA WRITE with immediate",
	}, 7, 255)
	text(t, map[verbs.WROpcode]string{
		verbs.WRRDMAWrite: "RDMA WRITE", verbs.WRRDMAWriteWithImm: "RDMA WRITE with immediate", verbs.WRSend: "SEND",
		verbs.WRSendWithImm: "SEND with immediate", verbs.WRRDMARead: "RDMA READ", verbs.WRAtomicCmpAndSwp: "compare-and-swap",
		verbs.WRAtomicFetchAdd: "fetch-and-add", verbs.WRLocalInv: "local invalidate", verbs.WRBindMW: "bind memory window",
		verbs.WRSendWithInv: "SEND with invalidate", verbs.WRFlush: "FLUSH", verbs.WRAtomicWrite: "atomic write",
		verbs.WRRegMR: "register memory region",
	}, 10, 255)
	text(t, map[verbs.EventType]string{
		verbs.EventCQErr: "CQ error", verbs.EventQPFatal: "QP fatal error", verbs.EventQPReqErr: "QP invalid request error",
		verbs.EventQPAccessErr: "QP access error", verbs.EventCommEst: "communication established",
		verbs.EventSQDrained: "send queue drained", verbs.EventDeviceFatal: "device fatal error",
		verbs.EventPortActive: "port active", verbs.EventPortErr: "port error", verbs.EventSRQErr: "SRQ error",
		verbs.EventSRQLimitReached: "SRQ limit reached", verbs.EventQPLastWQEReached: "last WQE reached",
		verbs.EventGIDChange: "GID change",
	}, 6, 255)
	text(t, map[verbs.QPState]string{
		verbs.StateReset: "RESET", verbs.StateInit: "INIT", verbs.StateRTR: "RTR", verbs.StateRTS: "RTS",
		verbs.StateSQD: "SQD", verbs.StateError: "ERR",
	}, 5, 99)
	text(t, map[verbs.QPType]string{verbs.QPTRC: "RC"}, 0, 3)
	text(t, map[verbs.PortState]string{verbs.PortDown: "down", verbs.PortActive: "active"}, 0, 3)
	text(t, map[verbs.AtomicCap]string{verbs.AtomicNone: "none", verbs.AtomicHCA: "device", verbs.AtomicGlob: "global"}, 9)
	text(t, map[verbs.MWType]string{verbs.MWType1: "type 1", verbs.MWType2: "type 2"}, 0, 3)
	text(t, map[verbs.XDPMode]string{verbs.XDPAuto: "auto", verbs.XDPNative: "native", verbs.XDPGeneric: "generic"}, 9)
	text(t, map[verbs.CopyMode]string{verbs.CopyAuto: "auto", verbs.CopyOnly: "copy", verbs.ZeroCopy: "zero copy"}, 9)
	text(t, map[verbs.MultiBuffer]string{
		verbs.MultiBufferAuto: "auto", verbs.MultiBufferOn: "on", verbs.MultiBufferOff: "off",
	}, 9)
}

// TestNamesOfFlags: sets show the names of their bits, and those without a name as numbers.
func TestNamesOfFlags(t *testing.T) {
	text(t, map[verbs.AccessFlags]string{
		0: "0", verbs.AccessLocalWrite: "LOCAL_WRITE", verbs.AccessMWBind: "MW_BIND", verbs.AccessZeroBased: "ZERO_BASED",
		verbs.AccessOnDemand: "ON_DEMAND", verbs.AccessHugeTLB: "HUGETLB", verbs.AccessRelaxedOrdering: "RELAXED_ORDERING",
		verbs.AccessRemoteAtomic | verbs.AccessRemoteRead | verbs.AccessRemoteWrite: "REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC",
		verbs.AccessFlushGlobal | verbs.AccessFlushPersistent | 1<<31 | 1<<30:       "FLUSH_GLOBAL|FLUSH_PERSISTENT|0x40000000|0x80000000",
	}, 1<<32-1)
	text(t, map[verbs.SendFlags]string{
		0: "0", verbs.SendFence | verbs.SendInline: "FENCE|INLINE", verbs.SendSignaled: "SIGNALED",
		verbs.SendSolicited | 0x80: "SOLICITED|0x80",
	}, 255)
	text(t, map[verbs.WCFlags]string{
		0: "0", verbs.WCWithImm: "WITH_IMM", verbs.WCWithInv: "WITH_INV", verbs.WCPeerRequest | 1: "PEER_REQUEST|0x1",
	}, 255)
	text(t, map[verbs.QPAttrMask]string{
		0: "0", verbs.QPStateMask | verbs.QPPort: "STATE|PORT", verbs.QPDestQPN | 1<<31: "DEST_QPN|0x80000000",
	}, 1<<32-1)
	text(t, map[verbs.SRQAttrMask]string{0: "0", verbs.SRQMaxWR | verbs.SRQLimit: "MAX_WR|LIMIT"}, 255)
}

// TestTextsOfWholes: what contains names shows them, and addresses are no lists of bytes.
func TestTextsOfWholes(t *testing.T) {
	inJSON := func(value any) string {
		return logged(func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) }, value)
	}
	wc := verbs.WC{Status: verbs.WCRetryExcErr, Opcode: verbs.WCRDMAWrite, Flags: verbs.WCWithImm, Syndrome: 0x60}
	line := inJSON(wc)
	for _, want := range []string{
		`"Status":"transport retry counter exceeded"`, `"Opcode":"RDMA WRITE"`, `"Flags":"WITH_IMM"`, `"Syndrome":"NAK PSN sequence error"`,
	} {
		require.Contains(t, line, want)
	}
	var back verbs.WC
	whole, err := json.Marshal(wc)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(whole, &back))
	require.Equal(t, wc, back)

	require.Contains(t, inJSON(verbs.Options{Mode: verbs.XDPNative}), `"Mode":"native","Copy":"auto","MultiBuffer":"auto"`)
	require.Contains(t, inJSON(verbs.AsyncEvent{Type: verbs.EventPortErr}), `"v":"port error"`)
	require.Contains(t, inJSON(verbs.MTU1024), `"v":"1024"`)

	devices, links := memPorts(t)
	e := newEnd(t, devices[0], make([]byte, 4096), verbs.QPCap{})
	other := newEnd(t, devices[1], make([]byte, 4096), verbs.QPCap{})
	connect(t, e, other, verbs.ConnectOptions{})
	attr := e.qp.Query()
	line = inJSON(attr)
	addresses, err := links[1].Addresses()
	require.NoError(t, err)
	for _, want := range []string{
		`"State":"RTS"`, `"AccessFlags":"REMOTE_WRITE|REMOTE_READ"`, fmt.Sprintf(`"DGID":"%v"`, addresses[0]),
	} {
		require.Contains(t, line, want)
	}
	whole, err = json.Marshal(attr)
	require.NoError(t, err)
	var again verbs.QPAttr
	require.NoError(t, json.Unmarshal(whole, &again))
	require.Equal(t, attr, again)

	snapshot, err := devices[0].Snapshot()
	require.NoError(t, err)
	regions, err := json.Marshal(snapshot.MRs)
	require.NoError(t, err)
	require.Contains(t, string(regions), `"access":"LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ"`)
}
