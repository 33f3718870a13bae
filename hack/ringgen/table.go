package main

// version is that of the layouts. Both ends of a ring compare it, so it grows with every change that an older end would
// misread.
const version = 1

// field is a number in a record, or an array of numbers.
type field struct {
	name   string   // in Go
	c      string   // in C
	also   []string // other names of it in C, for other operations
	offset int      // in bytes
	size   int      // of the number in bytes: 1, 2, 4 or 8
	count  int      // of an array; 0 is a single number
	doc    string   // what it is, a clause after the name
}

// record is a piece of shared memory of fixed layout.
type record struct {
	name string // in Go
	c    string // in C
	size int    // in bytes
	doc  string
	// words says that both ends use the fields at the same time, as atomic words. Go gets their offsets then, and
	// accessors for all other records.
	words  bool
	fields []field
}

// table is all that two ends of a ring have to agree on. Numbers are in native byte order.
var table = []record{
	{
		name: "ring", c: "xroce_ring", size: 256, words: true,
		doc: "the head of a ring; the slots follow. Each line of 64 bytes is written by one end only, but for arm",
		fields: []field{
			{
				name: "Producer", c: "producer", offset: 0, size: 4,
				doc: "one past the last published slot; it runs over 2^32",
			},
			{
				name: "Consumer", c: "consumer", offset: 64, size: 4,
				doc: "the oldest slot that was not released; it runs over 2^32",
			},
			{
				name: "Arm", c: "arm", offset: 128, size: 4,
				doc: "of a CQ: 1 asks for a notification of the next solicited completion, 2 of the next one",
			},
			{
				name: "Version", c: "version", offset: 192, size: 4,
				doc: "of the layout; whoever makes the ring writes it and the next two",
			},
			{
				name: "Capacity", c: "capacity", offset: 196, size: 4,
				doc: "slots that may be in use at once; the ring has the next power of two",
			},
			{name: "Stride", c: "stride", offset: 200, size: 4, doc: "bytes from slot to slot"},
			{
				name: "State", c: "state", offset: 204, size: 4,
				doc: "written by the engine: of a send queue the state of the QP, of a CQ why it is over",
			},
		},
	},
	{
		name: "SendSlot", c: "xroce_send_wqe", size: 64,
		doc: "the head of a send work request; a list of count elements follows, or count bytes of inline data",
		fields: []field{
			{name: "WRID", c: "wr_id", offset: 0, size: 8, doc: "is returned in the completion"},
			{name: "Opcode", c: "opcode", offset: 8, size: 1, doc: "is an enum ibv_wr_opcode"},
			{name: "Flags", c: "flags", offset: 9, size: 1, doc: "are enum ibv_send_flags"},
			{
				name: "Count", c: "count", offset: 10, size: 2,
				doc: "is how many elements follow, or bytes of inline data",
			},
			{
				name: "Immediate", c: "imm_data", also: []string{"invalidate_rkey", "bind_lkey", "flush_kind"},
				offset: 12, size: 4,
				doc: "is the immediate in host byte order, the key to invalidate, that of the region to bind to," +
					" or the placement (bits 7:0) and selectivity (15:8) of a FLUSH",
			},
			{
				name: "RemoteAddr", c: "remote_addr", also: []string{"bind_addr"}, offset: 16, size: 8,
				doc: "is the peer's address, or that of a window",
			},
			{
				name: "RKey", c: "rkey", offset: 24, size: 4,
				doc: "is the peer's key, or the new one of a window or a region",
			},
			{
				name: "Access", c: "access", offset: 28, size: 4,
				doc: "are enum ibv_access_flags of a window or a region",
			},
			{
				name: "Quantity", c: "compare_add", also: []string{"bind_length", "flush_length"}, offset: 32, size: 8,
				doc: "is what an atomic compares with or adds, or the length of a window or a FLUSH",
			},
			{name: "Swap", c: "swap", offset: 40, size: 8, doc: "is what a compare-and-swap stores"},
			{name: "AddressHandle", c: "ah", offset: 48, size: 4, doc: "is the way of a datagram; 0 otherwise"},
			{name: "RemoteQPN", c: "remote_qpn", offset: 52, size: 4, doc: "is whom a datagram is for; 0 otherwise"},
			{name: "RemoteQKey", c: "remote_qkey", offset: 56, size: 4, doc: "is the Q_Key of a datagram; 0 otherwise"},
		},
	},
	{
		name: "RecvSlot", c: "xroce_recv_wqe", size: 16,
		doc: "the head of a receive work request; a list of count elements follows",
		fields: []field{
			{name: "WRID", c: "wr_id", offset: 0, size: 8, doc: "is returned in the completion"},
			{name: "Count", c: "count", offset: 8, size: 2, doc: "is how many elements follow"},
		},
	},
	{
		name: "SGESlot", c: "xroce_sge", size: 16, doc: "a scatter/gather element",
		fields: []field{
			{name: "Addr", c: "addr", offset: 0, size: 8, doc: "is an address within the region that the key names"},
			{name: "Length", c: "length", offset: 8, size: 4, doc: "is in bytes"},
			{name: "LKey", c: "lkey", offset: 12, size: 4, doc: "names the region"},
		},
	},
	{
		name: "CompletionSlot", c: "xroce_cqe", size: 64,
		doc: "a completion, with the fields of struct ibv_wc and of ibv_cq_ex that RoCE has",
		fields: []field{
			{name: "WRID", c: "wr_id", offset: 0, size: 8, doc: "is that of the work request"},
			{name: "Status", c: "status", offset: 8, size: 1, doc: "is an enum ibv_wc_status"},
			{name: "Opcode", c: "opcode", offset: 9, size: 1, doc: "is an enum ibv_wc_opcode"},
			{
				name: "Flags", c: "wc_flags", offset: 10, size: 2,
				doc: "are enum ibv_wc_flags: 1 says that the first 40 bytes are a GRH",
			},
			{name: "ByteLen", c: "byte_len", offset: 12, size: 4, doc: "is how many bytes were received or read"},
			{
				name: "Immediate", c: "imm_data", also: []string{"invalidated_rkey"}, offset: 16, size: 4,
				doc: "is the immediate in host byte order, or the key that the peer has invalidated",
			},
			{name: "QPN", c: "qp_num", offset: 20, size: 4, doc: "is the local QP"},
			{name: "SourceQPN", c: "src_qp", offset: 24, size: 4, doc: "is the QP that a datagram came from"},
			{name: "PSN", c: "psn", offset: 28, size: 4, doc: "is that of the packet in question"},
			{
				name: "Timestamp", c: "completion_ts", offset: 32, size: 8,
				doc: "is when it was made, in nanoseconds of the device's clock",
			},
			{name: "VendorErr", c: "vendor_err", offset: 40, size: 4, doc: "is why this end could not access memory"},
			{name: "FlowTag", c: "flow_tag", offset: 44, size: 4, doc: "is that of a flow rule"},
			{name: "VLAN", c: "cvlan", offset: 48, size: 2, doc: "is the tag that a datagram came with"},
			{name: "PKeyIndex", c: "pkey_index", offset: 50, size: 2, doc: "is that of a datagram"},
			{name: "ServiceLevel", c: "sl", offset: 52, size: 1, doc: "is that of a datagram"},
			{
				name: "Syndrome", c: "syndrome", offset: 53, size: 1,
				doc: "is the last one seen from the peer or sent to it",
			},
			{
				name: "Retries", c: "retries", offset: 54, size: 1,
				doc: "is how many resends were used since the last progress",
			},
			{
				name: "RNRRetries", c: "rnr_retries", offset: 55, size: 1,
				doc: "is how many RNR resends were used since the last progress",
			},
		},
	},
	{
		name: "doorbell", c: "xroce_doorbells", size: 2304, words: true,
		doc: "the doorbells of a client, one bit for each slot that its queue pairs were given",
		fields: []field{
			{name: "Version", c: "version", offset: 0, size: 4, doc: "of the layout"},
			{
				name: "Asleep", c: "asleep", offset: 64, size: 4,
				doc: "written by the engine: not 0 says that whoever rings has to write to the eventfd",
			},
			{name: "Summary", c: "summary", offset: 128, size: 8, count: 4, doc: "a bit for each word of bits"},
			{name: "Bits", c: "bits", offset: 256, size: 8, count: 256, doc: "a bit for each slot"},
		},
	},
}
