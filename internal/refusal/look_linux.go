package refusal

import (
	"bufio"
	"compress/gzip"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// initialUserNamespace is the inode of the initial user namespace (PROC_USER_INIT_INO, include/linux/proc_ns.h).
const initialUserNamespace = 0xEFFFFFFD

// Look finds the facts for the calling thread. What it cannot find stays empty.
func Look() *Facts {
	f := &Facts{Release: Release(), Config: kernelConfig()}
	own := inode("/proc/thread-self/ns/user")
	f.Nested = own != 0 && own != initialUserNamespace
	f.Foreign = own != 0 && networkIsForeign(own)
	status, _ := os.ReadFile("/proc/thread-self/status")
	_, rest, _ := strings.Cut(string(status), "\nSeccomp:\t")
	f.Seccomp = strings.HasPrefix(rest, "2") // SECCOMP_MODE_FILTER
	modules, _ := os.ReadFile("/sys/kernel/security/lsm")
	f.Modules = strings.TrimSpace(string(modules))
	return f
}

// Release is the kernel's version as uname(2) tells it, or "unknown".
func Release() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// Effective returns the effective capabilities of the calling thread as a function, which says yes to all if they
// cannot be read.
func Effective() (has func(capability uint) bool) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return func(uint) bool { return true }
	}
	return func(capability uint) bool { return data[capability/32].Effective&(1<<(capability%32)) != 0 }
}

func inode(path string) uint64 {
	var s unix.Stat_t
	if unix.Stat(path, &s) != nil {
		return 0
	}
	return s.Ino
}

// networkIsForeign says whether the network namespace of the thread belongs to another user namespace than own. The
// kernel shows the owner to those only who are inside of it, or above (fs/nsfs.c, ns_get_owner: EPERM).
func networkIsForeign(own uint64) bool {
	network, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	defer network.Close()
	fd, err := unix.IoctlRetInt(int(network.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return err == unix.EPERM
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	return unix.Fstat(fd, &s) == nil && s.Ino != own && own != initialUserNamespace
}

// kernelConfig reads the configuration of the running kernel where kernels and distributions have it; nil without.
func kernelConfig() map[string]string {
	release := Release()
	for _, path := range []string{"/proc/config.gz", "/boot/config-" + release, "/lib/modules/" + release + "/config"} {
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		defer file.Close()
		var text io.Reader = file
		if strings.HasSuffix(path, ".gz") {
			if text, err = gzip.NewReader(file); err != nil {
				continue
			}
		}
		if config := parseConfig(text); len(config) > 0 {
			return config
		}
	}
	return nil
}

func parseConfig(text io.Reader) map[string]string {
	config := make(map[string]string)
	for lines := bufio.NewScanner(text); lines.Scan(); {
		if name, value, found := strings.Cut(lines.Text(), "="); found && strings.HasPrefix(name, "CONFIG_") {
			config[name] = value
		}
	}
	return config
}
