// Package bpf steers the RoCEv2 frames of one process (UDP port 4791) out of a
// Linux network device into AF_XDP sockets, and leaves all other traffic of the
// device to the kernel, untouched.
//
// The XDP program (xdp_roce.c) redirects a frame if, and only if, its destination
// belongs to the process:
//
//   - unicast: the MAC address of the device, an IP address given to
//     [Program.SetAddresses], and a QPN of the range in [Options] or, if
//     [Options.OwnGSI] is set, QP1;
//   - multicast: a group given to [Program.JoinGroup], the MAC address that
//     belongs to the group, and QPN 0xFFFFFF.
//
// Frames to other ports and addresses, fragments, IPv4 options, IPv6 extension
// headers, VLAN tags and other QPNs go to the kernel. So does a frame of the
// process when the receive queue it came in on has no socket. Each frame is
// counted under the one [Reason] that decided.
//
// The usual order is: [Load], [Program.SetAddresses], bind the AF_XDP sockets,
// [Program.RegisterSocket] for each, then [Attach]. The program is attached by
// bpf_link, so it leaves the device with the last process that holds the link,
// however that process ends.
//
// Loading needs CAP_BPF and CAP_NET_ADMIN, and Linux 5.18. All else works on file
// descriptors alone, attaching included (Linux 5.19, if unprivileged BPF is off):
// a privileged helper can load, attach and hand its [Program.FDs] to an
// unprivileged process, which continues with [FromFDs].
//
// A VLAN tag that is no longer in the frame is invisible to XDP: receive offload
// takes it out, and the network stack of the sender does on veth. Such a frame
// counts as untagged. Where VLANs with the same addresses meet on one NIC, switch
// the offload off (ethtool -K <device> rxvlan off).
package bpf
