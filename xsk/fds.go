package xsk

// FDs is what another process needs to use a socket: pass the descriptors by
// SCM_RIGHTS (SendFDs) or by inheritance and the Info in any encoding (JSON, or its
// MarshalBinary), then call FromFDs there. That process needs no capability.
type FDs struct {
	Socket int `json:"socket"` // the AF_XDP socket
	UMEM   int `json:"umem"`   // the memfd
	Info   Info
}
