//go:build linux

package bpf

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// children are the parts that this test binary plays as a child process.
var children = map[string]func([]string) error{
	"hold":         holdChild,
	"capability":   capabilityChild,
	"unprivileged": unprivilegedChild,
}

// keepCapabilities drops all capabilities of the thread but the given ones.
func keepCapabilities(keep ...uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for _, capability := range keep {
		data[capability/32].Permitted |= 1 << (capability % 32)
		data[capability/32].Effective |= 1 << (capability % 32)
	}
	return unix.Capset(&header, &data[0])
}

// capabilityChild loads and attaches and says how far it came. It has the given
// capabilities only, from before "load" or from before "attach" on.
func capabilityChild(arguments []string) error {
	ifindex, _ := strconv.Atoi(arguments[0])
	var keep []uint
	for _, argument := range arguments[2:] {
		capability, _ := strconv.Atoi(argument)
		keep = append(keep, uint(capability))
	}
	if arguments[1] == "load" {
		if err := keepCapabilities(keep...); err != nil {
			return err
		}
	}
	p, err := Load(Options{})
	if err := keepCapabilities(keep...); err != nil {
		return err
	}
	if err == nil {
		_, err = Attach(p, ifindex, ModeAuto)
	}
	var permission *PermissionError
	var foreign *ForeignProgramError
	switch {
	case err == nil:
		fmt.Print("attached ", p.Attachment().Rung())
	case errors.As(err, &permission) && errors.Is(err, ErrPermission) && errors.Is(err, unix.EPERM):
		fmt.Print(permission.Operation, ": ", strings.Join(permission.Missing, " "))
	case errors.As(err, &foreign):
		fmt.Printf("foreign program %q, id %d", foreign.Name, foreign.ID)
	default:
		return err
	}
	return nil
}

// TestCase_F10_Capabilities: each capability is needed, CAP_SYS_ADMIN stands for both, and
// attaching needs none.
func TestCase_F10_Capabilities(t *testing.T) {
	v := newVeth(t, vethOptions{})
	for _, test := range []struct {
		before string
		keep   []int
		want   string
	}{
		{"load", nil, "load XDP program: CAP_BPF CAP_NET_ADMIN"},
		{"load", []int{unix.CAP_NET_ADMIN}, "load XDP program: CAP_BPF"},
		{"load", []int{unix.CAP_BPF}, "load XDP program: CAP_NET_ADMIN"},
		{"load", []int{unix.CAP_BPF, unix.CAP_NET_ADMIN}, "attached native+frags"},
		{"load", []int{unix.CAP_SYS_ADMIN}, "attached native+frags"},
		{"attach", nil, "attached native+frags"},
	} {
		arguments := []string{strconv.Itoa(v.device.Index), test.before}
		for _, capability := range test.keep {
			arguments = append(arguments, strconv.Itoa(capability))
		}
		require.Equal(t, test.want, runChild(t, "capability", nil, arguments...), "%+v", test)
	}

	// The name of a foreign program is a privilege, its id is not.
	p := load(t, Options{})
	attach(t, p, v.device, ModeNative)
	require.Equal(t, fmt.Sprintf(`foreign program "", id %d`, programID(t, p.frags)),
		runChild(t, "capability", nil, strconv.Itoa(v.device.Index), "attach"))
}

// handedOver are the descriptors in the order in which a child gets them, from 3 on.
func handedOver(t testing.TB, p *Program, more ...int) []*os.File {
	t.Helper()
	fds, err := p.FDs()
	require.NoError(t, err)
	var files []*os.File
	for _, fd := range append([]int{fds.Program, fds.FragsProgram, fds.Sockets, fds.Addresses, fds.Groups,
		fds.Configuration, fds.Counters, fds.Link}, more...) {
		duplicate, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		require.NoError(t, err)
		file := os.NewFile(uintptr(duplicate), "")
		t.Cleanup(func() { file.Close() })
		files = append(files, file)
	}
	return files
}

// unprivilegedChild does with descriptors alone what a running process does.
func unprivilegedChild(arguments []string) error {
	if err := keepCapabilities(); err != nil {
		return err
	}
	if missing := missingCapabilities(); len(missing) != 2 {
		return fmt.Errorf("still privileged, only %v missing", missing)
	}
	if _, err := Load(Options{}); !errors.Is(err, ErrPermission) {
		return fmt.Errorf("load: %w", err)
	}
	rung, _ := strconv.Atoi(arguments[0])
	p, err := FromFDs(FDs{Program: 3, FragsProgram: 4, Sockets: 5, Addresses: 6, Groups: 7,
		Configuration: 8, Counters: 9, Link: 10, Rung: Rung(rung)})
	if err != nil {
		return err
	}
	if err := p.SetAddresses([]netip.Addr{own6}); err != nil {
		return err
	}
	if err := errors.Join(p.JoinGroup(group4), p.LeaveGroup(group6), p.SetMAC(ownMAC), p.RegisterSocket(0, 11)); err != nil {
		return err
	}
	counters, err := p.Counters()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"noSocket": counters[PassNoSocket].Packets,
		"rung":     p.Attachment().Rung().String(),
		"ifindex":  p.Attachment().Ifindex(),
		"queues":   p.Queues(),
	})
}

// TestCase_F10_Program: a process without a capability does with descriptors all that a
// running one does.
func TestCase_F10_Program(t *testing.T) {
	v := newVeth(t, vethOptions{})
	options := ownOptions
	options.MAC, options.Queues = [6]byte{}, 3
	p := ownProgram(t, options)
	require.NoError(t, p.LeaveGroup(group4))
	require.NoError(t, p.SetAddresses([]netip.Addr{own4}))
	a := attach(t, p, v.device, ModeGeneric)
	testRun(t, p, p.plain, testFrame{mac: group6MAC, destination: group6, qpn: 0xFFFFFF}.bytes()) // for a counter
	socket := newTestSocket(t)
	socket.bind(t, v.device.Index, 0)

	output := runChild(t, "unprivileged", handedOver(t, p, socket.fd), strconv.Itoa(int(a.Rung())))
	require.JSONEq(t, fmt.Sprintf(`{"noSocket":1,"rung":"generic+frags","ifindex":%d,"queues":3}`, v.device.Index), output)
	require.NotNil(t, programOf(t, v.device), "one of two holders has gone")
	for _, test := range []struct {
		frame testFrame
		want  Reason
	}{
		{testFrame{mac: ownMAC, destination: own6, qpn: ownQPNBase}, Redirected},
		{testFrame{mac: ownMAC, destination: own4, qpn: ownQPNBase}, PassForeignAddress},
		{testFrame{mac: group4MAC, destination: group4, qpn: 0xFFFFFF}, Redirected},
		{testFrame{mac: group6MAC, destination: group6, qpn: 0xFFFFFF}, PassForeignMulticast},
	} {
		_, reason := testRun(t, p, p.plain, test.frame.bytes())
		require.Equal(t, test.want, reason, "%+v", test.frame)
	}
}

// The descriptors of another holder keep the program attached.
func TestFromFDsOutlivesOpener(t *testing.T) {
	v := newVeth(t, vethOptions{})
	opener, err := Load(ownOptions)
	require.NoError(t, err)
	attach(t, opener, v.device, ModeNative)
	fds := duplicate(t, opener)
	receiver, err := FromFDs(fds)
	require.NoError(t, err)
	require.Equal(t, RungNativeFrags, receiver.Attachment().Rung())
	require.Equal(t, v.device.Index, receiver.Attachment().Ifindex())

	require.NoError(t, opener.Close())
	require.NotNil(t, programOf(t, v.device))
	require.NoError(t, receiver.SetAddresses([]netip.Addr{own4}))
	require.NoError(t, receiver.Close())
	require.Nil(t, programOf(t, v.device))
}

func duplicate(t testing.TB, p *Program) FDs {
	t.Helper()
	fds, err := p.FDs()
	require.NoError(t, err)
	for _, fd := range []*int{&fds.Program, &fds.FragsProgram, &fds.Sockets, &fds.Addresses, &fds.Groups,
		&fds.Configuration, &fds.Counters, &fds.Link} {
		if *fd >= 0 {
			*fd, err = unix.FcntlInt(uintptr(*fd), unix.F_DUPFD_CLOEXEC, 3)
			require.NoError(t, err)
		}
	}
	return fds
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Without attachment and without frags the descriptors say so.
func TestFDsAbsent(t *testing.T) {
	requireRoot(t)
	p := load(t, Options{NoFrags: true})
	fds := duplicate(t, p)
	require.Equal(t, -1, fds.FragsProgram)
	require.Equal(t, -1, fds.Link)
	require.Zero(t, fds.Rung)
	receiver, err := FromFDs(fds)
	require.NoError(t, err)
	require.Nil(t, receiver.Attachment())
	require.NoError(t, receiver.Close())
}

// Descriptors that are mixed up are refused, and none of them leaks.
func TestFromFDsInvalid(t *testing.T) {
	v := newVeth(t, vethOptions{})
	p := load(t, Options{})
	attach(t, p, v.device, ModeNative)
	before := openDescriptors(t)
	for name, mixUp := range map[string]func(*FDs){
		"program and map": func(fds *FDs) { fds.Program, fds.Sockets = fds.Sockets, fds.Program },
		"two maps":        func(fds *FDs) { fds.Counters, fds.Configuration = fds.Configuration, fds.Counters },
		"hash maps":       func(fds *FDs) { fds.Addresses, fds.Groups = fds.Groups, fds.Addresses },
		"link and map":    func(fds *FDs) { fds.Link, fds.Groups = fds.Groups, fds.Link },
		"no rung":         func(fds *FDs) { fds.Rung = 0 },
		"no map":          func(fds *FDs) { unix.Close(fds.Groups); fds.Groups = -1 },
		"closed":          func(fds *FDs) { unix.Close(fds.Groups) },
	} {
		fds := duplicate(t, p)
		mixUp(&fds)
		_, err := FromFDs(fds)
		require.ErrorIs(t, err, ErrInvalid, name)
		require.Equal(t, before, openDescriptors(t), name)
	}
	_, err := FromFDs(FDs{})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = FromFDs(FDs{Program: 99, FragsProgram: -1, Sockets: 99, Link: -1})
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, before, openDescriptors(t), "standard input is still open")
}
