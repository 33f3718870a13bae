package bpf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

const (
	// MaxAddresses is the length of the longest list for [Program.SetAddresses].
	MaxAddresses = 1024
	// MaxGroups is the number of multicast groups that can be joined.
	MaxGroups = 1024
)

// key is an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d, in network order.
type key [16]byte

// addressKey returns the key of an address; a zone does not count.
func addressKey(address netip.Addr) key { return address.As16() }

// SetAddresses makes the list the IP addresses of the process. IPv4 addresses may
// be given as such or in IPv6 form; zones are ignored; the order and repetitions
// do not matter.
//
// New addresses are added before old ones are taken out, and an address in both
// lists stays throughout. After an error some of the new ones may be missing or
// some of the old ones still there: call again. Errors match [ErrInvalid] for
// an address that is no unicast address or a list longer than [MaxAddresses];
// then nothing has changed.
func (p *Program) SetAddresses(addresses []netip.Addr) error {
	wanted := make(map[key]bool, len(addresses))
	for _, address := range addresses {
		if !address.IsValid() || address.Unmap().IsMulticast() || address.Unmap().IsUnspecified() {
			return fmt.Errorf("%w: set addresses: %v is no unicast address", ErrInvalid, address)
		}
		wanted[addressKey(address)] = true
	}
	if len(wanted) > MaxAddresses {
		return fmt.Errorf("%w: set addresses: %d addresses, at most %d fit", ErrInvalid, len(wanted), MaxAddresses)
	}

	if err := p.lock(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	for address := range wanted {
		if err := p.maps.Addresses.Put(address, uint8(1)); err != nil {
			return fmt.Errorf("add address %v: %w", address, err)
		}
	}
	var old []key
	var present key
	var value uint8
	iterator := p.maps.Addresses.Iterate()
	for iterator.Next(&present, &value) {
		if !wanted[present] {
			old = append(old, present)
		}
	}
	if err := iterator.Err(); err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, address := range old {
		if err := p.maps.Addresses.Delete(address); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove address %v: %w", address, err)
		}
	}
	return nil
}

// String returns the address in its usual form.
func (k key) String() string { return netip.AddrFrom16(k).Unmap().String() }

// JoinGroup redirects the frames of a multicast group whose destination is the
// MAC address of the group (RFC 1112, RFC 2464) and QPN 0xFFFFFF. Joining twice
// is joining once. That the device receives the group is up to the caller (IGMP or
// MLD, and the receive filter).
//
// Errors match [ErrInvalid] if the address is no multicast address.
func (p *Program) JoinGroup(group netip.Addr) error {
	mac, err := groupMAC(group)
	if err != nil {
		return fmt.Errorf("join group: %w", err)
	}
	if err := p.lock(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	if err := p.maps.Groups.Put(addressKey(group), mac); err != nil {
		return fmt.Errorf("join group %v (at most %d): %w", group, MaxGroups, err)
	}
	return nil
}

// LeaveGroup passes the frames of a group to the kernel again. Leaving a group
// that was not joined does nothing.
func (p *Program) LeaveGroup(group netip.Addr) error {
	if _, err := groupMAC(group); err != nil {
		return fmt.Errorf("leave group: %w", err)
	}
	if err := p.lock(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	err := p.maps.Groups.Delete(addressKey(group))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("leave group %v: %w", group, err)
	}
	return nil
}

// groupMAC returns 01:00:5E with the low 23 bits of an IPv4 group, 33:33 with
// the low 32 bits of an IPv6 group.
func groupMAC(group netip.Addr) ([6]byte, error) {
	group = group.Unmap()
	if !group.IsMulticast() {
		return [6]byte{}, fmt.Errorf("%w: %v is no multicast address", ErrInvalid, group)
	}
	b := group.As16()
	if group.Is4() {
		return [6]byte{0x01, 0x00, 0x5E, b[13] & 0x7F, b[14], b[15]}, nil
	}
	return [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}, nil
}

// SetMAC sets the MAC address that unicast frames must have as their destination.
// Call it when the device changes its address. A frame that is judged during the
// change may go to the kernel. Errors match [ErrInvalid] for a multicast address.
func (p *Program) SetMAC(mac [6]byte) error {
	if err := validateMAC(mac); err != nil {
		return err
	}
	return p.configure("set MAC address", func(c *roceConfiguration) { c.Mac.Octet = mac })
}

// SetQPNs makes [base, base + 2^bits) the QPNs of the process, and QP1 if ownGSI. Both 0
// means none. A frame that is judged during the change may go by a part of the old and a
// part of the new range. Errors match [ErrInvalid] as for [Options].
func (p *Program) SetQPNs(base uint32, bits uint8, ownGSI bool) error {
	count, err := qpnCount(base, bits)
	if err != nil {
		return err
	}
	return p.configure("set QPNs", func(c *roceConfiguration) {
		c.QpnBase, c.QpnCount, c.OwnGsi = base, count, boolByte(ownGSI)
	})
}

// configure changes the configuration of the program in the kernel.
func (p *Program) configure(what string, change func(*roceConfiguration)) error {
	if err := p.lock(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	var configuration roceConfiguration
	if err := p.maps.Configuration.Lookup(uint32(0), &configuration); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	change(&configuration)
	if err := p.maps.Configuration.Put(uint32(0), &configuration); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func validateMAC(mac [6]byte) error {
	if mac[0]&1 != 0 {
		return fmt.Errorf("%w: MAC address %x is a multicast address", ErrInvalid, mac)
	}
	return nil
}

// Counter counts the frames that one reason decided, since the program was
// loaded, over all CPUs and over every process that shares it.
type Counter struct {
	Reason  Reason
	Packets uint64
	Bytes   uint64 // whole frames: from the destination MAC address, all buffers
}

// Counters returns one counter for each reason, at the index of the reason. The
// counters are not read at one instant.
func (p *Program) Counters() ([]Counter, error) {
	if err := p.lock(); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	counters := make([]Counter, reasonCount)
	var perCPU []roceCounter
	for i := range counters {
		if err := p.maps.Counters.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read counter %v: %w", Reason(i), err)
		}
		counters[i].Reason = Reason(i)
		for _, cpu := range perCPU {
			counters[i].Packets += cpu.Packets
			counters[i].Bytes += cpu.Bytes
		}
	}
	return counters, nil
}
