// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore

/*
 * Steers RoCEv2 frames of one process into its AF_XDP sockets and leaves every
 * other frame to the kernel.
 *
 * Life of a frame:
 *
 *   1. The driver (native mode) or the network stack (generic mode) runs
 *      xdp_roce() for each frame received.
 *   2. parse() walks Ethernet, IPv4 or IPv6, UDP and BTH and notes the
 *      destination of the frame. A frame that is not RoCEv2 ends here.
 *   3. choose() compares the destination with what this process owns: the MAC
 *      address and the QPNs in `configuration`, the IP addresses in `addresses`,
 *      the multicast groups in `groups`.
 *   4. A frame of this process goes to the socket in the slot of its receive
 *      queue in `sockets`. If the slot is empty, the frame goes to the kernel.
 *   5. count() adds the frame to the counter of the one reason that decided.
 *
 * The only verdicts are XDP_REDIRECT and XDP_PASS, and no byte is changed: a
 * process that is absent, starting or dead leaves a normal network device behind.
 *
 * Of a frame in several buffers the first holds the headers, since drivers fill
 * buffers from the start of the frame. Headers beyond it count as truncated.
 *
 * A VLAN tag that is no longer in the frame cannot be seen from here: receive
 * offload takes it out (ethtool -K <device> rxvlan off), and so does the network
 * stack of the sender on veth. Such a frame counts as untagged.
 *
 * Headers are read as bytes and as words in network order, never as bit fields,
 * so that the same source is right for both byte orders. This is also why the
 * IP and UDP headers of linux/ip.h, linux/ipv6.h and linux/udp.h are not used:
 * they lay out bit fields in the byte order of the machine that compiles.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * Why a frame was redirected or passed. bpf2go hands this enum to Go.
 *
 * The order carries meaning: from REASON_PASS_IPV4_OPTIONS on stand the reasons
 * of frames that are known to be for UDP port 4791 and go to the kernel anyway.
 */
enum reason {
	REASON_REDIRECTED,
	REASON_PASS_TRUNCATED,           /* ends within the Ethernet, IP or UDP header */
	REASON_PASS_VLAN,                /* 802.1Q or 802.1ad tag */
	REASON_PASS_NOT_IP,              /* by EtherType, or by the version in the header */
	REASON_PASS_NOT_UDP,
	REASON_PASS_IPV4_LATER_FRAGMENT, /* without UDP header: port unknown */
	REASON_PASS_IPV6_EXTENSION,      /* headers before UDP: port not looked for */
	REASON_PASS_OTHER_PORT,
	REASON_PASS_IPV4_OPTIONS,
	REASON_PASS_IPV4_FRAGMENT,       /* the first one, which shows the port */
	REASON_PASS_SHORT_BTH,           /* no room for a BTH */
	REASON_PASS_FOREIGN_MAC,
	REASON_PASS_FOREIGN_ADDRESS,
	REASON_PASS_FOREIGN_MULTICAST,
	REASON_PASS_FOREIGN_QPN,
	REASON_PASS_NO_SOCKET,           /* ours, but its receive queue has no socket */
	REASON_COUNT,
};

/* Aligned like every header in a frame, so that it can be compared by words. */
struct mac {
	__u8 octet[6];
} __attribute__((aligned(2)));

/* An IPv6 address as it is, an IPv4 address as ::ffff:a.b.c.d: the form of a GID. */
struct address {
	__be32 word[4];
};

/*
 * User space writes the whole struct by one map update, which the kernel does
 * by copying into the live value (kernel/bpf/arraymap.c: array_map_update_elem),
 * so a program that runs meanwhile on another CPU may see a part of the old
 * struct and a part of the new. That does no harm: `mac` says whether a frame is
 * for this device, and a mixture of two MAC addresses equals neither, so the frame
 * goes to the kernel, as does any frame that still carries the old address.
 * `qpn_base` with `qpn_count` says whether a QPN is ours, and a frame that a mixture
 * of two ranges lets through by mistake finds no queue pair behind the socket.
 */
struct configuration {
	struct mac mac;
	__u8 own_gsi;
	__u8 reserved;
	__u32 qpn_base; /* QPNs in [qpn_base, qpn_base + qpn_count) are ours */
	__u32 qpn_count;
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* The loader sets the number of slots to the number of receive queues. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Twice the longest list: the loader adds new addresses before it takes out old ones. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, struct address);
	__type(value, __u8);
} addresses SEC(".maps");

/* A joined group and the MAC address to which its frames are sent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, struct address);
	__type(value, struct mac);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, __u32);
	__type(value, struct configuration);
} configuration SEC(".maps");

/* One element for each reason. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASON_COUNT);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

#define ETHERTYPE_IPV4       0x0800
#define ETHERTYPE_IPV6       0x86DD
#define ETHERTYPE_VLAN       0x8100 /* 802.1Q */
#define ETHERTYPE_VLAN_OUTER 0x88A8 /* 802.1ad */

#define PROTOCOL_UDP         17
#define PORT_ROCE            4791

#define IPV4_MORE_FRAGMENTS  0x2000
#define IPV4_OFFSET_MASK     0x1FFF

#define QPN_GSI              1
#define QPN_MULTICAST        0xFFFFFF

struct ethernet_header {
	struct mac destination;
	struct mac source;
	__be16 ethertype;
};

struct ipv4_header {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_length;
	__be16 identification;
	__be16 flags_offset;
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__be32 source;
	__be32 destination;
};

struct ipv6_header {
	__u8 version_class;
	__u8 class_flow[3];
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	struct address source;
	struct address destination;
};

struct udp_header {
	__be16 source_port;
	__be16 destination_port;
	__be16 length;
	__be16 checksum;
};

struct bth {
	__u8 opcode;
	__u8 flags;
	__be16 pkey;
	__u8 ecn;
	__u8 destination_qpn[3];
	__u8 ack_request;
	__u8 psn[3];
};

/* What the headers say about the destination. */
struct frame {
	struct xdp_md *ctx;
	const void *end; /* of the first buffer */
	const struct mac *mac;
	struct address address;
	__u32 qpn;
	int multicast;
	/* REASON_REDIRECTED, or why the datagram is passed if its port is ours. */
	enum reason at_our_port;
};

static __always_inline int is_ipv6_extension(__u8 next_header)
{
	switch (next_header) {
	case 0:   /* hop-by-hop options */
	case 43:  /* routing */
	case 44:  /* fragment */
	case 51:  /* authentication */
	case 60:  /* destination options */
	case 135: /* mobility */
		return 1;
	}
	return 0;
}

/*
 * The parse functions return REASON_REDIRECTED as long as nothing speaks
 * against it, and the first reason to pass otherwise.
 */
static __always_inline enum reason parse_bth(struct frame *frame, const void *header)
{
	const struct bth *bth = header;

	if ((const void *)(bth + 1) > frame->end)
		return REASON_PASS_SHORT_BTH;
	frame->qpn = bth->destination_qpn[0] << 16 |
		     bth->destination_qpn[1] << 8 |
		     bth->destination_qpn[2];
	return REASON_REDIRECTED;
}

static __always_inline enum reason parse_udp(struct frame *frame, const void *header)
{
	const struct udp_header *udp;

	/*
	 * Or else clang shares the loads of the IPv4 and the IPv6 path and adds the
	 * offset that differs: see parse_udp_after_options().
	 */
	barrier_var(header);
	udp = header;
	if ((const void *)(udp + 1) > frame->end)
		return REASON_PASS_TRUNCATED;
	if (udp->destination_port != bpf_htons(PORT_ROCE))
		return REASON_PASS_OTHER_PORT;
	if (frame->at_our_port != REASON_REDIRECTED)
		return frame->at_our_port;
	/* Or else the padding of a frame of 60 bytes would be read as a BTH. */
	if (bpf_ntohs(udp->length) < sizeof(struct udp_header) + sizeof(struct bth))
		return REASON_PASS_SHORT_BTH;
	return parse_bth(frame, udp + 1);
}

/*
 * A header at an offset that is not a constant is copied, not pointed at: to add
 * a variable to a packet pointer takes CAP_PERFMON (kernel/bpf/verifier.c:
 * sanitize_ptr_alu).
 */
static __always_inline enum reason parse_udp_after_options(struct frame *frame, __u32 offset)
{
	struct udp_header udp;

	if (bpf_xdp_load_bytes(frame->ctx, offset, &udp, sizeof(udp)))
		return REASON_PASS_TRUNCATED;
	if (udp.destination_port != bpf_htons(PORT_ROCE))
		return REASON_PASS_OTHER_PORT;
	return frame->at_our_port;
}

static __always_inline enum reason parse_ipv4(struct frame *frame, const void *header)
{
	const struct ipv4_header *ipv4 = header;
	__u32 header_length;
	__u16 flags_offset;

	if ((const void *)(ipv4 + 1) > frame->end)
		return REASON_PASS_TRUNCATED;
	header_length = (ipv4->version_ihl & 0x0F) * 4;
	if (ipv4->version_ihl >> 4 != 4 || header_length < sizeof(*ipv4))
		return REASON_PASS_NOT_IP;
	if (ipv4->protocol != PROTOCOL_UDP)
		return REASON_PASS_NOT_UDP;

	flags_offset = bpf_ntohs(ipv4->flags_offset);
	if (flags_offset & IPV4_OFFSET_MASK)
		return REASON_PASS_IPV4_LATER_FRAGMENT;
	if (flags_offset & IPV4_MORE_FRAGMENTS)
		frame->at_our_port = REASON_PASS_IPV4_FRAGMENT;
	else if (header_length > sizeof(*ipv4))
		frame->at_our_port = REASON_PASS_IPV4_OPTIONS;
	if (header_length > sizeof(*ipv4))
		return parse_udp_after_options(frame, sizeof(struct ethernet_header) + header_length);

	frame->address.word[2] = bpf_htonl(0xFFFF);
	frame->address.word[3] = ipv4->destination;
	frame->multicast = (ipv4->destination & bpf_htonl(0xF0000000)) == bpf_htonl(0xE0000000);
	return parse_udp(frame, ipv4 + 1);
}

static __always_inline enum reason parse_ipv6(struct frame *frame, const void *header)
{
	const struct ipv6_header *ipv6 = header;

	if ((const void *)(ipv6 + 1) > frame->end)
		return REASON_PASS_TRUNCATED;
	if (ipv6->version_class >> 4 != 6)
		return REASON_PASS_NOT_IP;
	if (is_ipv6_extension(ipv6->next_header))
		return REASON_PASS_IPV6_EXTENSION;
	if (ipv6->next_header != PROTOCOL_UDP)
		return REASON_PASS_NOT_UDP;

	frame->address = ipv6->destination;
	frame->multicast = (ipv6->destination.word[0] & bpf_htonl(0xFF000000)) == bpf_htonl(0xFF000000);
	return parse_udp(frame, ipv6 + 1);
}

static __always_inline enum reason parse(struct frame *frame, const void *header)
{
	const struct ethernet_header *ethernet = header;

	if ((const void *)(ethernet + 1) > frame->end)
		return REASON_PASS_TRUNCATED;
	frame->mac = &ethernet->destination;
	switch (bpf_ntohs(ethernet->ethertype)) {
	case ETHERTYPE_IPV4:
		return parse_ipv4(frame, ethernet + 1);
	case ETHERTYPE_IPV6:
		return parse_ipv6(frame, ethernet + 1);
	case ETHERTYPE_VLAN:
	case ETHERTYPE_VLAN_OUTER:
		return REASON_PASS_VLAN;
	}
	return REASON_PASS_NOT_IP;
}

static __always_inline int same_mac(const struct mac *a, const struct mac *b)
{
	const __u16 *x = (const __u16 *)a, *y = (const __u16 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

static __always_inline enum reason choose_multicast(const struct frame *frame)
{
	const struct mac *mac = bpf_map_lookup_elem(&groups, &frame->address);

	if (!mac)
		return REASON_PASS_FOREIGN_MULTICAST;
	if (!same_mac(frame->mac, mac))
		return REASON_PASS_FOREIGN_MAC;
	if (frame->qpn != QPN_MULTICAST)
		return REASON_PASS_FOREIGN_QPN;
	return REASON_REDIRECTED;
}

static __always_inline enum reason choose_unicast(const struct frame *frame)
{
	const struct configuration *own;
	__u32 zero = 0;

	own = bpf_map_lookup_elem(&configuration, &zero);
	if (!own || !same_mac(frame->mac, &own->mac)) /* never NULL, but the verifier asks */
		return REASON_PASS_FOREIGN_MAC;
	if (!bpf_map_lookup_elem(&addresses, &frame->address))
		return REASON_PASS_FOREIGN_ADDRESS;
	if (frame->qpn == QPN_GSI)
		return own->own_gsi ? REASON_REDIRECTED : REASON_PASS_FOREIGN_QPN;
	if (frame->qpn - own->qpn_base >= own->qpn_count) /* below the base wraps to a large number */
		return REASON_PASS_FOREIGN_QPN;
	return REASON_REDIRECTED;
}

static __always_inline enum reason choose(const struct frame *frame)
{
	return frame->multicast ? choose_multicast(frame) : choose_unicast(frame);
}

/* Not inlined, so that the type of its first parameter stays in the BTF. */
static __noinline void count(enum reason reason, __u64 bytes)
{
	__u32 index = reason;
	struct counter *counter = bpf_map_lookup_elem(&counters, &index);

	if (!counter)
		return;
	counter->packets++;
	counter->bytes += bytes;
}

/*
 * The loader loads this program twice: as it is, and without the flag for frames
 * in several buffers (BPF_F_XDP_HAS_FRAGS) for devices that refuse it.
 */
SEC("xdp.frags")
int xdp_roce(struct xdp_md *ctx)
{
	struct frame frame = { .ctx = ctx, .end = (const void *)(long)ctx->data_end };
	enum reason reason = parse(&frame, (const void *)(long)ctx->data);
	int action = XDP_PASS;

	if (reason == REASON_REDIRECTED)
		reason = choose(&frame);
	if (reason == REASON_REDIRECTED) {
		action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
		if (action != XDP_REDIRECT)
			reason = REASON_PASS_NO_SOCKET;
	}
	/* Not data_end - data: to subtract pointers takes CAP_PERFMON. */
	count(reason, bpf_xdp_get_buff_len(ctx));
	return action;
}

char _license[] SEC("license") = "Dual BSD/GPL";
