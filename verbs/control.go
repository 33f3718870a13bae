package verbs

// A device that OpenDevice has opened can be looked at from outside: a Unix socket answers with what it does and in
// which state it is (xroce stat asks there). It reads under the locks of the engine, one queue pair at a time, so
// traffic goes on.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"github.com/xroce/xroce/internal/control"
)

// What the control socket can be asked for: a Snapshot, or one without QPs, CQs, SRQs and MRs.
const (
	WantSnapshot = "snapshot"
	WantCounters = "counters"
)

// ControlSocket is the path of the device's control socket; empty if it has none.
func (d *Device) ControlSocket() string {
	must(d.check())
	if d.control == nil {
		return ""
	}
	return d.control.Path()
}

// serveControl opens the control socket. A device without one works as well, so that is worth a warning only.
func (d *Device) serveControl() {
	name := d.Name()
	folder, err := control.Folder()
	if err == nil {
		d.control, err = control.Serve(folder, name, d.answer)
	}
	if err == nil {
		d.driver.OnRename(d.renamed)
		if now := d.Name(); now != name {
			d.renamed(now) // before anybody listened
		}
	}
	if err != nil {
		slog.Warn("xroce stat and capture will not see this device: no control socket", "device", d.Name(), "error", err)
	}
}

// renamed has the control socket follow the name of the network device.
func (d *Device) renamed(name string) {
	if err := d.control.Rename(name); err != nil {
		slog.Warn("xroce stat and capture know this device by its old name", "device", name, "control", d.control.Path(), "error", err)
	}
}

// answer is the control.Handler of the device.
func (d *Device) answer(ctx context.Context, request control.Request, out io.Writer) error {
	var s Snapshot
	switch request.Want {
	case WantSnapshot:
		s = d.snapshot()
	case WantCounters:
		s = d.snapshotCounters()
	case WantCapture:
		return d.answerCapture(ctx, request, out)
	default:
		return fmt.Errorf("%w: want %q, there are %q, %q and %q", ErrInvalid, request.Want, WantSnapshot, WantCounters, WantCapture)
	}
	return json.NewEncoder(out).Encode(s)
}
