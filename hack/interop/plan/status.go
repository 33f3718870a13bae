//go:build linux

package plan

// Statuses of completions, with the numbers and names of enum ibv_wc_status in libibverbs.
const (
	StatusSuccess        = 0
	StatusLocLenErr      = 1
	StatusLocQPOpErr     = 2
	StatusFlushErr       = 5
	StatusRemInvReqErr   = 9
	StatusRemAccessErr   = 10
	StatusRemOpErr       = 11
	StatusRetryExcErr    = 12
	StatusRNRRetryExcErr = 13
)

var StatusNames = map[int]string{
	0: "success", 1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 4: "LOC_PROT_ERR", 5: "WR_FLUSH_ERR", 6: "MW_BIND_ERR", 7: "BAD_RESP_ERR",
	8: "LOC_ACCESS_ERR", 9: "REM_INV_REQ_ERR", 10: "REM_ACCESS_ERR", 11: "REM_OP_ERR", 12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR",
	19: "FATAL_ERR", 21: "GENERAL_ERR",
}
