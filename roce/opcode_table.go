package roce

import "math/bits"

// opcodes is indexed by the opcode, with an entry for each of the 256 values, so that a byte from the
// wire can never lead outside.
var opcodes = makeOpcodes()

// makeOpcodes builds the opcode table of IBTA volume 1, chapter 9 from what RC and UC have in common, what
// only RC has, and the rest.
func makeOpcodes() (table [256]*OpcodeInfo) {
	add := func(opcode Opcode, name string, operation Operation, position Position, headers Header, payload PayloadRule, request bool) {
		info := &OpcodeInfo{Name: name, Operation: operation, Position: position, Headers: headers, Payload: payload, Request: request}
		for rest := headers; rest != 0; rest &= rest - 1 {
			bit := bits.TrailingZeros8(uint8(rest))
			info.offsets[bit] = uint8(BTHLength + info.HeaderLength)
			info.HeaderLength += int(headerLengths[bit])
		}
		table[opcode] = info
	}

	for _, transport := range []Transport{TransportRC, TransportUC} {
		request := func(opcode Opcode, name string, operation Operation, position Position, headers Header, payload PayloadRule) {
			add(opcode|Opcode(transport)<<5, transport.String()+"_"+name, operation, position, headers, payload, true)
		}
		request(RCSendFirst, "SEND_FIRST", OperationSend, PositionFirst, 0, PayloadFull)
		request(RCSendMiddle, "SEND_MIDDLE", OperationSend, PositionMiddle, 0, PayloadFull)
		request(RCSendLast, "SEND_LAST", OperationSend, PositionLast, 0, PayloadSome)
		request(RCSendLastImmediate, "SEND_LAST_WITH_IMMEDIATE", OperationSend, PositionLast, HeaderImmDt, PayloadSome)
		request(RCSendOnly, "SEND_ONLY", OperationSend, PositionOnly, 0, PayloadAny)
		request(RCSendOnlyImmediate, "SEND_ONLY_WITH_IMMEDIATE", OperationSend, PositionOnly, HeaderImmDt, PayloadAny)
		request(RCWriteFirst, "RDMA_WRITE_FIRST", OperationWrite, PositionFirst, HeaderRETH, PayloadFull)
		request(RCWriteMiddle, "RDMA_WRITE_MIDDLE", OperationWrite, PositionMiddle, 0, PayloadFull)
		request(RCWriteLast, "RDMA_WRITE_LAST", OperationWrite, PositionLast, 0, PayloadSome)
		request(RCWriteLastImmediate, "RDMA_WRITE_LAST_WITH_IMMEDIATE", OperationWrite, PositionLast, HeaderImmDt, PayloadSome)
		request(RCWriteOnly, "RDMA_WRITE_ONLY", OperationWrite, PositionOnly, HeaderRETH, PayloadAny)
		request(RCWriteOnlyImmediate, "RDMA_WRITE_ONLY_WITH_IMMEDIATE", OperationWrite, PositionOnly, HeaderRETH|HeaderImmDt, PayloadAny)
	}

	add(RCReadRequest, "RC_RDMA_READ_REQUEST", OperationRead, PositionOnly, HeaderRETH, PayloadNone, true)
	add(RCCompareSwap, "RC_COMPARE_SWAP", OperationCompareSwap, PositionOnly, HeaderAtomicETH, PayloadNone, true)
	add(RCFetchAdd, "RC_FETCH_ADD", OperationFetchAdd, PositionOnly, HeaderAtomicETH, PayloadNone, true)
	add(RCSendLastInvalidate, "RC_SEND_LAST_WITH_INVALIDATE", OperationSend, PositionLast, HeaderIETH, PayloadSome, true)
	add(RCSendOnlyInvalidate, "RC_SEND_ONLY_WITH_INVALIDATE", OperationSend, PositionOnly, HeaderIETH, PayloadAny, true)
	add(RCFlush, "RC_FLUSH", OperationFlush, PositionOnly, HeaderFETH|HeaderRETH, PayloadNone, true)
	add(RCAtomicWrite, "RC_ATOMIC_WRITE", OperationAtomicWrite, PositionOnly, HeaderRETH, PayloadEight, true)

	add(RCReadResponseFirst, "RC_RDMA_READ_RESPONSE_FIRST", OperationReadResponse, PositionFirst, HeaderAETH, PayloadFull, false)
	add(RCReadResponseMiddle, "RC_RDMA_READ_RESPONSE_MIDDLE", OperationReadResponse, PositionMiddle, 0, PayloadFull, false)
	add(RCReadResponseLast, "RC_RDMA_READ_RESPONSE_LAST", OperationReadResponse, PositionLast, HeaderAETH, PayloadSome, false)
	add(RCReadResponseOnly, "RC_RDMA_READ_RESPONSE_ONLY", OperationReadResponse, PositionOnly, HeaderAETH, PayloadAny, false)
	add(RCAcknowledge, "RC_ACKNOWLEDGE", OperationAcknowledge, PositionOnly, HeaderAETH, PayloadNone, false)
	add(RCAtomicAcknowledge, "RC_ATOMIC_ACKNOWLEDGE", OperationAtomicAcknowledge, PositionOnly, HeaderAETH|HeaderAtomicAckETH, PayloadNone, false)

	add(UDSendOnly, "UD_SEND_ONLY", OperationSend, PositionOnly, HeaderDETH, PayloadAny, true)
	add(UDSendOnlyImmediate, "UD_SEND_ONLY_WITH_IMMEDIATE", OperationSend, PositionOnly, HeaderDETH|HeaderImmDt, PayloadAny, true)
	add(CNP, "CNP", OperationCNP, PositionOnly, 0, PayloadSixteen, false)
	return table
}
