package xdp

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// ownProgram is the name of the program of package bpf, as the kernel tells it.
const ownProgram = "xdp_roce"

// takenBy says, with ErrTaken, which program is on a device. Its name may not be read without CAP_SYS_ADMIN.
func takenBy(device string, id uint32) error {
	switch name := programName(id); name {
	case ownProgram:
		return takenByOwn(device, id)
	case "":
		return fmt.Errorf("%w: %s has XDP program id %d", ErrTaken, device, id)
	default:
		return fmt.Errorf("%w: %s has XDP program %s, id %d", ErrTaken, device, name, id)
	}
}

// takenByOwn says, with ErrTaken, that a device serves a process already.
func takenByOwn(device string, id uint32) error {
	owner := ""
	if pid := programOwner(id); pid != 0 {
		owner = fmt.Sprintf(", pid %d", pid)
	}
	return fmt.Errorf("%w: %s serves another xroce process%s (XDP program %s, id %d): a device serves one process at a time",
		ErrTaken, device, owner, ownProgram, id)
}

func programName(id uint32) string {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return ""
	}
	defer program.Close()
	information, err := program.Info()
	if err != nil {
		return ""
	}
	return information.Name
}

// programOwner finds a process that holds a program, among those whose descriptors may be looked at; 0 if there is none.
func programOwner(id uint32) (pid int) {
	line := []byte(fmt.Sprintf("prog_id:\t%d\n", id)) // kernel/bpf/syscall.c: bpf_prog_show_fdinfo
	descriptors, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, d := range descriptors {
		if kind, _ := os.Readlink(d); kind != "anon_inode:bpf-prog" {
			continue
		}
		parts := strings.Split(d, "/") // "", "proc", pid, "fd", number
		information, err := os.ReadFile("/proc/" + parts[2] + "/fdinfo/" + parts[4])
		if err == nil && bytes.Contains(information, line) {
			pid, _ = strconv.Atoi(parts[2])
			return pid
		}
	}
	return 0
}
