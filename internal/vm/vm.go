//go:build linux

// Package vm boots a Linux kernel of Debian in a virtual machine and runs a script there, for what the kernel of this
// machine does not have: rdma_rxe, network devices with zero copy, other versions. It needs nothing but apt and dpkg:
// kernels, the guest's user space and QEMU itself are packages of Debian, unpacked into a cache and not installed.
// Neither root nor KVM is needed, nor does the guest have a network to the outside.
//
// Life of a run: Prepare has apt fetch what is missing and unpacks it. Run makes a folder with the script and the
// files for the guest, and starts QEMU. The guest mounts three folders of this machine by 9P: the root, the modules,
// and that folder. Its first process (guest/initramfs.sh) is of an initramfs with the modules that this takes, the
// second one (guest/init.sh) runs the script, whose output comes back by a port of virtio-serial and whose status and
// results are files in the folder.
package vm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Suite is the release of Debian that QEMU and the guest's user space are of.
const Suite = "trixie"

// Kernels are the names of kernels and the suites of Debian that have them. "new" is the newest one that runs on Suite.
var Kernels = map[string]string{
	"6.1":  "bookworm",
	"6.12": "trixie",
	"new":  "trixie-backports",
}

// NICs are the models of network devices that guests have drivers for.
var NICs = []string{"virtio", "igb", "e1000e", "vmxnet3"}

// Validate says whether a kernel and a model of network devices, which may be empty, can be had, without fetching
// anything.
func Validate(kernel, nic string) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the virtual machine is made of programs for amd64, which a machine of %s does not run",
			runtime.GOARCH)
	}
	cache, err := Cache()
	if err != nil {
		return err
	}
	_, named := Kernels[kernel]
	if !named && (kernel == "" || kernel != filepath.Base(kernel) || !exists(filepath.Join(cache, "kernels", kernel, "vmlinuz"))) {
		return fmt.Errorf("no kernel %q: there are 6.1, 6.12, new, and versions prepared before", kernel)
	}
	if model, _, _ := strings.Cut(nic, ","); nic != "" && !slices.Contains(NICs, model) {
		return fmt.Errorf("no network device %q: there are %s", model, strings.Join(NICs, ", "))
	}
	return nil
}

// Options of a run.
type Options struct {
	Kernel   string   // one of Kernels, or the version of one that was prepared; "new" by default
	Script   string   // file with the script, for bash
	Args     []string // of the script
	Files    []string // files and folders that the guest has in /host
	Results  string   // folder for what the script leaves in /results; nothing is kept by default
	NIC      string   // two network devices back to back, eth0 and eth1, of this model: one of NICs, with properties of QEMU's ("virtio,mq=on")
	CPUs     int      // 2 by default
	Memory   string   // "2G" by default
	Append   string   // to the kernel's command line
	Limit    time.Duration
	Output   io.Writer    // of the script
	Progress func(string) // hears what takes a while before the machine boots; may be nil
	Console  io.Writer    // of the kernel; where a run fails its end is part of the error in any case
}

// Cache is the folder that holds what was fetched: $XROCE_VM or, without it, xroce-vm in the user's cache folder.
func Cache() (string, error) {
	if dir := os.Getenv("XROCE_VM"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the virtual machine's parts, set XROCE_VM: %w", err)
	}
	return filepath.Join(dir, "xroce-vm"), nil
}
