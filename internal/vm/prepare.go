//go:build linux

package vm

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

var toolPackages = []string{"qemu-system-x86", "kmod", "xz-utils", "zstd"}

var guestPackages = []string{
	"base-files", "bash", "busybox-static", "coreutils", "ethtool", "gawk", "grep", "ibverbs-providers", "ibverbs-utils",
	"iperf3", "iproute2", "iputils-ping", "kmod", "mount", "perftest", "procps", "python3", "python3-pyverbs", "rdma-core",
	"rdmacm-utils", "sed", "tcpdump", "util-linux",
}

// The trees of programs. What they are made of is in their names: another list of packages does not replace what a
// machine runs on.
func toolsTree(cache string) tree { return treeOf(cache, "tools", toolPackages) }
func rootTree(cache string) tree  { return treeOf(cache, "root", guestPackages) }

func treeOf(cache, name string, packages []string) tree {
	sum := sha256.Sum256([]byte(Suite + " " + strings.Join(packages, " ")))
	return tree(filepath.Join(cache, fmt.Sprintf("%s-%x", name, sum[:6])))
}

// Prepare fetches what is missing of a kernel, the guest's user space and QEMU, and returns the version of the
// kernel, such as "6.12.57+deb13-amd64". It tells on progress, which may be nil, what takes a while. kernel is one of
// Kernels, or a version that was prepared before.
func Prepare(ctx context.Context, kernel string, progress func(string)) (version string, err error) {
	if err := Validate(kernel, ""); err != nil {
		return "", err
	}
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	if progress == nil {
		progress = func(string) {}
	}
	// Machines need no lock: what they run on is made once, and neither changed nor replaced.
	unlock, err := lock(ctx, filepath.Join(cache, "lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	tools := toolsTree(cache)
	if err := tools.make(ctx, "QEMU", toolPackages, nil, progress); err != nil {
		return "", fmt.Errorf("QEMU: %w", err)
	}
	if err := rootTree(cache).make(ctx, "user space", guestPackages, finishRoot(ctx), progress); err != nil {
		return "", fmt.Errorf("user space: %w", err)
	}
	suite, named := Kernels[kernel]
	if !named {
		return kernel, nil
	}
	version, err = prepareKernel(ctx, cache, tools, suite, progress)
	if err != nil {
		return "", fmt.Errorf("kernel %s: %w", kernel, err)
	}
	return version, nil
}

// publish gives what was made in a work folder its place in the cache, complete on the disk or not at all.
func publish(work, place string) error {
	f, err := os.Open(work)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(f.Fd()))
	f.Close()
	if err != nil {
		return fmt.Errorf("sync %s: %w", work, err)
	}
	return os.Rename(work, place)
}

// finishRoot does what the scripts of the packages would have done.
func finishRoot(ctx context.Context) func(tree) error {
	return func(t tree) error {
		for _, d := range []string{"dev", "host", "job", "lib/modules", "proc", "results", "root", "run", "sys", "tmp", "var"} {
			if err := os.MkdirAll(filepath.Join(string(t), d), 0o755); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(filepath.Join(string(t), "var/run")); err != nil {
			return err
		}
		if err := os.Symlink("/run", filepath.Join(string(t), "var/run")); err != nil {
			return err
		}
		for name, content := range map[string]string{
			"passwd":        "root:x:0:0:root:/root:/bin/bash\ntcpdump:x:101:101::/:/bin/false\n",
			"group":         "root:x:0:\nnogroup:x:65534:\ntcpdump:x:101:\n",
			"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
			"hostname":      "xroce-vm\n",
			"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
		} {
			if err := os.WriteFile(filepath.Join(string(t), "etc", name), []byte(content), 0o644); err != nil {
				return err
			}
		}
		// Emulated, the compiler takes longer than all else that Python does when it starts.
		libraries, err := filepath.Glob(filepath.Join(string(t), "usr/lib/python3.*"))
		if err != nil {
			return err
		}
		libraries = append(libraries, filepath.Join(string(t), "usr/lib/python3/dist-packages"))
		python := t.command(ctx, "python3", append([]string{
			"-m", "compileall", "-q", "-x", "/(test|tests|idlelib|lib2to3|pydoc_data|ensurepip)/", "--invalidation-mode", "unchecked-hash",
		}, libraries...)...)
		python.Env = append(os.Environ(), "PYTHONHOME="+filepath.Join(string(t), "usr"))
		if out, trouble, err := output(python); err != nil {
			return fmt.Errorf("compile Python's modules: %w: %s%s", err, out, trouble)
		}
		return nil
	}
}
