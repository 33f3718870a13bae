//go:build !linux

package xdp

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/roce/link"
)

// Device exists on Linux only; here no function returns one.
type Device struct{}

var _ link.Device = (*Device)(nil)

func notSupported() error {
	return fmt.Errorf("%w: AF_XDP exists on Linux only, this is %s", ErrNotSupported, runtime.GOOS)
}

// Open returns ErrNotSupported.
func Open(_ context.Context, name string, o Options) (*Device, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return nil, fmt.Errorf("open %s: %w", name, notSupported())
}

// Probe returns ErrNotSupported.
func Probe(string, ProbeOptions) (Port, error) { return Port{}, notSupported() }

// List returns ErrNotSupported.
func List(context.Context, ProbeOptions) ([]Port, error) { return nil, notSupported() }

// Features returns one that is needed and not supported.
func Features() []Feature {
	return []Feature{{Name: "AF_XDP sockets", Since: "Linux 5.4", Needed: true, Err: notSupported()}}
}

// CheckFeatures returns ErrNotSupported.
func CheckFeatures([]Feature) error { return notSupported() }

// KernelRelease is the name of the operating system.
func KernelRelease() string { return runtime.GOOS }

func (*Device) Information() link.Information                { return link.Information{} }
func (*Device) HardwareAddr() roce.MAC                       { return roce.MAC{} }
func (*Device) MTU() (int, error)                            { return 0, notSupported() }
func (*Device) MaximumFrame() int                            { return 0 }
func (*Device) ReceiveBuffers() (count, size int)            { return 0, 0 }
func (*Device) Addresses() ([]netip.Addr, error)             { return nil, notSupported() }
func (*Device) Speed() int                                   { return 0 }
func (*Device) Network() string                              { return "" }
func (*Device) Steer(s link.Steering) (link.Steering, error) { return s, notSupported() }
func (*Device) Queues() []link.Queue                         { return nil }
func (*Device) Watch(func(link.Change))                      {}
func (*Device) Close() error                                 { return nil }

// SteeringCounters returns ErrNotSupported.
func (*Device) SteeringCounters() ([]SteeringCounter, error) { return nil, notSupported() }

// Resolve returns ErrNotSupported.
func (*Device) Resolve(context.Context, netip.Addr, netip.Addr) (link.Neighbour, error) {
	return link.Neighbour{}, notSupported()
}
