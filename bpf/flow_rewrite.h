/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Rewrites a packet field by field, and updates checksums (RFC 1624, eqn. 3). logic::flow::execute does the same in Rust,
 * and is the reference. A packet without the field stays unchanged. Global functions: the verifier checks each once.
 */
#pragma once

#define TCP_CHECKSUM_AT		16
#define UDP_CHECKSUM_AT		6
#define ICMPV6_CHECKSUM_AT	2
#define IPV4_CHECKSUM_AT	10
#define IPV4_TTL_AT		8

/* The checksum after the sum that it covers has changed by `difference`. */
static __always_inline __u16 checksum_plus(__u16 checksum, __u64 difference)
{
	__u64 sum = (__u16)~checksum + difference;

	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return ~sum;
}

/* The change of a sum when 16 or 32 bits are replaced. */
static __always_inline __u64 replaced16(__u16 old, __u16 new)
{
	return (__u64)(__u16)~old + new;
}

static __always_inline __u64 replaced32(__u32 old, __u32 new)
{
	return (__u64)(__u32)~old + new;
}

/*
 * Updates the transport checksum after addresses or ports have changed by `difference`. UDP over IPv4 may have no checksum
 * (0), and a computed 0 is written as 0xffff (RFC 768).
 */
static __always_inline void patch_transport(struct xdp_md *ctx, const struct flow_layout *l, __u64 difference)
{
	bool udp = l->protocol == IPPROTO_UDP;
	__u32 at = udp ? UDP_CHECKSUM_AT : TCP_CHECKSUM_AT;

	if (l->protocol == IPPROTO_ICMPV6 && l->network == 6)
		at = ICMPV6_CHECKSUM_AT;
	else if (!udp && l->protocol != IPPROTO_TCP)
		return;
	__u16 *checksum = l->l4_offset ? flow_header(ctx, l->l4_offset + at, 2) : NULL;
	if (!checksum || (udp && !*checksum))
		return;
	__u16 new = checksum_plus(*checksum, difference);
	*checksum = udp && !new ? 0xffff : new;
}

/* Sets a MAC address. `mac`: in memory order; `at`: 0 destination, 6 source. */
__noinline int set_mac(struct xdp_md *ctx, __u64 mac, __u32 at)
{
	__u16 *field = flow_header(ctx, at ? 6 : 0, 6);

	if (!field)
		return 0;
	*(__u32 *)field = mac;
	field[2] = mac >> 32;
	return 0;
}

/* Sets the source or destination address of IPv4. */
__noinline int set_ipv4_address(struct xdp_md *ctx, struct flow_layout *l, __u32 address, bool destination)
{
	if (!l || l->network != 4)
		return 0;
	struct ipv4 *ip = flow_header(ctx, l->ip_offset, sizeof(*ip));
	if (!ip)
		return 0;
	__u32 old = destination ? ip->destination : ip->source;
	__u64 difference = replaced32(old, address);

	ip->checksum = checksum_plus(ip->checksum, difference);
	if (destination)
		ip->destination = address;
	else
		ip->source = address;
	patch_transport(ctx, l, difference);
	return 0;
}

/* Sets one half of an IPv6 address. `word`: 0..1 source, 2..3 destination. */
__noinline int set_ipv6_half(struct xdp_md *ctx, struct flow_layout *l, __u64 half, __u32 word)
{
	if (!l || l->network != 6)
		return 0;
	__u64 *field = flow_header(ctx, l->ip_offset + 8 + (word & 3) * 8, 8);
	if (!field)
		return 0;
	__u64 old = *field;

	*field = half;
	if (!(l->routed && word & 2))
		patch_transport(ctx, l, replaced32(old, half) + replaced32(old >> 32, half >> 32));
	return 0;
}

/* Sets bits of the ToS byte or traffic class. */
__noinline int set_tos(struct xdp_md *ctx, struct flow_layout *l, __u8 value, __u8 mask)
{
	if (!l)
		return 0;
	__u16 *first = flow_header(ctx, l->ip_offset, IPV4_BYTES);
	if (!first)
		return 0;
	__u16 old = bpf_ntohs(*first), bits = mask, set = value & mask;

	if (l->network == 4) {
		__u16 new = bpf_htons((old & ~bits) | set);
		__u16 *checksum = (void *)first + IPV4_CHECKSUM_AT;

		*checksum = checksum_plus(*checksum, replaced16(*first, new));
		*first = new;
	} else if (l->network == 6) {
		*first = bpf_htons((old & ~(bits << 4)) | set << 4);
	}
	return 0;
}

/* Writes the TTL or hop limit. */
static __always_inline void write_ttl(struct xdp_md *ctx, const struct flow_layout *l, __u8 ttl)
{
	if (l->network == 4) {
		struct ipv4 *ip = flow_header(ctx, l->ip_offset, sizeof(*ip));
		if (!ip)
			return;
		/* TTL is the first byte of its word in the checksum: the low one as loaded. */
		ip->checksum = checksum_plus(ip->checksum, replaced16(ip->ttl, ttl));
		ip->ttl = ttl;
	} else if (l->network == 6) {
		struct ipv6 *ip = flow_header(ctx, l->ip_offset, sizeof(*ip));
		if (ip)
			ip->hop_limit = ttl;
	}
}

__noinline int set_ttl(struct xdp_md *ctx, struct flow_layout *l, __u8 ttl)
{
	if (l)
		write_ttl(ctx, l, ttl);
	return 0;
}

/* Returns 1 if the packet must not go on: its TTL is 1 or less. */
__noinline int decrement_ttl(struct xdp_md *ctx, struct flow_layout *l)
{
	if (!l || (l->network != 4 && l->network != 6))
		return 0;
	__u8 *ttl = flow_header(ctx, l->ip_offset + (l->network == 4 ? IPV4_TTL_AT : 7), 1);
	if (!ttl)
		return 0;
	if (*ttl <= 1)
		return 1;
	write_ttl(ctx, l, *ttl - 1);
	return 0;
}

/* Sets a transport port. `protocol` 0: of TCP or UDP, whichever it is. */
__noinline int set_transport_port(struct xdp_md *ctx, struct flow_layout *l, __u16 port, bool destination, __u8 protocol)
{
	if (!l || !l->l4_offset || (l->protocol != IPPROTO_TCP && l->protocol != IPPROTO_UDP) ||
	    (protocol && protocol != l->protocol))
		return 0;
	__u16 *ports = flow_header(ctx, l->l4_offset, 4);
	if (!ports)
		return 0;
	__u16 old = destination ? ports[1] : ports[0];

	if (destination)
		ports[1] = port;
	else
		ports[0] = port;
	patch_transport(ctx, l, replaced16(old, port));
	return 0;
}

/*
 * Pushes an outermost tag. Its VID and priority are those of the tag below, if there is one (OpenFlow 1.3.5 section
 * 5.12.1). Returns 1 if there is no room.
 */
__noinline int push_tag(struct xdp_md *ctx, struct flow_layout *l, __u16 type, __u16 tci)
{
	if (!l || bpf_xdp_adjust_head(ctx, -TAG_BYTES))
		return 1;
	__u32 *word = flow_header(ctx, 0, ETHERNET_BYTES + TAG_BYTES);
	const __be16 *below = l->tags ? flow_header(ctx, ETHERNET_BYTES + TAG_BYTES, 2) : NULL;
	if (!word)
		return 1;	/* cannot happen: the frame has grown, and none is shorter */
	__be16 *behind = (void *)(word + 3);

	if (below)
		tci = *below & ~bpf_htons(VLAN_TCI_PRESENT);	/* this bit is DEI in a tag */
	word[0] = word[1];
	word[1] = word[2];
	word[2] = word[3];
	behind[0] = bpf_htons(type);
	behind[1] = tci;
	return read_layout(ctx, l);
}

/* Removes the outermost tag, if there is one. */
__noinline int pop_tag(struct xdp_md *ctx, struct flow_layout *l)
{
	__u32 *word = flow_header(ctx, 0, ETHERNET_BYTES + TAG_BYTES);

	if (!l || !l->tags || !word)
		return 0;
	word[3] = word[2];
	word[2] = word[1];
	word[1] = word[0];
	bpf_xdp_adjust_head(ctx, TAG_BYTES);
	return read_layout(ctx, l);
}

/* Sets bits of the outermost tag's control information, network byte order. Returns 1 if there is no tag. */
__noinline int set_tci(struct xdp_md *ctx, struct flow_layout *l, __u16 value, __u16 mask)
{
	__u16 *tci = flow_header(ctx, ETHERNET_BYTES, 2);

	if (!l || !l->tags || !tci)
		return 1;
	*tci = (*tci & ~mask) | (value & mask);
	return 0;
}

#define VXLAN_OUTER_BYTES	(ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + VXLAN_BYTES)
#define UDP_BYTES		8
#define IPV4_DONT_FRAGMENT	0x4000
#define VXLAN_TTL		64

/* The UDP source port of VXLAN around this frame, 49152 to 65535: logic::flow::execute::vxlan_source_port. */
static __always_inline __u16 vxlan_source_port(struct xdp_md *ctx, const struct flow_layout *l)
{
	const struct ipv6 *ip = l->network == 6 ? flow_header(ctx, l->ip_offset, sizeof(*ip)) : NULL;
	__u64 h = mix(l->destination | (__u64)(__u16)l->ports << 48) + K1;

	h = mix(h ^ (l->source | (__u64)(l->ports >> 16) << 48)) + K1;
	h = mix(h ^ l->addresses) + K1;
	h = mix(h ^ (ip ? ip->source[0] : 0)) + K1;
	h = mix(h ^ (ip ? ip->source[1] : 0)) + K1;
	h = mix(h ^ (ip ? ip->destination[0] : 0)) + K1;
	h = mix(h ^ (ip ? ip->destination[1] : 0)) + K1;
	return 0xc000 | (h >> 32 & 0x3fff);
}

/*
 * Puts VXLAN over IPv4 around the frame (RFC 7348 section 5): not to be fragmented (section 4.3), without a UDP checksum,
 * with MAC addresses 0. `addresses`: source in the low half. Returns 1 if there is no room.
 */
__noinline int encap_vxlan(struct xdp_md *ctx, struct flow_layout *l, __u64 addresses, __be32 vni, __be16 port)
{
	__u32 ip_bytes = bpf_xdp_get_buff_len(ctx) + VXLAN_OUTER_BYTES - ETHERNET_BYTES;

	if (!l || ip_bytes > 0xffff)
		return 1;
	read_layout(ctx, l);
	__u16 source_port = vxlan_source_port(ctx, l);
	if (bpf_xdp_adjust_head(ctx, -VXLAN_OUTER_BYTES))
		return 1;
	__u8 *outer = flow_header(ctx, 0, VXLAN_OUTER_BYTES);
	if (!outer)
		return 1;
	struct ipv4 *ip = (void *)outer + ETHERNET_BYTES;
	__be16 *udp = (void *)(ip + 1);
	__be32 *vxlan = (void *)(udp + 4);

	__builtin_memset(outer, 0, ETHERNET_BYTES + IPV4_BYTES);
	*(__be16 *)(outer + 12) = bpf_htons(ETH_P_IP);
	ip->version_ihl = 0x45;
	ip->total_length = bpf_htons(ip_bytes);
	ip->fragment = bpf_htons(IPV4_DONT_FRAGMENT);
	ip->ttl = VXLAN_TTL;
	ip->protocol = IPPROTO_UDP;
	ip->source = addresses;
	ip->destination = addresses >> 32;
	ip->checksum = checksum_plus(0xffff, (addresses & 0xffffffff) + (addresses >> 32) + ip->total_length +
					     bpf_htons(0x4500) + bpf_htons(IPV4_DONT_FRAGMENT) +
					     bpf_htons(VXLAN_TTL << 8 | IPPROTO_UDP));
	udp[0] = bpf_htons(source_port);
	udp[1] = port;
	udp[2] = bpf_htons(ip_bytes - IPV4_BYTES);
	udp[3] = 0;
	vxlan[0] = bpf_htonl(VXLAN_VNI << 24);
	vxlan[1] = vni;
	return read_layout(ctx, l);
}

/* Keeps only the frame inside VXLAN, without the outer frame's padding. Returns 1 if there is none. */
__noinline int decap_vxlan(struct xdp_md *ctx, struct flow_layout *l)
{
	if (!l || l->protocol != IPPROTO_UDP || !l->l4_offset || l->fragment)
		return 1;
	__u32 inner = l->l4_offset + UDP_BYTES + VXLAN_BYTES;
	const __be16 *udp = flow_header(ctx, l->l4_offset, UDP_BYTES + VXLAN_BYTES);
	if (!udp || inner + ETHERNET_BYTES > l->end || udp[1] != bpf_htons(vxlan_port) || !(udp[4] & bpf_htons(VXLAN_VNI << 8)))
		return 1;
	int padding = bpf_xdp_get_buff_len(ctx) - l->end;

	if ((padding && bpf_xdp_adjust_tail(ctx, -padding)) || bpf_xdp_adjust_head(ctx, inner))
		return 1;
	return read_layout(ctx, l);
}
