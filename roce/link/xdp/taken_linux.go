package xdp

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ownProgram is the name of the program of package bpf, as the kernel tells it.
const ownProgram = "xdp_roce"

// takenBy says, with ErrTaken, which program is on a device. Its name may not be read without CAP_SYS_ADMIN.
func takenBy(device string, id uint32) error {
	switch name := programName(id); name {
	case ownProgram:
		return takenByOwn(device, id, programOwner(id))
	case "":
		return fmt.Errorf("%w: %s has XDP program id %d", ErrTaken, device, id)
	default:
		return fmt.Errorf("%w: %s has XDP program %s, id %d", ErrTaken, device, name, id)
	}
}

// queueTaken adds to an error that says that a queue is taken the processes that may have it.
func queueTaken(err error) error {
	var holders []string
	for _, pid := range socketHolders() {
		name := strconv.Itoa(pid)
		if pid == os.Getpid() {
			name += " (this process)"
		}
		holders = append(holders, name)
	}
	if holders == nil {
		return err
	}
	return fmt.Errorf("%w; pids of processes with AF_XDP sockets: %s", err, strings.Join(holders, ", "))
}

// takenByOwn says, with ErrTaken, that a device serves a process already, whose pid is 0 if it is not known.
func takenByOwn(device string, id uint32, pid int) error {
	owner := ""
	switch pid {
	case 0:
	case os.Getpid():
		return fmt.Errorf("%w: %s serves this process already (XDP program %s, id %d): open a device once, and use that one",
			ErrTaken, device, ownProgram, id)
	default:
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

// programOwner finds a process that holds a program, among those whose descriptors may be looked at and that have not
// been killed; 0 if there is none.
func programOwner(id uint32) (pid int) {
	eachProgram(func(program uint32, owner int) (more bool) {
		if program == id {
			pid = owner
		}
		return pid == 0
	})
	return pid
}

// ownProcesses finds the other processes that hold programs of package bpf, as programOwner does.
func ownProcesses() (pids []int) {
	eachProgram(func(program uint32, owner int) (more bool) {
		if owner != os.Getpid() && programName(program) == ownProgram {
			pids = append(pids, owner)
		}
		return true
	})
	slices.Sort(pids)
	return slices.Compact(pids)
}

// eachProgram calls f for the BPF programs that processes hold, while it wants more.
func eachProgram(f func(program uint32, owner int) (more bool)) {
	descriptors, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, d := range descriptors {
		if kind, _ := os.Readlink(d); kind != "anon_inode:bpf-prog" {
			continue
		}
		parts := strings.Split(d, "/") // "", "proc", pid, "fd", number
		information, err := os.ReadFile("/proc/" + parts[2] + "/fdinfo/" + parts[4])
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(information), "prog_id:\t") // kernel/bpf/syscall.c: bpf_prog_show_fdinfo
		number, _, _ := strings.Cut(rest, "\n")
		program, err := strconv.ParseUint(number, 10, 32)
		if err != nil || killed(parts[2]) {
			continue
		}
		if owner, _ := strconv.Atoi(parts[2]); !f(uint32(program), owner) {
			return
		}
	}
}

// killed says whether SIGKILL is on its way to a process (SigPnd in proc_pid_status(5)).
func killed(pid string) bool {
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	_, rest, _ := strings.Cut(string(status), "\nSigPnd:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	pending, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && pending&(1<<(unix.SIGKILL-1)) != 0
}

// socketHolders finds the processes that have AF_XDP sockets, among those whose mappings may be looked at. Which queue
// a socket is bound to only sock_diag(7) tells, which few kernels have for AF_XDP (CONFIG_XDP_SOCKETS_DIAG); but the
// rings of the sockets are mapped, at offsets that no other kind of socket has.
func socketHolders() (pids []int) {
	ring := []byte(fmt.Sprintf(" %08x ", uint64(unix.XDP_UMEM_PGOFF_FILL_RING)))
	lists, _ := filepath.Glob("/proc/[0-9]*/maps")
	for _, path := range lists {
		list, _ := os.ReadFile(path)
		for line := range bytes.Lines(list) {
			if bytes.Contains(line, ring) && bytes.Contains(line, []byte("socket:[")) {
				pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
				pids = append(pids, pid)
				break
			}
		}
	}
	slices.Sort(pids)
	return pids
}
