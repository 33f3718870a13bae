//go:build linux

package vm

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed guest/initramfs.sh
var initramfsScript []byte

// keptModules are the modules that a guest may load.
var keptModules = regexp.MustCompile(`^kernel/(arch|crypto|lib|net|drivers/(dca|dma-buf|infiniband/(core|sw)|ptp|pps|virtio)|` +
	`drivers/i2c/algos|fs/(9p|configfs|fscache|netfs)|drivers/char/(virtio_console|hw_random/(virtio-rng|rng-core))|drivers/net/[^/]*\.ko|` +
	`drivers/net/(ethernet/intel/(e1000e|igb)|vmxnet3|bonding|phy|mdio|pcs))`)

// bootModules are in the initramfs, with what they depend on.
var bootModules = []string{"virtio_pci", "9pnet_virtio", "9p", "virtio_console", "virtio-rng"}

// prepareKernel lays out the kernel of a suite in kernels/VERSION: vmlinuz and modules/VERSION.
func prepareKernel(ctx context.Context, cache string, tools tree, suite string,
	progress func(string)) (version string, err error) {
	a, err := openApt(ctx, cache, suite, progress)
	if err != nil {
		return "", err
	}
	work, remove, err := TempDir(ctx)
	if err != nil {
		return "", err
	}
	defer remove()
	var (
		dir   string
		files []string
	)
	err = a.withLists(ctx, func() (err error) {
		if version, err = a.kernel(ctx); err != nil {
			return err
		}
		if dir = filepath.Join(cache, "kernels", version); exists(filepath.Join(dir, "vmlinuz")) {
			return nil
		}
		progress("fetch kernel " + version)
		// Older kernels are one package, newer ones several.
		files, err = a.fetch(ctx, filepath.Join(work, "archives"), "linux-image-"+version, "linux-binary-"+version,
			"linux-modules-"+version)
		return err
	})
	if err != nil || len(files) == 0 {
		return version, err
	}
	unpacked := tree(filepath.Join(work, "unpacked"))
	if err := unpacked.unpack(ctx, files); err != nil {
		return "", err
	}
	laid := filepath.Join(work, "laid")
	modules := filepath.Join(laid, "modules", version)
	if err := os.MkdirAll(modules, 0o755); err != nil {
		return "", err
	}
	if err := keepModules(ctx, tools, filepath.Join(string(unpacked), "usr/lib/modules", version), modules); err != nil {
		return "", err
	}
	// depmod looks below lib/modules.
	base := filepath.Join(work, "base")
	if err := errors.Join(os.MkdirAll(filepath.Join(base, "lib"), 0o755), os.Symlink(filepath.Join(laid, "modules"), filepath.Join(base, "lib/modules"))); err != nil {
		return "", err
	}
	if err := tools.run(ctx, "depmod", "-b", base, version); err != nil {
		return "", err
	}
	image, err := findKernel(string(unpacked), version)
	if err != nil {
		return "", err
	}
	if err := os.Rename(image, filepath.Join(laid, "vmlinuz")); err != nil {
		return "", err
	}
	// A folder without vmlinuz is no kernel.
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	return version, publish(laid, dir)
}

func findKernel(unpacked, version string) (string, error) {
	for _, path := range []string{"boot/vmlinuz-" + version, "usr/lib/modules/" + version + "/vmlinuz", "usr/lib/linux-image-" + version + "/vmlinuz"} {
		if path = filepath.Join(unpacked, path); exists(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("the packages of %s have no vmlinuz", version)
}

// keepModules moves the modules that a guest may load, uncompressed and without signatures: emulated, unpacking and
// checking them takes a second per MiB.
func keepModules(ctx context.Context, tools tree, from, to string) error {
	compressed := map[string][]string{}
	var kept []string
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		listing := name == "modules.order" || strings.HasPrefix(name, "modules.builtin")
		if !listing && !keptModules.MatchString(name) {
			return nil
		}
		target := filepath.Join(to, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.Rename(path, target)); err != nil {
			return err
		}
		switch extension := filepath.Ext(name); extension {
		case ".xz", ".zst":
			compressed[extension] = append(compressed[extension], target)
			target = strings.TrimSuffix(target, extension)
			fallthrough
		case ".ko":
			kept = append(kept, target)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for extension, program := range map[string][]string{".xz": {"xz", "-d"}, ".zst": {"zstd", "-d", "-q", "--rm"}} {
		for some := range slices.Chunk(compressed[extension], 200) {
			if err := tools.run(ctx, program[0], append(program[1:], some...)...); err != nil {
				return err
			}
		}
	}
	for _, module := range kept {
		content, err := os.ReadFile(module)
		if err != nil {
			return err
		}
		// The kernel looks for this text at the end of the file, and then before it (kernel/module/signing.c).
		if short, signed := bytes.CutSuffix(content, []byte("~Module signature appended~\n")); signed {
			if err := os.Truncate(module, int64(len(short))); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeInitramfs makes what the guest starts in: a shell and the boot modules of the folder modules.
func makeInitramfs(root tree, modules string) ([]byte, error) {
	busybox, err := os.ReadFile(filepath.Join(string(root), "usr/bin/busybox"))
	if err != nil {
		return nil, err
	}
	var a archive
	for _, d := range []string{"proc", "sys", "dev", "new", "modules"} {
		a.directory(d)
	}
	a.file("busybox", 0o755, busybox)
	a.file("init", 0o755, initramfsScript)
	dependencies, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	var list strings.Builder
	for _, path := range bootOrder(string(dependencies)) {
		content, err := os.ReadFile(filepath.Join(modules, path))
		if err != nil {
			return nil, err
		}
		name := filepath.Base(path)
		a.file("modules/"+name, 0o644, content)
		fmt.Fprintln(&list, name)
	}
	a.file("modules/list", 0o644, []byte(list.String()))
	a.close()
	return a.Bytes(), nil
}

// bootOrder returns the files of the boot modules, what each depends on before it. What the kernel has built in is no
// file.
func bootOrder(dependencies string) (order []string) {
	for _, want := range bootModules {
		for line := range strings.Lines(dependencies) {
			module, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
			name := strings.TrimSuffix(filepath.Base(module), ".ko")
			if strings.ReplaceAll(name, "-", "_") != strings.ReplaceAll(want, "-", "_") {
				continue
			}
			// modules.dep names what is needed last first.
			all := strings.Fields(needs)
			slices.Reverse(all)
			for _, m := range append(all, module) {
				if !slices.Contains(order, m) {
					order = append(order, m)
				}
			}
		}
	}
	return order
}
