/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Firewall rules. User space proves which packets they cannot affect (logic::firewall). The proofs leave out packets that
 * conntrack, NAT or a match treats specially. These go to the kernel: fragments (conntrack reassembles them), ICMP errors
 * (NAT translates the inner packet), and truncated headers (some matches drop the packet).
 */
#pragma once

#define TCP_BYTES	20
#define UDP_BYTES	8
#define ICMPV6_FIRST_QUERY 128

/* Is this the whole header of a protocol that rules and conntrack do not treat specially? */
static __always_inline bool is_plain(const __u8 *header, const void *end, __u32 bytes, __u8 protocol)
{
	__u32 length;

	if (bytes < UDP_BYTES || (const void *)(header + UDP_BYTES) > end)
		return false;
	switch (protocol) {
	case IPPROTO_TCP:
		if ((const void *)(header + TCP_BYTES) > end)
			return false;
		length = header[12] >> 4 << 2;
		return length >= TCP_BYTES && length <= bytes;
	case IPPROTO_ICMP:
		return *header < 32 && !(ICMP_ERRORS >> *header & 1);
	case IPPROTO_ICMPV6:
		return *header >= ICMPV6_FIRST_QUERY;
	case IPPROTO_UDP:
	case IPPROTO_GRE:
	case IPPROTO_ESP:
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
		return true;
	default:
		return false;
	}
}

static __always_inline bool in_range(const struct firewall_range *r, __u64 hi, __u64 lo)
{
	return (hi > r->low_hi || (hi == r->low_hi && lo >= r->low_lo)) &&
	       (hi < r->high_hi || (hi == r->high_hi && lo <= r->high_lo));
}

/* Is one of these the address of an exception? `version`: 0 or 1. */
static __always_inline bool
is_excepted(const struct firewall *f, __u32 version, const struct address *source, const struct address *destination)
{
	__u64 used = *(volatile const __u64 *)&f->ranges_used[version & 1];

	for (int i = 0; i < FIREWALL_EXCEPTIONS; i++) {
		const struct firewall_range *r = &f->range[version & 1][i];

		if (used >> i & 1 &&
		    (in_range(r, source->hi, source->lo) || in_range(r, destination->hi, destination->lo)))
			return true;
	}
	return false;
}

static __always_inline __u32 group_of(__u32 interface)
{
	const __u64 *group = ROW(interface_groups, interface);

	return group ? *(volatile const __u64 *)group & (FIREWALL_GROUPS - 1) : 0;
}

/*
 * Can no rule affect this packet? `interfaces`: where it comes in (bits 0..15) and where it leaves. `offset`: of its IP
 * header, and bit 31 for IPv6. A separate function: packets of routers without rules do not pay for it.
 */
__noinline int rules_cannot_affect(struct xdp_md *ctx, __u32 router, __u32 interfaces, __u32 offset, __u32 explain)
{
	const struct firewall *f = ROW(firewalls, router);
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 from, to, pair, version = offset >> 31;
	struct address source = {}, destination = {};
	bool plain;

	if (!f)
		return 0;
	__u64 changes = *(volatile const __u64 *)&f->changes;

	from = group_of(interfaces & 0xffff);
	to = group_of(interfaces >> 16);
	pair = *(volatile const __u64 *)&f->pairs[version & 1][from] >> (4 * to) & 15;
	if (explain)
		record_step(TRACE_RULES, from | to << 8, pair);
	if (pair == PAIR_LINUX)
		return 0;
	if (version) {
		const struct ipv6 *ip = data + (offset & 0xff);

		if ((void *)(ip + 1) > end)
			return 0;
		plain = is_plain((void *)(ip + 1), end, bpf_ntohs(ip->payload_length), ip->next_header);
		source.hi = bpf_be64_to_cpu(ip->source[0]);
		source.lo = bpf_be64_to_cpu(ip->source[1]);
		destination.hi = bpf_be64_to_cpu(ip->destination[0]);
		destination.lo = bpf_be64_to_cpu(ip->destination[1]);
	} else {
		const struct ipv4 *ip = data + (offset & 0xff);

		if ((void *)(ip + 1) > end)
			return 0;
		plain = !(ip->fragment & bpf_htons(IPV4_FRAGMENT)) &&
			is_plain((void *)(ip + 1), end, bpf_ntohs(ip->total_length) - IPV4_BYTES, ip->protocol);
		source.lo = bpf_ntohl(ip->source);
		destination.lo = bpf_ntohl(ip->destination);
	}
	if (!plain || (pair != PAIR_FREE && is_excepted(f, version, &source, &destination)))
		return 0;
	return !(changes & 1) && *(volatile const __u64 *)&f->changes == changes;
}

/* `version`: 0 for IPv4, 1 for IPv6. */
static __always_inline bool rules_may_affect(const struct packet *p, const struct router *router, __u32 version)
{
	__u32 flags = *(volatile const __u32 *)&router->flags;

	return flags & (version ? ROUTER_RULES_IPV6 : ROUTER_RULES_IPV4) &&
	       !rules_cannot_affect(p->ctx, p->router, p->interface | (__u32)p->out->interface << 16,
				    p->ip_offset | version << 31, p->explain);
}
