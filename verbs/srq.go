package verbs

import (
	"cmp"
	"fmt"

	"github.com/xroce/xroce/internal/enum"
	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/queue"
)

// SRQInitAttr describes a shared receive queue to make. Fields that are 0 get a default.
type SRQInitAttr struct {
	MaxWR    int // requests that it holds, 128 by default
	MaxSGE   int // elements per request, 1 by default
	SRQLimit int // armed from the beginning; 0 arms none
}

// SRQAttr are the attributes of a shared receive queue.
type SRQAttr struct {
	MaxWR    int
	MaxSGE   int // Modify does not change it
	SRQLimit int // 0 after its event was raised
}

// SRQAttrMask says which attributes SRQ.Modify changes; the bits are those of enum ibv_srq_attr_mask.
type SRQAttrMask uint8

// Bits of an SRQAttrMask.
const (
	SRQMaxWR SRQAttrMask = 1
	SRQLimit SRQAttrMask = 2
)

var sRQAttrMaskNames = []enum.Flag[SRQAttrMask]{
	{Bit: SRQMaxWR, Name: "MAX_WR"},
	{Bit: SRQLimit, Name: "LIMIT"},
}

// String names the bits, such as "MAX_WR|LIMIT"; "0" is none.
func (m SRQAttrMask) String() string { return enum.Flags(m, sRQAttrMaskNames) }

// MarshalText returns the text of String, for logs and JSON.
func (m SRQAttrMask) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes what MarshalText returns.
func (m *SRQAttrMask) UnmarshalText(text []byte) error { return enum.ParseFlags(m, text) }

// MaxSRQWR is the largest MaxWR of a shared receive queue.
const MaxSRQWR = 1 << 16

// SRQ is a shared receive queue: queue pairs that are made with it (QPInitAttr.SRQ) take their receives from it. All
// methods may be called concurrently.
//
// The receives are handed out in the order in which they were posted, each to the queue pair that needs one first; they
// complete at that queue pair. A queue pair in StateError flushes none of them. While there is none, peers are asked to
// try again later (RNR).
type SRQ struct {
	pd     *PD
	driver *driver.SRQ
	posts  receiver
	maxSGE int
}

// CreateSRQ makes a shared receive queue for queue pairs of this protection domain.
func (p *PD) CreateSRQ(a SRQInitAttr) (*SRQ, error) {
	s := &SRQ{pd: p, maxSGE: cmp.Or(a.MaxSGE, 1)}
	err := p.make(kindSRQ, s, func() error {
		return s.create(driver.SRQConfig{
			Domain: &p.domain, MaxWR: cmp.Or(a.MaxWR, 128), MaxSGE: s.maxSGE, Limit: a.SRQLimit,
		})
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *SRQ) create(config driver.SRQConfig) (err error) {
	if err = config.MakeRing(); err != nil {
		return err
	}
	layout := queue.RecvLayout(config.MaxWR, config.MaxSGE)
	if s.posts.ring, err = queue.NewProducer(config.Ring.Memory, layout); err != nil {
		return err
	}
	if s.driver, err = s.pd.device.client.CreateSRQ(config); err == nil {
		s.driver.SetOwner(s)
	}
	return err
}

// check tells a queue that was created from nil and from a zero value.
func (s *SRQ) check() error {
	if s == nil || s.driver == nil {
		return fmt.Errorf("SRQ: %w: nil, or not made by CreateSRQ", ErrInvalid)
	}
	return nil
}

// Modify changes the attributes that mask names, all of them or none. MaxWR may not be below the number of posted
// receives (ErrInvalid, with both numbers). SRQLimit arms one EventSRQLimitReached for when fewer receives than that
// are posted, which may be so already; then the limit is 0 until it is armed again.
func (s *SRQ) Modify(a SRQAttr, mask SRQAttrMask) error {
	if err := s.check(); err != nil {
		return err
	}
	if unknown := mask &^ (SRQMaxWR | SRQLimit); unknown != 0 {
		return fmt.Errorf("SRQ: %w: unknown attribute bits %#x", ErrInvalid, uint8(unknown))
	}
	var limit *int
	if mask&SRQLimit != 0 {
		limit = &a.SRQLimit
	}
	s.posts.mu.Lock()
	defer s.posts.mu.Unlock()
	if mask&SRQMaxWR == 0 {
		return s.driver.Modify(nil, limit)
	}
	return s.resize(a.MaxWR, limit)
}

// resize has everything that is posted go over into another ring. The caller holds the lock of the posts.
func (s *SRQ) resize(maxWR int, limit *int) error {
	if err := s.driver.Over(); err != nil {
		return err
	}
	config := driver.SRQConfig{MaxWR: maxWR, MaxSGE: s.maxSGE}
	if err := config.MakeRing(); err != nil {
		return err
	}
	ring, err := queue.NewProducer(config.Ring.Memory, queue.RecvLayout(maxWR, s.maxSGE))
	if err != nil {
		return err
	}
	first, count, moved := s.posts.ring.Move(ring)
	if !moved {
		return fmt.Errorf("%w: SRQ of %d requests, %d are posted", ErrInvalid, maxWR, count)
	}
	replacement := driver.SRQReplacement{Ring: config.Ring, MaxWR: maxWR, First: first}
	if err := s.driver.Modify(&replacement, limit); err != nil {
		return err
	}
	s.posts.ring = ring
	return nil
}

// Query returns the attributes as they are now.
func (s *SRQ) Query() SRQAttr {
	must(s.check())
	a := s.driver.Query()
	return SRQAttr{MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, SRQLimit: a.Limit}
}

// Destroy destroys the queue; receives that are posted get no completion any more. It fails with ErrInUse and their
// number while queue pairs use it.
func (s *SRQ) Destroy() error {
	if err := s.check(); err != nil {
		return err
	}
	return s.pd.device.end(s)
}

func (s *SRQ) destroy() error {
	if err := s.driver.Close(); err != nil {
		return err
	}
	s.pd.remove(kindSRQ, s)
	return nil
}
