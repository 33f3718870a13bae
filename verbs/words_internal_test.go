package verbs

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/memory"
	"github.com/xroce/xroce/roce/queue"
	"github.com/xroce/xroce/roce/transport"
)

// TestWordsOfTheRing: the words of verbs have the fields of the ring's at the same places, so that lists of them can
// be taken for one another.
func TestWordsOfTheRing(t *testing.T) {
	for _, pair := range [][2]reflect.Type{
		{reflect.TypeFor[SendWR](), reflect.TypeFor[queue.SendWR]()},
		{reflect.TypeFor[RecvWR](), reflect.TypeFor[queue.RecvWR]()},
		{reflect.TypeFor[WC](), reflect.TypeFor[queue.WC]()},
	} {
		requireSameLayout(t, pair[0], pair[1])
	}
}

func requireSameLayout(t *testing.T, a, b reflect.Type) {
	t.Helper()
	require.Equal(t, a.Kind(), b.Kind(), "%v and %v", a, b)
	require.Equal(t, a.Size(), b.Size(), "%v and %v", a, b)
	require.Equal(t, a.Align(), b.Align(), "%v and %v", a, b)
	switch a.Kind() {
	case reflect.Struct:
		require.Equal(t, a.NumField(), b.NumField(), "%v and %v", a, b)
		for i := range a.NumField() {
			require.Equal(t, a.Field(i).Name, b.Field(i).Name)
			require.Equal(t, a.Field(i).Offset, b.Field(i).Offset, "%v.%s", a, a.Field(i).Name)
			requireSameLayout(t, a.Field(i).Type, b.Field(i).Type)
		}
	case reflect.Slice:
		requireSameLayout(t, a.Elem(), b.Elem())
	case reflect.Pointer, reflect.Map, reflect.Interface:
		require.Equal(t, a, b)
	}
}

// TestWordsOfTheEngine: every value has the meaning here that it has in the engine, by its name there.
func TestWordsOfTheEngine(t *testing.T) {
	require.Equal(t, map[WROpcode]queue.Opcode{
		WRRDMAWrite: queue.RDMAWrite, WRRDMAWriteWithImm: queue.RDMAWriteWithImmediate, WRSend: queue.Send,
		WRSendWithImm: queue.SendWithImmediate, WRRDMARead: queue.RDMARead, WRAtomicCmpAndSwp: queue.CompareSwap,
		WRAtomicFetchAdd: queue.FetchAdd, WRLocalInv: queue.LocalInvalidate, WRBindMW: queue.BindWindow,
		WRSendWithInv: queue.SendWithInvalidate, WRFlush: queue.Flush, WRAtomicWrite: queue.AtomicWrite, WRRegMR: queue.RegisterRegion,
	}, same[WROpcode, queue.Opcode](WRRDMAWrite, WRRDMAWriteWithImm, WRSend, WRSendWithImm, WRRDMARead, WRAtomicCmpAndSwp,
		WRAtomicFetchAdd, WRLocalInv, WRBindMW, WRSendWithInv, WRFlush, WRAtomicWrite, WRRegMR))
	require.Equal(t, map[SendFlags]queue.SendFlags{
		SendFence: queue.SendFence, SendSignaled: queue.SendSignaled, SendSolicited: queue.SendSolicited, SendInline: queue.SendInline,
	}, same[SendFlags, queue.SendFlags](SendFence, SendSignaled, SendSolicited, SendInline))
	require.Equal(t, map[WCStatus]queue.WCStatus{
		WCSuccess: queue.WCSuccess, WCLocLenErr: queue.WCLocLenErr, WCLocQPOpErr: queue.WCLocQPOpErr, WCLocProtErr: queue.WCLocProtErr,
		WCWRFlushErr: queue.WCWRFlushErr, WCMWBindErr: queue.WCMWBindErr, WCBadRespErr: queue.WCBadRespErr,
		WCLocAccessErr: queue.WCLocAccessErr, WCRemInvReqErr: queue.WCRemInvReqErr, WCRemAccessErr: queue.WCRemAccessErr,
		WCRemOpErr: queue.WCRemOpErr, WCRetryExcErr: queue.WCRetryExcErr, WCRNRRetryExcErr: queue.WCRNRRetryExcErr,
		WCFatalErr: queue.WCFatalErr, WCGeneralErr: queue.WCGeneralErr,
	}, same[WCStatus, queue.WCStatus](WCSuccess, WCLocLenErr, WCLocQPOpErr, WCLocProtErr, WCWRFlushErr, WCMWBindErr, WCBadRespErr,
		WCLocAccessErr, WCRemInvReqErr, WCRemAccessErr, WCRemOpErr, WCRetryExcErr, WCRNRRetryExcErr, WCFatalErr, WCGeneralErr))
	require.Equal(t, map[WCOpcode]queue.WCOpcode{
		WCSend: queue.WCSend, WCRDMAWrite: queue.WCRDMAWrite, WCRDMARead: queue.WCRDMARead, WCCompSwap: queue.WCCompareSwap,
		WCFetchAdd: queue.WCFetchAdd, WCBindMW: queue.WCBindWindow, WCLocalInv: queue.WCLocalInvalidate, WCFlush: queue.WCFlush,
		WCAtomicWrite: queue.WCAtomicWrite, WCRegMR: queue.WCRegisterRegion, WCRecv: queue.WCRecv,
		WCRecvRDMAWithImm: queue.WCRecvRDMAWithImmediate,
	}, same[WCOpcode, queue.WCOpcode](WCSend, WCRDMAWrite, WCRDMARead, WCCompSwap, WCFetchAdd, WCBindMW, WCLocalInv, WCFlush,
		WCAtomicWrite, WCRegMR, WCRecv, WCRecvRDMAWithImm))
	require.Equal(t, map[WCFlags]queue.WCFlags{
		WCWithImm: queue.WCWithImmediate, WCWithInv: queue.WCWithInvalidate, WCPeerRequest: queue.WCPeerRequest,
	}, same[WCFlags, queue.WCFlags](WCWithImm, WCWithInv, WCPeerRequest))
	require.Equal(t, map[AccessFlags]memory.Access{
		AccessLocalWrite: memory.LocalWrite, AccessRemoteWrite: memory.RemoteWrite, AccessRemoteRead: memory.RemoteRead,
		AccessRemoteAtomic: memory.RemoteAtomic, AccessMWBind: memory.BindWindow, AccessZeroBased: memory.ZeroBased,
		AccessOnDemand: memory.OnDemand, AccessHugeTLB: memory.HugeTLB, AccessFlushGlobal: memory.FlushGlobal,
		AccessFlushPersistent: memory.FlushPersistent, AccessRelaxedOrdering: memory.RelaxedOrdering,
	}, same[AccessFlags, memory.Access](AccessLocalWrite, AccessRemoteWrite, AccessRemoteRead, AccessRemoteAtomic, AccessMWBind,
		AccessZeroBased, AccessOnDemand, AccessHugeTLB, AccessFlushGlobal, AccessFlushPersistent, AccessRelaxedOrdering))
	require.Equal(t, map[AccessFault]memory.Fault{
		FaultNone: memory.FaultNone, FaultKey: memory.FaultKey, FaultDomain: memory.FaultDomain, FaultOwner: memory.FaultOwner,
		FaultAccess: memory.FaultAccess, FaultBounds: memory.FaultBounds, FaultAlignment: memory.FaultAlignment,
		FaultBuffer: memory.FaultBuffer, FaultState: memory.FaultState, FaultBound: memory.FaultBound,
	}, same[AccessFault, memory.Fault](FaultNone, FaultKey, FaultDomain, FaultOwner, FaultAccess, FaultBounds, FaultAlignment,
		FaultBuffer, FaultState, FaultBound))
	require.Equal(t, map[QPState]transport.State{
		StateReset: transport.StateReset, StateInit: transport.StateInit, StateRTR: transport.StateRTR, StateRTS: transport.StateRTS,
		StateSQD: transport.StateSQD, StateError: transport.StateError,
	}, same[QPState, transport.State](StateReset, StateInit, StateRTR, StateRTS, StateSQD, StateError))
	require.Equal(t, transport.RC, transport.Type(QPTRC))
	require.Equal(t, map[QPAttrMask]transport.AttributeMask{
		QPStateMask: transport.MaskState, QPCurState: transport.MaskCurrentState, QPEnSQDNotify: transport.MaskEnSQDNotify,
		QPAccessFlags: transport.MaskAccess, QPPKeyIndex: transport.MaskPKeyIndex, QPPort: transport.MaskPort, QPAV: transport.MaskAV,
		QPPathMTU: transport.MaskPathMTU, QPTimeout: transport.MaskTimeout, QPRetryCnt: transport.MaskRetryCount,
		QPRNRRetry: transport.MaskRNRRetry, QPRQPSN: transport.MaskRQPSN, QPMaxQPRDAtomic: transport.MaskMaxRDAtomic,
		QPMinRNRTimer: transport.MaskMinRNRTimer, QPSQPSN: transport.MaskSQPSN, QPMaxDestRDAtomic: transport.MaskMaxDestRDAtomic,
		QPDestQPN: transport.MaskDestinationQPN,
	}, same[QPAttrMask, transport.AttributeMask](QPStateMask, QPCurState, QPEnSQDNotify, QPAccessFlags, QPPKeyIndex, QPPort, QPAV,
		QPPathMTU, QPTimeout, QPRetryCnt, QPRNRRetry, QPRQPSN, QPMaxQPRDAtomic, QPMinRNRTimer, QPSQPSN, QPMaxDestRDAtomic, QPDestQPN))
	require.Equal(t, map[EventType]transport.EventType{
		EventCQErr: transport.EventCQErr, EventQPFatal: transport.EventQPFatal, EventQPReqErr: transport.EventQPReqErr,
		EventQPAccessErr: transport.EventQPAccessErr, EventCommEst: transport.EventCommEst, EventSQDrained: transport.EventSQDrained,
		EventDeviceFatal: transport.EventDeviceFatal, EventPortActive: transport.EventPortActive, EventPortErr: transport.EventPortErr,
		EventSRQErr: transport.EventSRQErr, EventSRQLimitReached: transport.EventSRQLimitReached,
		EventQPLastWQEReached: transport.EventQPLastWQEReached, EventGIDChange: transport.EventGIDChange,
	}, same[EventType, transport.EventType](EventCQErr, EventQPFatal, EventQPReqErr, EventQPAccessErr, EventCommEst, EventSQDrained,
		EventDeviceFatal, EventPortActive, EventPortErr, EventSRQErr, EventSRQLimitReached, EventQPLastWQEReached, EventGIDChange))
}

// TestLimitsOfTheEngine: the limits that are told are those of the engine.
func TestLimitsOfTheEngine(t *testing.T) {
	for _, pair := range [][2]uint64{
		{MaxSGE, queue.MaxSGE}, {MaxQPWR, driver.MaxWR}, {MaxCQE, driver.MaxCQE}, {MaxMsgSize, queue.MaxMessage},
		{MaxRDAtomic, transport.MaxRDAtomic}, {MaxQP, driver.MaxQP}, {MaxCQ, driver.MaxCQ}, {MaxSRQ, driver.MaxSRQ},
		{MaxInlineData, queue.MaxInline}, {MaxSRQWR, driver.MaxWR},
	} {
		require.Equal(t, pair[0], pair[1])
	}
}

// same is the engine's word for each of the values.
func same[Word, Engine ~uint8 | ~uint32](values ...Word) map[Word]Engine {
	m := make(map[Word]Engine)
	for _, v := range values {
		m[v] = Engine(v)
	}
	return m
}
