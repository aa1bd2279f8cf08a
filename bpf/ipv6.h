/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* IPv6: ip6_rcv_core, ip6_route_input and ip6_forward of Linux, for the packets that need nothing special (RFC 8200). */
#pragma once

#define IPV6_BYTES	40
#define NEXTHDR_HOP	0	/* hop-by-hop options: the one header a router must look at; jumbograms have it */
#define IPPROTO_ICMPV6	58

struct ipv6 {
	__u8 version_class;
	__u8 class_label[3];
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__be64 source[2];
	__be64 destination[2];
};

/* Sources ip6_rcv_core and ip6_forward refuse: unspecified, loopback, multicast, link-local. */
static __always_inline bool bad_source6(__u64 hi, __u64 lo)
{
	return hi >> 56 == 0xff || hi >> 54 == 0xfe80 >> 6 || (!hi && lo <= 1);
}

/* fib_multipath_hash_policy 0: addresses, flow label, protocol; 1: the 5-tuple. */
static __always_inline __u32 flow_hash6(const struct ipv6 *ip, const void *end, bool l4)
{
	__u64 rest = ip->next_header;

	if (!l4) {
		rest |= (__u64)(ip->class_label[0] & 0x0f) << 24 | ip->class_label[1] << 16 | ip->class_label[2] << 8;
	} else if (ip->next_header == IPPROTO_TCP || ip->next_header == IPPROTO_UDP) {
		const __u32 *ports = (const void *)(ip + 1);

		if ((const void *)(ports + 1) <= end)
			rest |= (__u64)*ports << 8;
	}
	__u64 folded = (ip->source[0] ^ ip->source[1] * K1) * K2 ^ (ip->destination[0] ^ ip->destination[1] * K2) * K1;
	return mix(folded ^ rest * K1) >> 32;
}

static __always_inline enum reason check_ipv6(struct packet *p, const struct ipv6 *ip)
{
	if (ip->version_class >> 4 != 6)
		return REASON_IPV6_BAD_HEADER;
	p->ip_bytes = IPV6_BYTES + bpf_ntohs(ip->payload_length);
	if (p->ip_bytes > p->frame_bytes - p->ip_offset)
		return REASON_IPV6_BAD_HEADER;
	if (ip->next_header == NEXTHDR_HOP)
		return REASON_IPV6_EXTENSION;
	return REASON_NONE;
}

static __always_inline enum reason forward_ipv6(struct packet *p, const struct router *router)
{
	struct ipv6 *ip = packet_data(p) + p->ip_offset;
	enum reason reason;

	if ((void *)(ip + 1) > packet_end(p))
		return REASON_IPV6_BAD_HEADER;
	if ((reason = check_ipv6(p, ip)) != REASON_NONE)
		return reason;

	__u64 source_hi = bpf_be64_to_cpu(ip->source[0]), source_lo = bpf_be64_to_cpu(ip->source[1]);
	__u64 hi = bpf_be64_to_cpu(ip->destination[0]), lo = bpf_be64_to_cpu(ip->destination[1]);
	trace_step(p, TRACE_IPV6_SOURCE, source_hi, source_lo);
	trace_step(p, TRACE_IPV6_DESTINATION, hi, lo);

	__u32 slot = p->queue_nexthop;
	if (!queue_rows || !slot)
		slot = fib6_lookup(p, *(volatile const __u64 *)&router->fib6, hi, lo);
	if (slot >> FIB_KIND_SHIFT == FIB_GROUP)
		slot = group_member(p, slot, flow_hash6(ip, packet_end(p), router->flags & ROUTER_MULTIPATH_L4_IPV6));
	struct address address = { .lo = ip->destination[0], .hi = ip->destination[1] };
	if (!(p->out = resolve(p, slot, &address, &reason)))
		return reason;
	if (bad_source6(source_hi, source_lo))
		return REASON_BAD_SOURCE;
	if (ip->hop_limit <= 1)
		return REASON_TTL_EXCEEDED;
	if (p->out->interface == p->interface)
		return REASON_SAME_INTERFACE;	/* ip6_forward may owe a redirect (RFC 4861 8.2); no setting turns that off */
	if ((reason = transmit(p)) != REASON_NONE)
		return reason;

	ip = packet_data(p) + p->ip_offset;
	if ((void *)(ip + 1) > packet_end(p))
		return REASON_MALFORMED;	/* cannot be: checked above; for the verifier */
	ip->hop_limit--;
	return REASON_NONE;
}
