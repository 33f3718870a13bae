package main

import "strings"

// The transitions that there are to support, from the specification and not from the code, so that none can be
// missing in both. For opcodes roce's table serves, and what it does not have is listed.

// transition is one of an RC queue pair's.
type transition struct {
	from, to           string
	required, optional []string
}

// events are the asynchronous events of enum ibv_event_type in libibverbs, in its order.
var events = []string{
	"CQ error", "QP fatal error", "QP invalid request error", "QP access error", "communication established",
	"send queue drained", "path migrated", "path migration error", "device fatal error", "port active", "port error",
	"LID change", "P_Key change", "SM change", "SRQ error", "SRQ limit reached", "last WQE reached", "client reregister",
	"GID change",
}

func attributes(names string) []string { return strings.Fields(names) }

// transitions are those that IBTA volume 1, section 10.3.1 has for RC, in the form of qp_state_table in
// drivers/infiniband/core/verbs.c. An RC queue pair never gets into SQE.
var transitions = []transition{
	{from: "RESET", to: "INIT", required: attributes("PKEY_INDEX PORT ACCESS_FLAGS")},
	{from: "INIT", to: "INIT", optional: attributes("PKEY_INDEX PORT ACCESS_FLAGS")},
	{
		from: "INIT", to: "RTR",
		required: attributes("AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER"),
		optional: attributes("ALT_PATH ACCESS_FLAGS PKEY_INDEX"),
	},
	{
		from: "RTR", to: "RTS",
		required: attributes("TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC"),
		optional: attributes("CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
	},
	{from: "RTS", to: "RTS", optional: attributes("CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE")},
	{from: "RTS", to: "SQD", optional: attributes("EN_SQD_ASYNC_NOTIFY")},
	{from: "SQD", to: "RTS", optional: attributes("CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE")},
	{from: "SQD", to: "SQD", optional: attributes(`PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC
		ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE`)},
	{from: "RESET", to: "RESET"},
	{from: "INIT", to: "RESET"},
	{from: "RTR", to: "RESET"},
	{from: "RTS", to: "RESET"},
	{from: "SQD", to: "RESET"},
	{from: "ERR", to: "RESET"},
	{from: "INIT", to: "ERR"},
	{from: "RTR", to: "ERR"},
	{from: "RTS", to: "ERR"},
	{from: "SQD", to: "ERR"},
	{from: "ERR", to: "ERR"},
}
