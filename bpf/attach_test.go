//go:build linux

package bpf

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/internal/refusal"
)

// Values of IFLA_XDP_ATTACHED (include/uapi/linux/if_link.h).
const (
	attachedNative  = 1
	attachedGeneric = 2
)

func attach(t testing.TB, p *Program, device *net.Interface, mode Mode) *Attachment {
	t.Helper()
	attachment, err := Attach(p, device.Index, mode)
	require.NoError(t, err)
	return attachment
}

// rungs returns the rungs that were not taken.
func rungs(skipped []*RungError) []Rung {
	var rungs []Rung
	for _, rung := range skipped {
		rungs = append(rungs, rung.Rung)
	}
	return rungs
}

func programID(t testing.TB, program *ebpf.Program) uint32 {
	t.Helper()
	info, err := program.Info()
	require.NoError(t, err)
	id, ok := info.ID()
	require.True(t, ok)
	return uint32(id)
}

func TestAttachRungs(t *testing.T) {
	for _, test := range []struct {
		mode     Mode
		noFrags  bool
		want     Rung
		attached uint32
		skipped  []Rung
	}{
		{ModeAuto, false, RungNativeFrags, attachedNative, nil},
		{ModeNative, false, RungNativeFrags, attachedNative, nil},
		{ModeGeneric, false, RungGenericFrags, attachedGeneric, nil},
		{ModeAuto, true, RungNative, attachedNative, []Rung{RungNativeFrags}},
		{ModeNative, true, RungNative, attachedNative, []Rung{RungNativeFrags}},
		{ModeGeneric, true, RungGeneric, attachedGeneric, []Rung{RungGenericFrags}},
	} {
		t.Run(fmt.Sprintf("%v noFrags=%v", test.mode, test.noFrags), func(t *testing.T) {
			v := newVeth(t, vethOptions{})
			p := load(t, Options{NoFrags: test.noFrags})
			require.Nil(t, p.Attachment())
			a := attach(t, p, v.device, test.mode)
			require.Same(t, a, p.Attachment())
			require.Equal(t, test.want, a.Rung())
			require.Equal(t, test.want.Frags(), !test.noFrags)
			require.Equal(t, v.device.Index, a.Ifindex())
			require.Equal(t, test.skipped, rungs(a.Skipped()))
			for _, skipped := range a.Skipped() {
				requireContains(t, skipped.Error(), skipped.Rung.String(), "NoFrags")
			}

			xdp := programOf(t, v.device)
			require.NotNil(t, xdp)
			require.Equal(t, test.attached, xdp.AttachMode)
			program := p.frags
			if test.noFrags {
				program = p.plain
			}
			require.Equal(t, programID(t, program), xdp.ProgId)

			require.NoError(t, a.Close())
			require.NoError(t, a.Close())
			require.Nil(t, programOf(t, v.device))
			require.Nil(t, p.Attachment())
			require.Equal(t, test.want, attach(t, p, v.device, test.mode).Rung(), "again")
			require.NoError(t, p.Close())
			require.Nil(t, programOf(t, v.device), "closing the program detaches it")
		})
	}
}

// At MTU 9000 native mode takes the program for several buffers only, and the
// ladder says so.
func TestAttachLargeMTU(t *testing.T) {
	v := newVeth(t, vethOptions{mtu: 9000})
	p := load(t, Options{})
	require.Equal(t, RungNativeFrags, attach(t, p, v.device, ModeAuto).Rung())
	require.NoError(t, p.Close())

	p = load(t, Options{NoFrags: true})
	a := attach(t, p, v.device, ModeAuto)
	require.Equal(t, RungGeneric, a.Rung())
	require.Equal(t, []Rung{RungNativeFrags, RungNative, RungGenericFrags}, rungs(a.Skipped()))
	require.ErrorIs(t, a.Skipped()[1], unix.ERANGE)
	requireContains(t, a.Skipped()[1].Error(), "native", "MTU is too large", "device is 9000")
	require.NoError(t, a.Close())

	_, err := Attach(p, v.device.Index, ModeNative)
	var failed *AttachError
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, unix.ERANGE)
	require.Equal(t, []Rung{RungNativeFrags, RungNative}, rungs(failed.Rungs))
	requireContains(t, err.Error(), "device", "in mode native", "native+frags: not wanted", "device is 9000")
	require.Nil(t, programOf(t, v.device))
}

func TestAttachTooFewQueues(t *testing.T) {
	v := newVeth(t, vethOptions{queues: 1, peerTxQueues: 2})
	_, err := Attach(load(t, Options{}), v.device.Index, ModeNative)
	require.ErrorIs(t, err, unix.ENOSPC)
	requireContains(t, err.Error(), "native+frags, native: device has too few receive queues")
}

func TestAttachWithoutNativeSupport(t *testing.T) {
	enterNamespace(t)
	loopback, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	p := load(t, Options{})
	_, err = Attach(p, loopback.Index, ModeNative)
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	requireContains(t, err.Error(), "native XDP in the driver of lo")

	a := attach(t, p, loopback, ModeAuto)
	require.Equal(t, RungGenericFrags, a.Rung())
	require.Equal(t, []Rung{RungNativeFrags, RungNative}, rungs(a.Skipped()))
	for _, skipped := range a.Skipped() {
		require.ErrorIs(t, skipped, ErrNotSupported)
	}
}

func TestAttachInvalid(t *testing.T) {
	v := newVeth(t, vethOptions{})
	p := load(t, Options{})
	for _, ifindex := range []int{-1, 0, 1 << 30} {
		_, err := Attach(p, ifindex, ModeAuto)
		require.ErrorIs(t, err, ErrInvalid)
	}
	_, err := Attach(p, v.device.Index, ModeGeneric+1)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = Attach(nil, v.device.Index, ModeAuto)
	require.ErrorIs(t, err, ErrInvalid)
	attach(t, p, v.device, ModeAuto)
	_, err = Attach(p, v.peer.Index, ModeAuto)
	require.ErrorIs(t, err, ErrInvalid)
	requireContains(t, err.Error(), "attached to ifindex "+strconv.Itoa(v.device.Index))
	require.Nil(t, programOf(t, v.peer))
}

// A second process of our own is as foreign as anybody.
func TestAttachTwice(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		v := newVeth(t, vethOptions{})
		first := load(t, Options{})
		attach(t, first, v.device, mode)
		_, err := Attach(load(t, Options{}), v.device.Index, mode)
		require.ErrorIs(t, err, unix.EBUSY)
		var foreign *ForeignProgramError
		require.ErrorAs(t, err, &foreign)
		require.Equal(t, "xdp_roce", foreign.Name)
		require.Equal(t, programID(t, first.frags), foreign.ID)
	}
}

// A program of somebody else is named and stays, however it was attached.
func TestAttachForeignProgram(t *testing.T) {
	for _, test := range []struct {
		name     string
		mode     string
		flags    link.XDPAttachFlags
		attached uint32
		bpfLink  bool
	}{
		{"native by link", "native", link.XDPDriverMode, attachedNative, true},
		{"generic by link", "generic", link.XDPGenericMode, attachedGeneric, true},
		{"native by netlink", "native", link.XDPDriverMode, attachedNative, false},
		{"generic by netlink", "generic", link.XDPGenericMode, attachedGeneric, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newVeth(t, vethOptions{})
			foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Name:         "somebody_else",
				Type:         ebpf.XDP,
				License:      "MIT",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
			})
			require.NoError(t, err)
			defer foreign.Close()
			if test.bpfLink {
				attached, err := link.AttachXDP(link.XDPOptions{Program: foreign, Interface: v.device.Index, Flags: test.flags})
				require.NoError(t, err)
				defer attached.Close()
			} else {
				device, err := netlink.LinkByIndex(v.device.Index)
				require.NoError(t, err)
				require.NoError(t, netlink.LinkSetXdpFdWithFlags(device, foreign.FD(), int(test.flags)))
			}
			before := programOf(t, v.device)
			require.NotNil(t, before)

			p := load(t, Options{})
			for _, mode := range []Mode{ModeAuto, ModeNative, ModeGeneric} {
				_, err := Attach(p, v.device.Index, mode)
				require.ErrorIs(t, err, ErrForeignProgram)
				var details *ForeignProgramError
				require.ErrorAs(t, err, &details)
				errno := details.Err
				details.Err = nil
				require.Equal(t, ForeignProgramError{
					Interface: "device",
					Ifindex:   v.device.Index,
					ID:        programID(t, foreign),
					Name:      "somebody_else",
					Mode:      test.mode,
				}, *details)
				if mode == ModeAuto || mode.String() == test.mode {
					if mode.String() == test.mode || test.mode == "native" {
						require.ErrorIs(t, errno, unix.EBUSY)
					} else {
						require.ErrorIs(t, errno, unix.EEXIST)
					}
				} else {
					require.ErrorIs(t, errno, unix.EEXIST)
				}
				requireContains(t, err.Error(), "device", "somebody_else", fmt.Sprintf("id %d", programID(t, foreign)), test.mode)
				require.Equal(t, before, programOf(t, v.device), "left in place")
			}
			require.Nil(t, p.Attachment())
		})
	}
}

// A program on a bridge excludes programs on its ports.
func TestAttachBelowForeignProgram(t *testing.T) {
	v := newVeth(t, vethOptions{})
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "bridge"
	require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}))
	bridge, err := netlink.LinkByName("bridge")
	require.NoError(t, err)
	port, err := netlink.LinkByIndex(v.device.Index)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetMaster(port, bridge))
	above, err := net.InterfaceByName("bridge")
	require.NoError(t, err)
	attach(t, load(t, Options{}), above, ModeGeneric)

	_, err = Attach(load(t, Options{}), v.device.Index, ModeAuto)
	require.ErrorIs(t, err, ErrForeignProgram)
	require.ErrorIs(t, err, unix.EEXIST)
	requireContains(t, err.Error(), "device above device", "native+frags", "generic: ")
}

// The device may go while the program is attached to it.
func TestAttachDeviceRemoved(t *testing.T) {
	v := newVeth(t, vethOptions{})
	p := load(t, Options{})
	a := attach(t, p, v.device, ModeAuto)
	device, err := netlink.LinkByIndex(v.device.Index)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkDel(device))
	require.NoError(t, a.Close())
	_, err = Attach(p, v.device.Index, ModeAuto)
	require.ErrorIs(t, err, ErrInvalid)
}

// Nothing of the program is left when the process that holds it is killed.
func TestAttachmentDiesWithProcess(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		v := newVeth(t, vethOptions{})
		child := childCommand("hold", strconv.Itoa(v.device.Index), strconv.Itoa(int(mode)))
		child.Stderr = os.Stderr
		output, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		ready := make([]byte, 5)
		_, err = io.ReadFull(output, ready)
		require.NoError(t, err)
		require.Equal(t, "ready", string(ready))
		xdp := programOf(t, v.device)
		require.NotNil(t, xdp)

		require.NoError(t, child.Process.Kill())
		require.ErrorContains(t, child.Wait(), "killed")
		eventually(t, "device is free", func() bool { return programOf(t, v.device) == nil })
		eventually(t, "program is gone", func() bool {
			program, err := ebpf.NewProgramFromID(ebpf.ProgramID(xdp.ProgId))
			if err != nil {
				require.ErrorIs(t, err, os.ErrNotExist)
				return true
			}
			require.NoError(t, program.Close())
			return false
		})
		attach(t, load(t, Options{}), v.device, mode)
	}
}

// holdChild attaches and waits to be killed.
func holdChild(arguments []string) error {
	ifindex, _ := strconv.Atoi(arguments[0])
	mode, _ := strconv.Atoi(arguments[1])
	p, err := Load(Options{})
	if err != nil {
		return err
	}
	if _, err := Attach(p, ifindex, Mode(mode)); err != nil {
		return err
	}
	fmt.Print("ready")
	time.Sleep(time.Hour) // "select {}" would be a deadlock to the runtime
	return nil
}

// What cannot be provoked here: errors of older kernels and of other drivers.
func TestExplain(t *testing.T) {
	defer func() { look = refusal.Look }()
	kernel := func(release string) { look = func() *refusal.Facts { return &refusal.Facts{Release: release} } }
	for _, test := range []struct {
		errno error
		want  error
		text  string
	}{
		{unix.EINVAL, ErrNotSupported, "this kernel (6.18.5) may be built without CONFIG_XDP_SOCKETS (its configuration cannot be read): wrapped"},
		{unix.ENOSYS, ErrNotSupported, "this kernel (6.18.5) may be built without CONFIG_BPF_SYSCALL (its configuration cannot be read): wrapped"},
	} {
		kernel("6.18.5")
		err := explainLoad("load it", fmt.Errorf("wrapped: %w", test.errno))
		require.ErrorIs(t, err, test.want)
		require.ErrorIs(t, err, test.errno)
		requireContains(t, err.Error(), test.text)
		require.NotContains(t, err.Error(), "or later has it")
	}
	kernel("5.8.0")
	for _, test := range []struct {
		errno error
		want  error
		text  string
	}{
		{unix.EINVAL, ErrNotSupported, "Linux 5.18 or later"},
		{unix.EACCES, ErrNotSupported, "Linux 5.18 or later"},
		{unix.ENOSYS, ErrNotSupported, "Linux 5.18 or later"},
		{unix.EPERM, ErrPermission, "permission denied"},
		{unix.ENFILE, unix.ENFILE, ""},
		{unix.ENOMEM, unix.ENOMEM, ""},
	} {
		err := explainLoad("load it", fmt.Errorf("wrapped: %w", test.errno))
		require.ErrorIs(t, err, test.want)
		require.ErrorIs(t, err, test.errno)
		if test.want == test.errno {
			require.NotErrorIs(t, err, ErrNotSupported)
			require.Equal(t, "load it: wrapped: "+test.errno.Error(), err.Error())
			continue
		}
		requireContains(t, err.Error(), test.text)
	}

	err := explainLoad("load it", fmt.Errorf("wrapped: %w", unix.EMFILE))
	require.ErrorIs(t, err, unix.EMFILE)
	requireContains(t, err.Error(), "up to 16 descriptors")

	device := &net.Interface{Name: "nic", Index: 7, MTU: 9000}
	for _, test := range []struct {
		rung  Rung
		errno error
		want  error
		text  string
	}{
		{RungNative, link.ErrNotSupported, ErrNotSupported, "Linux 5.9 or later"},
		{RungGeneric, unix.EOPNOTSUPP, ErrNotSupported, "generic XDP on nic"},
		{RungNative, unix.EINVAL, unix.EINVAL, "driver of nic refuses, often for the MTU (9000)"},
		{RungNative, unix.EBUSY, unix.EBUSY, "header-data split"},
		{RungNative, unix.EIO, unix.EIO, "input/output error"},
	} {
		err := explainRung(device, test.rung, test.errno)
		require.ErrorIs(t, err, test.want)
		requireContains(t, err.Error(), test.text)
	}

	require.ErrorIs(t, fatal(device, unix.EPERM), ErrPermission)
	require.NoError(t, fatal(device, unix.EINVAL))
	dispatcher := &ForeignProgramError{Interface: "nic", Name: "xdp_dispatcher", Mode: "native", Err: unix.EBUSY}
	requireContains(t, dispatcher.Error(), "libxdp")
}

func TestParseXDPAttributes(t *testing.T) {
	attribute := func(kind byte, value ...byte) []byte {
		return append([]byte{byte(4 + len(value)), 0, kind, 0}, value...)
	}
	native := attribute(unix.IFLA_XDP_DRV_PROG_ID, 7, 0, 0, 0)
	require.Equal(t, &xdpProgram{id: 7, mode: "native"}, parseXDPAttributes(native))
	require.Equal(t, &xdpProgram{id: 9, mode: "offload"}, parseXDPAttributes(append(
		append(attribute(unix.IFLA_XDP_ATTACHED, 3), 0, 0, 0), attribute(unix.IFLA_XDP_HW_PROG_ID, 9, 0, 0, 0)...)))
	for length := range len(native) { // and no damage from what is cut off
		require.Nil(t, parseXDPAttributes(native[:length]))
	}
	require.Nil(t, parseXDPAttributes([]byte{0, 0, 0, 0, 0, 0, 0, 0}))
	require.Nil(t, parseXDPAttributes(attribute(unix.IFLA_XDP_ATTACHED, 0)))
}
