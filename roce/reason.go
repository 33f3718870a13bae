package roce

import (
	"fmt"

	"github.com/xroce/xroce/internal/enum"
)

// DropReason tells why a packet was dropped without an answer. Reasons are small numbers, made to
// index an array of counters.
type DropReason uint8

// Reasons. Those up to DropICRC come from [Packet.Parse]; the others are for the transport, which
// knows the queue pairs.
const (
	DropNone DropReason = iota

	DropNotRoCE          // other EtherType, second VLAN tag, other IP protocol or other UDP port
	DropTooShort         // the frame ends before its IP length, or the packet before its ICRC
	DropHeaderSplit      // headers reach beyond the first segment
	DropTooManySegments  // more than MaxSegments
	DropMalformedIP      // IP version, IPv4 options, or a length too small for its own header
	DropFragment         // IPv4 fragment
	DropIPChecksum       // IPv4 header checksum wrong
	DropUDPLength        // UDP length below 8 or above what the IP length leaves
	DropUnknownOpcode    // reserved opcode, or one of a transport that is not implemented
	DropTransportVersion // BTH transport version not 0
	DropQPN0             // destination QPN 0, which RoCE does not have
	DropPayloadLength    // payload or pad impossible for the opcode, in a packet that is never answered
	DropICRC             // invariant CRC wrong

	DropUnknownQPN            // no queue pair of that number
	DropTransportMismatch     // opcode of another transport than the queue pair's
	DropQPState               // queue pair not in a state to take the packet
	DropAddressMismatch       // addresses not those of the connection
	DropPKey                  // partition key does not match
	DropQKey                  // queue key does not match
	DropNoBuffer              // no receive work request, or too small a one, on UC or UD
	DropInboxFull             // the shard that owns the queue pair does not keep up
	DropDuplicateUnanswerable // duplicate request whose saved result is gone
	DropOutOfSequence         // PSN or opcode out of sequence and not to be answered
	DropStaleResponse         // response to what was already acknowledged
	DropUnexpectedResponse    // response to what was never asked

	// DropReasons is the number of reasons, DropNone included.
	DropReasons
)

var dropReasonNames = [DropReasons]string{
	DropNone:                  "none",
	DropNotRoCE:               "not_roce",
	DropTooShort:              "too_short",
	DropHeaderSplit:           "header_split",
	DropTooManySegments:       "segments_too_many",
	DropMalformedIP:           "ip_malformed",
	DropFragment:              "ip_fragment",
	DropIPChecksum:            "ip_checksum_bad",
	DropUDPLength:             "udp_length_bad",
	DropUnknownOpcode:         "opcode_unknown",
	DropTransportVersion:      "transport_version_bad",
	DropQPN0:                  "qpn_zero",
	DropPayloadLength:         "payload_length_bad",
	DropICRC:                  "icrc_bad",
	DropUnknownQPN:            "qpn_unknown",
	DropTransportMismatch:     "transport_mismatch",
	DropQPState:               "qp_state",
	DropAddressMismatch:       "address_mismatch",
	DropPKey:                  "pkey_bad",
	DropQKey:                  "qkey_bad",
	DropNoBuffer:              "no_buffer",
	DropInboxFull:             "inbox_full",
	DropDuplicateUnanswerable: "duplicate_unanswerable",
	DropOutOfSequence:         "out_of_sequence",
	DropStaleResponse:         "response_stale",
	DropUnexpectedResponse:    "response_unexpected",
}

// String returns the name of the reason's counter, such as "icrc_bad".
func (r DropReason) String() string {
	if r < DropReasons {
		return dropReasonNames[r]
	}
	return fmt.Sprintf("DropReason(%d)", uint8(r))
}

// MarshalText returns the text of String, for logs and JSON.
func (r DropReason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (r *DropReason) UnmarshalText(text []byte) error { return enum.Parse(r, text) }
