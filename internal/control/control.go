// Package control is the door through which a process that serves a device is looked at from outside: a Unix socket per
// process and device. It knows how to find, ask and answer, not what the answers are.
//
// Life of a request: whoever asks connects and sends one line of JSON, a Request; the server's handler writes its
// answer, and the connection ends. An answer is one JSON document, or a stream that goes on for as long as both ends
// like: a client that has enough of it shuts down its end for writing, and reads the rest.
//
// The files are named pid-device.sock and lie in one folder (Folder). Only their owner, and root, can connect: the
// mode is 0600. A process that was killed leaves its file; whoever lists the folder removes it (List), and so does
// the next one that serves there (Serve).
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Environment is the variable that names the folder of the sockets.
const Environment = "XROCE_RUN"

// ErrNoFolder: nothing says where the sockets are.
var ErrNoFolder = errors.New("no folder for control sockets: set " + Environment)

// Request is what a client wants.
type Request struct {
	Want    string          `json:"want"`
	Options json.RawMessage `json:"options,omitempty"` // if what is wanted has some
	// Stream says that the answer is one: the client may take as much time for reading as it likes, until it has shut
	// down its end.
	Stream bool `json:"stream,omitempty"`
}

const (
	// requestTime is how long a client may take to send its request, and answerTime how long it may take to read a
	// piece of the answer.
	requestTime = 5 * time.Second
	answerTime  = 10 * time.Second
	// lastTime is what is left for the end of an answer when the server is closed.
	lastTime = 200 * time.Millisecond
)

const extension = ".sock"

// Folder returns the folder of the sockets: $XROCE_RUN or, without it, /run/xroce for root and $XDG_RUNTIME_DIR/xroce
// for others. ErrNoFolder says that the latter is not set either.
func Folder() (string, error) {
	if folder := os.Getenv(Environment); folder != "" {
		return folder, nil
	}
	if os.Geteuid() == 0 {
		return "/run/xroce", nil
	}
	if folder := os.Getenv("XDG_RUNTIME_DIR"); folder != "" {
		return filepath.Join(folder, "xroce"), nil
	}
	return "", ErrNoFolder
}

// Socket is a socket that some process serves.
type Socket struct {
	PID    int    // in the process ID namespace of the process
	Device string // name of the network device
	Path   string
}

// fileName names a socket; a process that serves several devices of the same name numbers them from 2 on.
func fileName(pid int, device string, number int) string {
	if number > 1 {
		device = fmt.Sprintf("%s~%d", device, number)
	}
	return fmt.Sprintf("%d-%s%s", pid, device, extension)
}

// parse takes a file name apart. Names with characters that are for terminals are nobody's.
func parse(name string) (pid int, device string, ok bool) {
	name, ok = strings.CutSuffix(name, extension)
	if !ok {
		return 0, "", false
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return 0, "", false
	}
	digits, device, ok := strings.Cut(name, "-")
	pid, err := strconv.Atoi(digits)
	if at := strings.LastIndexByte(device, '~'); at >= 0 {
		if n, err := strconv.Atoi(device[at+1:]); err == nil && n > 1 {
			device = device[:at]
		}
	}
	return pid, device, ok && err == nil && pid > 0 && device != "" && strconv.Itoa(pid) == digits
}
