/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Reads a packet's fields into a key, and finds its headers. logic::flow::packet does the same in Rust, and is the reference.
 * logic::flow::field says where each field is. A field that a packet lacks, or does not have whole, is 0. Words are in
 * memory order. The machine is little-endian, so the first field of a word is in its low bits.
 */
#pragma once

const volatile __u16 vxlan_port = 4789;	/* UDP destination port of packets with a frame inside (V1) */

#define VLAN_TCI_PRESENT	0x1000
#define MIN_ETHER_TYPE		0x0600
#define ETHERNET_NONE		0x05ff	/* OpenFlow's type of an 802.3 frame without one */
#define SNAP_BYTES		8
#define SNAP_ETHERNET		0x0003aaaaU	/* AA AA 03 00: the first four bytes of six */
#define IPV4_MORE_OR_OFFSET	0x3fff
#define IPV4_MORE		0x2000
#define IPV6_EXTENSIONS		8	/* the most headers that are skipped */
#define NEXTHDR_ROUTING		43
#define NEXTHDR_FRAGMENT	44
#define NEXTHDR_OPTIONS		60
#define ARP_HEADER		0x040600080100ULL	/* Ethernet, IPv4, 6 and 4 bytes (RFC 826), as loaded */

/* A header at an offset that the verifier can bound. */
static __always_inline void *flow_header(struct xdp_md *ctx, __u32 offset, __u32 bytes)
{
	__u64 at = offset;

	barrier_var(at);	/* else the compiler omits a mask that does nothing, but that the verifier needs */
	void *header = (void *)(long)ctx->data + (at & FLOW_OFFSET_MASK);

	return header + bytes <= (void *)(long)ctx->data_end ? header : NULL;
}

struct arp {			/* of Ethernet and IPv4 (RFC 826) */
	__be16 hardware, protocol;
	__u8 hardware_bytes, protocol_bytes;
	__be16 operation;
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
};

static __always_inline __u64 read_mac(const void *mac)
{
	return *(const __u32 *)mac | (__u64) * (const __u16 *)(mac + 4) << 32;
}

/* Finds the transport header, if all of it is there (RFC 9293, 768, 9260, 792, 4443), and the ports that rules see. */
static __always_inline void read_transport(struct xdp_md *ctx, struct flow_layout *l, __u32 offset)
{
	bool icmp = l->protocol == (l->network == 6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
	__u32 bytes = l->protocol == IPPROTO_TCP ? 20 : l->protocol == IPPROTO_SCTP ? 12 : 8;

	if (!icmp && l->protocol != IPPROTO_TCP && l->protocol != IPPROTO_UDP && l->protocol != IPPROTO_SCTP)
		return;
	if (offset + bytes > l->end)
		return;
	const __u32 *ports = offset <= FLOW_FARTHEST ? flow_header(ctx, offset, 20) : NULL;
	if (!ports && offset <= FLOW_FARTHEST && bytes < 20)
		ports = flow_header(ctx, offset, bytes == 12 ? 12 : 8);
	if (!ports) {
		l->unseen = 1;
		return;
	}
	l->l4_offset = offset;
	/*
	 * Rules see no ports in a fragment, not even in the first, so that all fragments meet the same rules. Actions do write
	 * the ports of the first one.
	 */
	if (l->fragment)
		return;
	l->ports = icmp ? (*ports & 0xff) << 8 | (*ports & 0xff00) << 16 : *ports;
}

static __always_inline void read_ipv4(struct xdp_md *ctx, struct flow_layout *l)
{
	const struct ipv4 *ip = flow_header(ctx, l->ip_offset, sizeof(*ip));

	if (!ip || ip->version_ihl >> 4 != 4)
		return;
	__u32 header_bytes = (ip->version_ihl & 15) * 4, fragment = bpf_ntohs(ip->fragment) & IPV4_MORE_OR_OFFSET;
	if (header_bytes < sizeof(*ip) || l->ip_offset + header_bytes > l->end)
		return;
	__u32 end = l->ip_offset + bpf_ntohs(ip->total_length);

	l->network = 4;
	l->protocol = ip->protocol;
	l->tos = ip->tos;
	l->addresses = (__u64)ip->destination << 32 | ip->source;
	if (end < l->end)
		l->end = end;
	l->fragment = fragment != 0;
	if (!fragment || fragment == IPV4_MORE)
		read_transport(ctx, l, l->ip_offset + header_bytes);
}

/*
 * Goes over the extension headers to the protocol and its header (RFC 8200 section 4). If it cannot get to the end, the
 * protocol is the number of the header where it stopped. A global function, because it has a loop.
 */
__noinline int read_ipv6(struct xdp_md *ctx, struct flow_layout *l)
{
	if (!l)
		return 0;
	const struct ipv6 *ip = flow_header(ctx, l->ip_offset, sizeof(*ip));
	if (!ip || ip->version_class >> 4 != 6)
		return 0;
	__u32 offset = l->ip_offset + IPV6_BYTES, end = offset + bpf_ntohs(ip->payload_length);

	l->network = 6;
	l->protocol = ip->next_header;
	l->tos = ip->version_class << 4 | ip->class_label[0] >> 4;
	if (end < l->end)
		l->end = end;
	for (int i = 0; i < IPV6_EXTENSIONS; i++) {
		__u8 kind = l->protocol;

		if (kind != NEXTHDR_HOP && kind != NEXTHDR_ROUTING && kind != NEXTHDR_OPTIONS && kind != NEXTHDR_FRAGMENT)
			break;
		if (offset + 4 > l->end)
			return 0;
		const __u8 *header = offset <= FLOW_FARTHEST ? flow_header(ctx, offset, 4) : NULL;
		if (!header) {
			l->unseen = 1;
			return 0;
		}
		__u32 bytes = kind == NEXTHDR_FRAGMENT ? 8 : 8 + header[1] * 8;
		if (offset + bytes > l->end)
			return 0;
		if (kind == NEXTHDR_ROUTING && header[3])
			l->routed = 1;
		/* A packet with offset 0 and no more fragments is not a fragment (RFC 6946). */
		__u16 fragment = kind == NEXTHDR_FRAGMENT ? bpf_ntohs(*(const __be16 *)(header + 2)) & 0xfff9 : 0;
		l->protocol = header[0];
		offset += bytes;
		l->fragment |= fragment != 0;
		if (fragment > 1)
			return 0;	/* not the first: no transport header */
	}
	read_transport(ctx, l, offset);
	return 0;
}

static __always_inline void read_arp(struct xdp_md *ctx, struct flow_layout *l)
{
	const struct arp *arp = flow_header(ctx, l->ip_offset, sizeof(*arp));

	if (!arp || *(const __u64 *)arp << 16 != ARP_HEADER << 16)
		return;
	l->network = 1;
	l->ports = arp->operation;
	l->addresses = (__u64) * (const __u32 *)arp->target << 32 | *(const __u32 *)arp->sender;
}

/* An 802.3 frame has the type of its SNAP header if the organisation is 0, else none. */
static __always_inline void read_length(struct xdp_md *ctx, struct flow_layout *l)
{
	const __u8 *snap = flow_header(ctx, l->ip_offset, SNAP_BYTES);
	__u16 type = snap ? bpf_ntohs(*(const __be16 *)(snap + 6)) : 0;

	l->ether_type = ETHERNET_NONE;
	if (!snap || *(const __u32 *)snap != SNAP_ETHERNET || *(const __u16 *)(snap + 4) || type < MIN_ETHER_TYPE)
		return;
	l->ether_type = type;
	l->ip_offset += SNAP_BYTES;
}

/* Reads what follows an Ethernet header and its tags. ip_offset, ether_type and end must be set. */
static __always_inline void read_network(struct xdp_md *ctx, struct flow_layout *l)
{
	if (l->ether_type < MIN_ETHER_TYPE)
		read_length(ctx, l);
	if (l->ether_type == ETH_P_IP)
		read_ipv4(ctx, l);
	else if (l->ether_type == ETH_P_IPV6)
		read_ipv6(ctx, l);
	else if (l->ether_type == ETH_P_ARP)
		read_arp(ctx, l);
}

/*
 * Reads the frame at `at`: Ethernet, up to two tags, and what follows. l->end must be set. Returns false if there is no whole
 * Ethernet header.
 */
static __always_inline bool read_frame(struct xdp_md *ctx, struct flow_layout *l, __u32 at)
{
	const void *ethernet = at + ETHERNET_BYTES <= l->end ? flow_header(ctx, at, ETHERNET_BYTES) : NULL;

	if (!ethernet)
		return false;
	l->destination = read_mac(ethernet);
	l->source = read_mac(ethernet + 6);
	l->ether_type = bpf_ntohs(*(const __be16 *)(ethernet + 12));
	at += ETHERNET_BYTES;
	for (int i = 0; i < 2; i++) {
		const __be16 *tag = is_tag(l->ether_type) && at + TAG_BYTES <= l->end ? flow_header(ctx, at, TAG_BYTES) : NULL;

		if (!tag)
			break;
		if (!i)
			l->tci = tag[0] | bpf_htons(VLAN_TCI_PRESENT);
		l->ether_type = bpf_ntohs(tag[1]);
		l->tags++;
		at += TAG_BYTES;
	}
	l->ip_offset = at;
	read_network(ctx, l);
	return true;
}

/* Reads the layout of the frame as it is now. */
__noinline int read_layout(struct xdp_md *ctx, struct flow_layout *l)
{
	if (!l)
		return 0;
	*l = (struct flow_layout){ .end = bpf_xdp_get_buff_len(ctx) };
	read_frame(ctx, l, 0);
	return 0;
}

/* Reads the front words and the layout. */
static __always_inline bool read_front(const struct packet *p, struct flow_scratch *s)
{
	struct flow_layout *l = &s->layout;

	*l = (struct flow_layout){ .end = p->frame_bytes };
	if (!read_frame(p->ctx, l, 0))
		return false;
	if (p->multi_buffer && !l->l4_offset)
		l->unseen = 1;		/* the transport header may be in another buffer */
	s->in_port = p->port;
	s->multi_buffer = p->multi_buffer;
	s->key.word[0] = bpf_htons(p->port + 1) | (__u64)bpf_htons(l->ether_type) << 16 | (__u64)l->tci << 32 |
			 (__u64)l->protocol << 48 | (__u64)l->tos << 56;
	s->key.word[1] = l->destination | (__u64)(__u16)l->ports << 48;
	s->key.word[2] = l->source | (__u64)(l->ports >> 16) << 48;
	s->key.word[3] = l->addresses;
	return true;
}

#define VXLAN_BYTES	8
#define VXLAN_VNI	0x08	/* the VNI is valid (RFC 7348 section 5) */
#define ND_SOLICITATION	135
#define ND_ADVERTISEMENT 136
#define ND_BYTES	24	/* ICMPv6 header, flags and target (RFC 4861 section 4.3) */
#define ND_OPTIONS	8	/* the most options that are searched for a link-layer address */
#define ND_SOURCE_MAC	1
#define ND_TARGET_MAC	2

enum {				/* places in flow_key.word */
	WORD_METADATA = 4,
	WORD_VNI,		/* VNI, flow label */
	WORD_IPV6,		/* source, destination: four words */
	WORD_ND_TARGET = 10,
	WORD_SOURCE_MAC = 12,	/* ARP's and ND's */
	WORD_TARGET_MAC,
	WORD_INNER,		/* as the front words, without a port */
	WORD_TUNNEL_ID = 18,	/* 0 until a rule sets it */
};

static __always_inline void read_nd(struct xdp_md *ctx, struct flow_scratch *s)
{
	__u32 offset = s->layout.l4_offset;
	const __u8 *icmp = offset && !s->layout.fragment ? flow_header(ctx, offset, 4) : NULL;

	if (!icmp || (icmp[0] != ND_SOLICITATION && icmp[0] != ND_ADVERTISEMENT))
		return;
	__u8 wanted = icmp[0] == ND_SOLICITATION ? ND_SOURCE_MAC : ND_TARGET_MAC;

	icmp = offset + ND_BYTES <= s->layout.end ? flow_header(ctx, offset, ND_BYTES) : NULL;
	if (!icmp)
		return;
	s->key.word[WORD_ND_TARGET] = *(const __u64 *)(icmp + 8);
	s->key.word[WORD_ND_TARGET + 1] = *(const __u64 *)(icmp + 16);
	offset += ND_BYTES;
	for (int i = 0; i < ND_OPTIONS; i++) {
		if (offset + 8 > s->layout.end)
			return;
		const __u8 *option = offset <= FLOW_FARTHEST ? flow_header(ctx, offset, 8) : NULL;
		if (!option) {
			s->layout.unseen = 1;
			return;
		}
		if (!option[1])
			return;
		if (option[0] == wanted) {
			s->key.word[wanted == ND_SOURCE_MAC ? WORD_SOURCE_MAC : WORD_TARGET_MAC] = read_mac(option + 2);
			return;
		}
		offset += option[1] * 8;
	}
}

/* Reads the frame inside VXLAN. */
static __always_inline void read_inner(struct xdp_md *ctx, struct flow_scratch *s)
{
	struct flow_layout l = { .end = s->layout.end };
	__u32 at = s->layout.l4_offset + 8;
	const __u8 *vxlan;

	if (s->layout.protocol != IPPROTO_UDP || !s->layout.l4_offset || s->layout.fragment ||
	    s->layout.ports >> 16 != bpf_htons(vxlan_port) || at + VXLAN_BYTES > l.end)
		return;
	vxlan = flow_header(ctx, at, VXLAN_BYTES);
	if (!vxlan || !(vxlan[0] & VXLAN_VNI))
		return;
	s->key.word[WORD_VNI] |= bpf_htonl(bpf_ntohl(*(const __be32 *)(vxlan + 4)) >> 8);
	if (!read_frame(ctx, &l, at + VXLAN_BYTES))
		return;
	s->key.word[WORD_INNER] = bpf_htons(l.ether_type) | (__u64)l.tci << 16 | (__u64)l.protocol << 32 | (__u64)l.tos << 40;
	s->key.word[WORD_INNER + 1] = l.destination;
	s->key.word[WORD_INNER + 2] = l.source;
	/* An inner frame has no fields of ARP and ICMPv6. */
	if (l.network == 1 || (l.network == 6 && l.protocol == IPPROTO_ICMPV6))
		return;
	s->key.word[WORD_INNER + 1] |= (__u64)(__u16)l.ports << 48;
	s->key.word[WORD_INNER + 2] |= (__u64)(l.ports >> 16) << 48;
	s->key.word[WORD_INNER + 3] = l.addresses;
}

/* Reads the rest words. */
__noinline int read_rest(struct xdp_md *ctx, struct flow_scratch *s)
{
	if (!s)
		return 0;
	for (int i = FLOW_FRONT; i < FLOW_WORDS; i++)
		s->key.word[i] = 0;
	if (s->layout.network == 6) {
		const struct ipv6 *ip = flow_header(ctx, s->layout.ip_offset, sizeof(*ip));

		if (!ip)
			return 0;
		s->key.word[WORD_VNI] = (__u64)(*(const __u32 *)ip & bpf_htonl(0xfffff)) << 32;
		s->key.word[WORD_IPV6] = ip->source[0];
		s->key.word[WORD_IPV6 + 1] = ip->source[1];
		s->key.word[WORD_IPV6 + 2] = ip->destination[0];
		s->key.word[WORD_IPV6 + 3] = ip->destination[1];
		if (s->layout.protocol == IPPROTO_ICMPV6)
			read_nd(ctx, s);
	} else if (s->layout.network == 1) {
		const struct arp *arp = flow_header(ctx, s->layout.ip_offset, sizeof(*arp));

		if (arp) {
			s->key.word[WORD_SOURCE_MAC] = read_mac(arp->sender_mac);
			s->key.word[WORD_TARGET_MAC] = read_mac(arp->target_mac);
		}
	}
	read_inner(ctx, s);
	return 0;
}
