package verbs

// causeOfFault is what this end knows of an access to its memory, or of an operation on a key, that failed.
func causeOfFault(wc WC) string {
	who := "the request"
	switch {
	case wc.Status == WCLocProtErr:
		who = "an SGE"
	case wc.Opcode >= WCRecv || wc.Flags&WCPeerRequest != 0:
		who = "the peer's request"
	}
	switch AccessFault(wc.VendorErr) {
	case FaultKey:
		return "no region or window here has the key that " + who + " named"
	case FaultDomain:
		return "the key that " + who + " named belongs to another protection domain than the QP"
	case FaultOwner:
		return "the key that " + who + " named is that of a type 2 window that another QP has bound"
	case FaultAccess:
		if wc.Status == WCMWBindErr {
			return "the region lacks AccessMWBind or AccessLocalWrite, has AccessZeroBased, or the window cannot have the rights asked for"
		}
		return "the region or window that " + who + " named does not grant the right (AccessFlags)"
	case FaultBounds:
		cause := "the range that " + who + " named is not within the region or window"
		if wc.Status == WCMWBindErr {
			cause += " (MWBind.Addr is an address, not an offset)"
		}
		return cause
	case FaultAlignment:
		return "the memory that " + who + " named is not aligned to 8 bytes"
	case FaultBuffer:
		return "the region that " + who + " named is registered, but its memory cannot be accessed: it was unmapped, is read-only, or " +
			"its file is shorter than the region"
	case FaultState:
		switch wc.Status {
		case WCMWBindErr:
			return "the key that the request named is not that of a window, or that of a type 2 window that is bound already"
		case WCRemInvReqErr:
			return "the peer's request named a key that it cannot invalidate: it opens nothing now, or was made by RegMR or for a type 1 window"
		}
		return "the key that the request named cannot be registered or invalidated now: it is open already, or not yet, it has no buffer " +
			"(MR.Map), or it was not made for that"
	case FaultBound:
		return "windows are bound to the region that " + who + " named"
	}
	return ""
}
