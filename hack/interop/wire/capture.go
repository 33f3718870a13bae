//go:build linux

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// CaptureFile is the file of the capture that runs, or of the last one.
const CaptureFile = "/tmp/capture.pcap"

// Capture is a running tcpdump. It sees what rdma_rxe sends after the emulator has had it, and what it is sent before.
type Capture struct {
	cmd  *exec.Cmd
	says io.Reader // standard error
}

// StartCapture starts it. Of bulk transfers it keeps the headers only, of all others whole packets.
func StartCapture(headers bool) *Capture {
	length := "4400"
	if headers {
		length = "128"
	}
	cmd := exec.Command("tcpdump", "-i", "v0", "-U", "--immediate-mode", "-s", length, "-B", "32768", "-Z", "root",
		"-w", CaptureFile, "udp")
	output, err := cmd.StderrPipe()
	if err != nil || cmd.Start() != nil {
		return &Capture{}
	}
	_, _ = output.Read(make([]byte, 256)) // it says that it listens
	return &Capture{cmd, output}
}

// Sync waits until all that has passed v0 so far is in the file: until a frame is there that was sent behind it. The
// emulator may lose one.
func (c *Capture) Sync() error {
	if c.cmd == nil {
		return errors.New("tcpdump did not start")
	}
	mark, frame := marker()
	for begin := time.Now(); time.Since(begin) < 20*time.Second; {
		if err := SendFrame("v0", frame); err != nil {
			return err
		}
		for range 25 {
			if there, err := endsWith(CaptureFile, mark); there || err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return errors.New("the capture does not go on")
}

// endsWith says whether the file has the text near its end.
func endsWith(path string, text []byte) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	var end [1 << 16]byte
	n, err := f.ReadAt(end[:], max(0, info.Size()-int64(len(end))))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return bytes.Contains(end[:n], text), err
}

// Stop ends the capture; complete has it have all packets before, and says if it lacks any.
func (c *Capture) Stop(complete bool) (err error) {
	if complete {
		err = c.Sync()
	}
	if c.cmd == nil {
		return err
	}
	_ = c.cmd.Process.Signal(os.Interrupt)
	said, _ := io.ReadAll(c.says)
	if ended := c.cmd.Wait(); ended != nil {
		err = errors.Join(err, fmt.Errorf("tcpdump: %w: %s", ended, said))
	}
	if complete {
		err = errors.Join(err, lacks(string(said)))
	}
	return err
}

// lacks reads what tcpdump says at its end: how many packets the kernel had no room for.
func lacks(said string) error {
	for line := range strings.Lines(said) {
		var n int
		if _, err := fmt.Sscanf(line, "%d", &n); err != nil || !strings.HasSuffix(strings.TrimSpace(line), "dropped by kernel") {
			continue
		}
		if n > 0 {
			return fmt.Errorf("the capture lacks %d packets", n)
		}
		return nil
	}
	return fmt.Errorf("tcpdump does not say how many packets it lacks: %q", said)
}
