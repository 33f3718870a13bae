package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/xroce/xroce/verbs"
)

// devicesCommand lists network devices. It attaches nothing.
type devicesCommand struct {
	JSON bool `name:"json" help:"Print JSON."`
	netnsFlag
}

// deviceEntry is what is said about a network device, also as JSON.
type deviceEntry struct {
	Name         string       `json:"name"`
	CanServe     bool         `json:"canServe"`
	Obstacle     string       `json:"obstacle,omitempty"` // why it cannot
	Missing      []string     `json:"missing"`            // capabilities that this user lacks to open it
	Driver       string       `json:"driver"`             // empty if unknown
	MAC          string       `json:"mac"`
	Running      bool         `json:"running"`   // up, and with carrier
	NetdevMTU    int          `json:"netdevMTU"` // bytes, of the network device
	ActiveMTU    int          `json:"activeMTU"` // bytes, the largest path MTU
	Queues       int          `json:"queues"`
	GIDs         []netip.Addr `json:"gids"` // by index
	XDPModes     []string     `json:"xdpModes"`
	DriverTells  bool         `json:"driverTells"` // XDPModes and ZeroCopy are what the driver offers, not guesses
	ZeroCopy     bool         `json:"zeroCopy"`
	MultiBuffer  bool         `json:"multiBuffer"`            // frames of several buffers are expected, which path MTU 4096 needs
	SingleBuffer string       `json:"singleBuffer,omitempty"` // why they are not
}

// Run lists the devices.
func (c *devicesCommand) Run(app *application) error {
	devices, err := verbs.Devices(app.ctx, verbs.DevicesOptions{NetNS: c.path()})
	if err != nil {
		return err
	}
	entries := make([]deviceEntry, len(devices))
	for i := range devices {
		entries[i] = newDeviceEntry(&devices[i])
	}
	if c.JSON {
		encoder := json.NewEncoder(app.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(entries)
	}
	for i := range entries {
		if err := entries[i].print(app.stdout); err != nil {
			return err
		}
	}
	return nil
}

func newDeviceEntry(d *verbs.DeviceDescription) deviceEntry {
	e := deviceEntry{
		Name: d.Name, CanServe: d.Obstacle == nil, Driver: d.Driver, MAC: d.HardwareAddr.String(), Running: d.Running,
		NetdevMTU: d.MTU, ActiveMTU: d.ActiveMTU.Bytes(), Queues: d.Queues, GIDs: []netip.Addr{},
		Missing: append([]string{}, d.Missing...), XDPModes: append([]string{}, d.XDPModes...),
		DriverTells: d.DriverTells, ZeroCopy: d.ZeroCopy, MultiBuffer: d.SingleBuffer == nil && len(d.XDPModes) > 0,
	}
	for _, gid := range d.GIDs {
		e.GIDs = append(e.GIDs, gid.Addr())
	}
	if d.Obstacle != nil {
		e.Obstacle = oneLine(d.Obstacle)
	}
	if d.SingleBuffer != nil {
		e.SingleBuffer = oneLine(d.SingleBuffer)
	}
	return e
}

// print writes the entry for people.
func (e *deviceEntry) print(out io.Writer) error {
	var text strings.Builder
	line := func(format string, values ...any) { fmt.Fprintf(&text, format+"\n", values...) }
	switch {
	case !e.CanServe:
		line("%s: cannot serve: %s", e.Name, e.Obstacle)
	default:
		line("%s: can serve", e.Name)
	}
	state := "running"
	if !e.Running {
		state = "no carrier or down"
	}
	line("    driver %s, %s, %s, queues %d", orUnknown(e.Driver), e.MAC, state, e.Queues)
	line("    MTU %d, active path MTU %s", e.NetdevMTU, orNone(e.ActiveMTU))
	if len(e.XDPModes) > 0 {
		line("    XDP %s (%s), %s, %s", e.XDPModes[0], strings.Join(e.XDPModes, ", "), e.copyText(), bufferMode(e.MultiBuffer))
	}
	if e.SingleBuffer != "" {
		line("    no multi-buffer, so no path MTU 4096: %s", e.SingleBuffer)
	}
	for i, gid := range e.GIDs {
		line("    GID %d  %v", i, gid)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (e *deviceEntry) copyText() string {
	switch {
	case !e.DriverTells:
		return "zero copy if the driver can"
	case e.ZeroCopy:
		return "zero copy offered"
	}
	return "copy"
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

func orNone(mtu int) string {
	if mtu == 0 {
		return "none"
	}
	return fmt.Sprint(mtu)
}
