package roce

// PSN is a packet sequence number: 24 bits that wrap around. Values above [PSNMask] are not valid.
type PSN uint32

// PSNMask holds the 24 bits of a PSN.
const PSNMask = 1<<24 - 1

// Add returns the PSN that is n packets after p.
func (p PSN) Add(n uint32) PSN { return PSN(uint32(p)+n) & PSNMask }

// Sub returns the PSN that is n packets before p.
func (p PSN) Sub(n uint32) PSN { return PSN(uint32(p)-n) & PSNMask }

// Diff returns p - q as a signed 24-bit number, -2^23 to 2^23-1. It is meaningful while p and q are
// less than 2^23 apart, which the transport guarantees by never having more packets outstanding
// (IBTA chapter 9). At exactly 2^23 the two directions cannot be told apart and the result is
// -2^23 both ways.
func (p PSN) Diff(q PSN) int32 {
	// The shift puts bit 23 into the sign bit, so that one subtraction does the modular compare.
	return int32(uint32(p-q)<<8) >> 8
}

// Before reports whether p lies before q in the circle of PSNs.
func (p PSN) Before(q PSN) bool { return p.Diff(q) < 0 }

// After reports whether p lies after q in the circle of PSNs.
func (p PSN) After(q PSN) bool { return p.Diff(q) > 0 }
