//go:build linux

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const multiarch = "usr/lib/x86_64-linux-gnu"

// tree is a folder with packages unpacked into it. Its programs run with its own loader and libraries, whatever the
// distribution of this machine is.
type tree string

// make makes the tree of packages and all that they depend on, unless it is there. finish completes it.
func (t tree) make(ctx context.Context, what string, packages []string, finish func(tree) error,
	progress func(string)) error {
	if exists(string(t)) {
		return nil
	}
	progress("fetch " + what + " of " + Suite)
	work, remove, err := TempDir(ctx)
	if err != nil {
		return err
	}
	defer remove()
	a, err := openApt(ctx, filepath.Dir(string(t)), Suite, progress)
	if err != nil {
		return err
	}
	var files []string
	err = a.withLists(ctx, func() (err error) {
		files, err = a.closure(ctx, filepath.Join(work, "archives"), packages...)
		return err
	})
	if err != nil {
		return err
	}
	fresh := tree(filepath.Join(work, "tree"))
	if err := fresh.unpack(ctx, files); err != nil {
		return err
	}
	if finish != nil {
		if err := finish(fresh); err != nil {
			return err
		}
	}
	return publish(string(fresh), string(t))
}

// unpack makes the tree anew of packages.
func (t tree) unpack(ctx context.Context, files []string) error {
	if err := os.RemoveAll(string(t)); err != nil {
		return err
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(string(t), "usr", d), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+d, filepath.Join(string(t), d)); err != nil {
			return err
		}
	}
	for _, file := range files {
		unpack := exec.CommandContext(ctx, "tar", "-x", "-C", string(t), "--keep-directory-symlink", "--no-same-owner",
			"--exclude=./usr/share/doc/*", "--exclude=./usr/share/man/*", "--exclude=./usr/share/locale/*", "--exclude=./usr/share/info/*")
		read := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
		var trouble [2]bytes.Buffer // a buffer takes one writer
		unpack.Stderr, read.Stderr = &trouble[0], &trouble[1]
		pipe, err := read.StdoutPipe()
		if err != nil {
			return err
		}
		unpack.Stdin = pipe
		if err := start(read); err != nil {
			return err
		}
		err = run(unpack)
		// If tar has not read to the end, nobody will, and dpkg-deb must not wait for it.
		pipe.Close()
		if err := errors.Join(err, read.Wait()); err != nil {
			return fmt.Errorf("unpack %s: %w: %s%s", filepath.Base(file), err, &trouble[0], &trouble[1])
		}
	}
	return nil
}

// command is a program of the tree.
func (t tree) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	for _, dir := range []string{"usr/bin", "usr/sbin"} {
		if path := filepath.Join(string(t), dir, program); exists(path) {
			program = path
			break
		}
	}
	lib := filepath.Join(string(t), multiarch)
	loader := filepath.Join(string(t), "usr/lib64/ld-linux-x86-64.so.2")
	// The two folders are where libsystemd-shared and libpulsecommon are, which belong to nobody's search path.
	libraries := strings.Join([]string{lib, lib + "/systemd", lib + "/pulseaudio"}, ":")
	return exec.CommandContext(ctx, loader, append([]string{"--library-path", libraries, program}, args...)...)
}

func (t tree) run(ctx context.Context, program string, args ...string) error {
	if _, trouble, err := output(t.command(ctx, program, args...)); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, trouble)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
