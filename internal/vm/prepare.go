//go:build linux

package vm

import (
	"context"
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

// Prepare fetches what is missing of a kernel, the guest's user space and QEMU, and returns the version of the kernel, such as
// "6.12.57+deb13-amd64". It tells on progress, which may be nil, what takes a while. kernel is one of Kernels, or a version
// that was prepared before.
func Prepare(ctx context.Context, kernel string, progress func(string)) (version string, err error) {
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if progress == nil {
		progress = func(string) {}
	}
	tools, root := tree(filepath.Join(cache, "tools")), tree(filepath.Join(cache, "root"))
	progress("QEMU of " + Suite)
	if err := tools.make(ctx, Suite, toolPackages, nil); err != nil {
		return "", fmt.Errorf("QEMU: %w", err)
	}
	progress("user space of " + Suite)
	if err := root.make(ctx, Suite, guestPackages, finishRoot(ctx)); err != nil {
		return "", fmt.Errorf("user space: %w", err)
	}
	suite, named := Kernels[kernel]
	if !named {
		if exists(filepath.Join(cache, "kernels", kernel, "vmlinuz")) {
			return kernel, nil
		}
		return "", fmt.Errorf("no kernel %q: there are 6.1, 6.12, new, and versions prepared before", kernel)
	}
	progress("kernel of " + suite)
	version, err = prepareKernel(ctx, cache, tools, suite)
	if err != nil {
		return "", fmt.Errorf("kernel %s: %w", kernel, err)
	}
	return version, nil
}

// lock takes the cache for this process. Runs need no lock: what they use is never changed, only replaced.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
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
		if out, err := python.CombinedOutput(); err != nil {
			return fmt.Errorf("compile Python's modules: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	}
}
