package verbs

// A device that OpenDevice has opened can be looked at from outside: a Unix socket answers with what it does and in which
// state it is (xroce stat asks there). It reads under the locks of the engine, one queue pair at a time, so traffic goes on.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/roce/driver"
)

// What the control socket can be asked for: a Snapshot, or one without QPs, CQs, SRQs and MRs.
const (
	WantSnapshot = "snapshot"
	WantCounters = "counters"
)

// SnapshotFormat is the version of the JSON form of a Snapshot: it changes when a field goes away or gets another meaning.
const SnapshotFormat = 1

// Snapshot is what a device does and in which state it is, as the control socket tells it in JSON.
type Snapshot struct {
	Format  int       `json:"format"`  // SnapshotFormat
	Version string    `json:"version"` // of this module, as far as the program knows it
	Go      string    `json:"go"`
	PID     int       `json:"pid"`
	Program string    `json:"program"`
	Time    time.Time `json:"time"`
	driver.Snapshot
}

// Snapshot describes the device and everything on it. The parts are not all of the same moment.
func (d *Device) Snapshot() (Snapshot, error) {
	if err := d.check(); err != nil {
		return Snapshot{}, err
	}
	return newSnapshot(d.driver.Snapshot()), nil
}

func newSnapshot(s driver.Snapshot) Snapshot {
	program := ""
	if len(os.Args) > 0 {
		program = os.Args[0]
	}
	return Snapshot{
		Format: SnapshotFormat, Version: moduleVersion(), Go: runtime.Version(), PID: os.Getpid(), Program: program,
		Time: time.Now(), Snapshot: s,
	}
}

// moduleVersion is the version of this module in the program, which may be its main module or one that it uses.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	const path = "github.com/xroce/xroce"
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == path && m.Version != "" {
			return m.Version
		}
	}
	return "unknown"
}

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
	var s driver.Snapshot
	switch request.Want {
	case WantSnapshot:
		s = d.driver.Snapshot()
	case WantCounters:
		s = d.driver.SnapshotCounters()
	case WantCapture:
		return d.answerCapture(ctx, request, out)
	default:
		return fmt.Errorf("%w: want %q, there are %q, %q and %q", ErrInvalid, request.Want, WantSnapshot, WantCounters, WantCapture)
	}
	return json.NewEncoder(out).Encode(newSnapshot(s))
}
