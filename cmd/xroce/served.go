package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/xroce/xroce/internal/control"
	"github.com/xroce/xroce/verbs"
)

// servedFlag chooses among the devices that processes of this machine serve.
type servedFlag struct {
	Device string `short:"i" placeholder:"DEV" help:"Network device (default: every one that is served)."`
	netnsFlag
}

// text names what was chosen.
func (f servedFlag) text() string {
	text := f.Device
	if text == "" {
		text = "a device"
	}
	if f.NetNS != "" {
		text += " in network namespace " + f.NetNS
	}
	return text
}

// controlFolder is the folder of the control sockets.
func controlFolder() (string, error) {
	folder, err := control.Folder()
	if errors.Is(err, control.ErrNoFolder) {
		return "", usage("%w to that of the processes to look at, or run it as root to see those of root", err)
	}
	return folder, err
}

// list returns the sockets in a folder.
func listSockets(folder string) ([]control.Socket, error) {
	list, err := control.List(folder)
	if errors.Is(err, fs.ErrPermission) {
		return nil, usage("%w: only its owner and root may look: run it as root", err)
	} else if err != nil {
		return nil, usage("%w", err)
	}
	return list, nil
}

// explainAccess says what to do where this user may not ask a process.
func explainAccess(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("only the user who runs it and root may look: run it as root: %w", err)
	}
	return err
}

// none is the error that nothing is served of what was chosen.
func (f servedFlag) none(folder string) error {
	hint := ""
	if os.Geteuid() != 0 && os.Getenv(control.Environment) == "" {
		hint = "; processes of root are seen by root only: run it as root"
	}
	return usage("no process serves %s: there is no control socket of one in %s%s", f.text(), folder, hint)
}

// in says whether a socket is that of a device in the network namespace, which is any one if it is empty.
func in(ctx context.Context, network string, socket control.Socket) (bool, error) {
	if network == "" {
		return true, nil
	}
	var s verbs.Snapshot
	limited, cancel := context.WithTimeoutCause(ctx, answerTime, errNoAnswer)
	defer cancel()
	err := control.Get(limited, socket.Path, verbs.WantCounters, &s)
	return s.Device.Network == network, err
}

// namespaceName names a network namespace as ip netns does, if it has such a name; network is that of verbs.Snapshot.
func namespaceName(network string) string {
	paths, _ := filepath.Glob("/run/netns/*")
	for _, path := range paths {
		if inode, ok := inodeOf(path); ok && network == fmt.Sprintf("net:[%d]", inode) {
			return printable(filepath.Base(path))
		}
	}
	return network
}

// programName is the name of a program without its folder.
func programName(program string) string { return printable(filepath.Base(program)) }

// printable keeps what another process tells from being more than text on a terminal.
func printable(text string) string {
	return strings.Trim(fmt.Sprintf("%q", text), `"`)
}
