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

// make fills the tree with packages of the suite and all that they depend on, unless it has them already. finish
// completes it.
func (t tree) make(ctx context.Context, suite string, packages []string, finish func(tree) error) error {
	stamp := filepath.Join(string(t), ".packages")
	want := suite + " " + strings.Join(packages, " ") + "\n"
	if have, _ := os.ReadFile(stamp); string(have) == want {
		return nil
	}
	a, err := openApt(ctx, filepath.Dir(string(t)), suite)
	if err != nil {
		return err
	}
	archives := string(t) + ".archives"
	defer os.RemoveAll(archives)
	files, err := a.closure(ctx, archives, packages...)
	if err != nil {
		return err
	}
	fresh := tree(string(t) + ".new")
	if err := fresh.unpack(ctx, files); err != nil {
		return err
	}
	if finish != nil {
		if err := finish(fresh); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(string(fresh), ".packages"), []byte(want), 0o644); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(string(t)), os.Rename(string(fresh), string(t)))
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
		var trouble bytes.Buffer
		unpack.Stderr, read.Stderr = &trouble, &trouble
		pipe, err := read.StdoutPipe()
		if err != nil {
			return err
		}
		unpack.Stdin = pipe
		if err := read.Start(); err != nil {
			return err
		}
		if err := errors.Join(unpack.Run(), read.Wait()); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", filepath.Base(file), err, trouble.String())
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
	if out, err := t.command(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
