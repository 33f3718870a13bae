package xdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/xroce/xroce/bpf"
	"github.com/xroce/xroce/roce"
	"github.com/xroce/xroce/xsk"
)

// Probe says whether a network device can serve, and if not, why. The error is about the question, not the device:
// ErrNoDevice, or a namespace that cannot be entered.
func Probe(name string, o ProbeOptions) (Port, error) {
	var port Port
	err := probing(o, func(n *netlinkSockets) error {
		attributes, err := n.find(name)
		if err != nil {
			return err
		}
		port, err = n.probe(attributes, o)
		return err
	})
	if err != nil {
		return Port{}, fmt.Errorf("probe %s: %w", name, classify(err))
	}
	return port, nil
}

// List probes all network devices, in the order of their index, until ctx ends.
func List(ctx context.Context, o ProbeOptions) ([]Port, error) {
	var ports []Port
	err := probing(o, func(n *netlinkSockets) error {
		devices, err := n.all()
		if err != nil {
			return err
		}
		for _, attributes := range devices {
			if err := ctx.Err(); err != nil {
				return err
			}
			port, err := n.probe(attributes, o)
			if errors.Is(err, ErrNoDevice) {
				continue // deleted meanwhile
			} else if err != nil {
				return err
			}
			ports = append(ports, port)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", classify(err))
	}
	return ports, nil
}

// probing runs f with netlink sockets in the namespace of o.
func probing(o ProbeOptions, f func(*netlinkSockets) error) error {
	return inNamespace(o.NetNS, func() error {
		n, err := openNetlink()
		if err != nil {
			return err
		}
		defer n.close()
		return f(n)
	})
}

func (n *netlinkSockets) probe(a *netlink.LinkAttrs, o ProbeOptions) (Port, error) {
	port := Port{
		Name: a.Name, Index: a.Index, Driver: n.driverName(a.Name), HardwareAddr: macOf(a.HardwareAddr),
		Running: isRunning(a), MTU: a.MTU, Obstacle: suitable(a), Missing: missingCapabilities(),
	}
	var err error
	if port.Addresses, err = n.addresses(&netlink.Device{LinkAttrs: *a}); err != nil {
		return Port{}, err
	}
	port.ActiveMTU, _ = roce.ActiveMTU(a.MTU)
	receive, transmit, err := xsk.ChannelCount(a.Index)
	if errors.Is(err, unix.ENODEV) {
		return Port{}, fmt.Errorf("%w: %s", ErrNoDevice, a.Name)
	} else if err != nil {
		return Port{}, err
	}
	port.Queues = receive
	if port.Obstacle != nil {
		return port, nil
	}
	features := n.features(a.Index)
	port.Rungs, port.ZeroCopy, port.DriverTells = features.rungs(), features.zeroCopy(), features.known
	port.MultiBuffer = features.multiBuffer(multiBufferObstacle)
	if port.MultiBuffer != nil {
		port.ActiveMTU = min(port.ActiveMTU, roce.MTU2048)
	}
	if _, port.Obstacle = chooseQueues(a.Name, receive, transmit, 0); port.Obstacle != nil {
		return port, nil
	}
	if len(port.Addresses) == 0 {
		port.Obstacle = fmt.Errorf("%w: %s has no IP address", ErrUnsuitable, a.Name)
		return port, nil
	}
	if hasProgram(a) {
		port.Obstacle = takenBy(a.Name, a.Xdp.ProgId)
		return port, nil
	}
	if port.Obstacle = down(a); port.Obstacle != nil || o.Look {
		return port, nil
	}
	if port.Obstacle = lacking(port.Missing); port.Obstacle == nil {
		port.Obstacle = n.try(a, receive, port.MultiBuffer)
	}
	if port.Obstacle == nil && o.Attach {
		port.attach()
	}
	return port, nil
}

// try does what Open does, except for attaching, and undoes it: it loads the program and binds a socket to each queue.
// In copy mode that changes nothing for the driver (net/xdp/xsk_buff_pool.c, xp_assign_dev).
func (n *netlinkSockets) try(a *netlink.LinkAttrs, queues int, multiBuffer error) (err error) {
	defer func() {
		if err != nil {
			err = explainUnsupported(classify(err), kernelProbes)
		}
	}()
	if n.program == nil {
		// Loading is the same for every device, and the slowest part.
		tried := bpf.ErrClosed
		if p, err := bpf.Load(bpf.Options{}); err != nil {
			tried = err
		} else {
			tried = p.Close()
		}
		n.program = &tried
	}
	if *n.program != nil {
		return *n.program
	}
	choice := sockets[*xsk.Socket]{
		options: Options{Copy: CopyOnly}, index: a.Index, patience: openPatience, obstacle: multiBuffer, open: xsk.Open,
	}
	for queue := range queues {
		socket, err := choice.next(queue)
		if errors.Is(err, xsk.ErrQueueBusy) {
			err = queueTaken(err)
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, socket.Close()) }()
	}
	return nil
}

// attach opens the device for a moment, in the namespace of the calling thread.
func (p *Port) attach() {
	device, err := Open(context.Background(), p.Name, Options{})
	if err != nil {
		p.Obstacle = err
		return
	}
	information := device.Information()
	if p.Obstacle = device.Close(); p.Obstacle == nil {
		p.Obtained = &information
	}
}

// xdpFeatures is what a driver says it can do for XDP.
type xdpFeatures struct {
	known bool
	flags uint64
}

// Of the generic netlink family "netdev" (include/uapi/linux/netdev.h).
const (
	netdevCommandDeviceGet  = 1
	netdevAttributeIndex    = 1
	netdevAttributeFeatures = 3
	netdevActBasic          = 1 << 0
	netdevActRedirect       = 1 << 1
	netdevActZeroCopy       = 1 << 3
)

// features asks what the driver of a device offers. Kernels before 6.3 do not know.
func (n *netlinkSockets) features(index int) xdpFeatures {
	request := nl.NewNetlinkRequest(nl.GENL_ID_CTRL, 0)
	request.AddData(genericHeader{nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION})
	request.AddData(nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated("netdev")))
	family, ok := n.attribute(request, nl.GENL_CTRL_ATTR_FAMILY_ID)
	if !ok || len(family) < 2 {
		return xdpFeatures{}
	}
	request = nl.NewNetlinkRequest(int(binary.NativeEndian.Uint16(family)), 0)
	request.AddData(genericHeader{netdevCommandDeviceGet, 1})
	request.AddData(nl.NewRtAttr(netdevAttributeIndex, nl.Uint32Attr(uint32(index))))
	flags, ok := n.attribute(request, netdevAttributeFeatures)
	if !ok || len(flags) < 8 {
		return xdpFeatures{}
	}
	return xdpFeatures{known: true, flags: binary.NativeEndian.Uint64(flags)}
}

// genericHeader is struct genlmsghdr: command and version, then two reserved bytes, which the kernel wants to be zero
// (net/netlink/genetlink.c). The library's type sends whatever lies behind it in memory.
type genericHeader [2]byte

func (h genericHeader) Len() int          { return nl.SizeofGenlmsg }
func (h genericHeader) Serialize() []byte { return []byte{h[0], h[1], 0, 0} }

// attribute makes a generic netlink request and returns one attribute of the answer.
func (n *netlinkSockets) attribute(request *nl.NetlinkRequest, wanted uint16) ([]byte, bool) {
	answers, err := n.execute(unix.NETLINK_GENERIC, request)
	if err != nil || len(answers) != 1 || len(answers[0]) < nl.SizeofGenlmsg {
		return nil, false
	}
	attributes, err := nl.ParseRouteAttr(answers[0][nl.SizeofGenlmsg:])
	if err != nil {
		return nil, false
	}
	for _, a := range attributes {
		if a.Attr.Type == wanted {
			return a.Value, true
		}
	}
	return nil, false
}

// rungs returns the rungs of the ladder that are worth trying. Generic mode needs no driver. Whether a driver receives
// frames in several buffers (NETDEV_XDP_ACT_RX_SG) says nothing about the program: igb does not, and takes one with
// frags all the same (docs/interop.md, the ladder).
func (f xdpFeatures) rungs() (rungs []Rung) {
	const native = netdevActBasic | netdevActRedirect
	if !f.known || f.flags&native == native {
		rungs = append(rungs, bpf.RungNativeFrags, bpf.RungNative)
	}
	return append(rungs, bpf.RungGenericFrags, bpf.RungGeneric)
}

func (f xdpFeatures) zeroCopy() bool { return !f.known || f.flags&netdevActZeroCopy != 0 }

// multiBuffer says what stands against frames of several buffers where Open decides; obstacle is multiBufferObstacle. A
// driver that does not tell most likely has no zero copy: one that has it came to tell with Linux 6.3.
func (f xdpFeatures) multiBuffer(obstacle func(Rung) error) error {
	if err := obstacle(f.rungs()[0]); err != nil {
		return err
	}
	if f.known && f.zeroCopy() {
		return errZeroCopy
	}
	return nil
}
