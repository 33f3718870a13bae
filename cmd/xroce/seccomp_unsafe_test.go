//go:build linux

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// asFiltered names system calls that a seccomp filter refuses to the program: "bpf", "socket(AF_XDP)", and with which
// error number.
const asFiltered = "XROCE_TEST_FILTER"

var filterErrors = map[string]unix.Errno{"EPERM": unix.EPERM, "ENOSYS": unix.ENOSYS, "EAFNOSUPPORT": unix.EAFNOSUPPORT}

// installFilter puts the seccomp filter that the environment names on all threads (seccomp(2)).
func installFilter() {
	what, errno, found := strings.Cut(os.Getenv(asFiltered), "=")
	if !found {
		return
	}
	// The first word of struct seccomp_data is the number of the system call, args[0] is at 16.
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	equal := func(k uint32, otherwise uint8) {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: otherwise})
	}
	if what == "bpf" {
		equal(unix.SYS_BPF, 1)
	} else {
		equal(unix.SYS_SOCKET, 3)
		filter = append(filter, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16})
		equal(unix.AF_XDP, 1)
	}
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ERRNO | uint32(filterErrors[errno])},
		unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
			uintptr(unsafe.Pointer(&program)))
		if failed != 0 {
			err = failed
		}
	}
	runtime.KeepAlive(filter)
	if err != nil {
		fmt.Fprintln(os.Stderr, "seccomp:", err)
		os.Exit(3)
	}
}
