/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* IPv6: as ip6_rcv_core, ip6_route_input and ip6_forward of Linux, for packets that need nothing special (RFC 8200). */
#pragma once

/* Sources that ip6_rcv_core and ip6_forward refuse: unspecified, loopback, multicast, link-local. */
static __always_inline bool bad_source6(__u64 hi, __u64 lo)
{
	return hi >> 56 == 0xff || hi >> 54 == 0xfe80 >> 6 || (!hi && lo <= 1);
}

/* The header that policy 0 hashes: in an ICMP error that of the inner packet; NULL: the program cannot see it. */
static __always_inline const struct ipv6 *followed6(const struct ipv6 *ip, const void *end, __u32 ip_bytes)
{
	const __u8 *type = (const void *)(ip + 1);
	const struct ipv6 *inner = (const void *)type + ICMP_BYTES;

	if (ip->next_header != IPPROTO_ICMPV6 || ip_bytes < 2 * IPV6_BYTES + ICMP_BYTES)
		return ip;
	if ((const void *)(inner + 1) > end)
		return NULL;
	return *type >= 1 && *type <= ICMPV6_LAST_ERROR ? inner : ip;
}

__noinline __u64 multipath_hash6(struct xdp_md *ctx, __u32 row, __u32 offset, __u32 ip_bytes)
{
	const struct router *router = ROW(routers, row & (MAX_ROUTERS - 1));
	const void *end = (void *)(long)ctx->data_end;
	const struct ipv6 *ip = (void *)(long)ctx->data + (offset & 0xff);
	__u32 ports = 0, label = 0, protocol;

	if (!router || (const void *)(ip + 1) > end)
		return MULTIPATH_UNSURE;
	protocol = ip->next_header;
	if (!(router->flags & ROUTER_MULTIPATH_L4_IPV6)) {
		if (!(ip = followed6(ip, end, ip_bytes)))
			return MULTIPATH_UNSURE;
		protocol = ip->next_header;
		label = *(const __u32 *)ip & bpf_htonl(0x000fffff);
	} else if (protocol == NEXTHDR_HOP || protocol == NEXTHDR_ROUTING || protocol == NEXTHDR_DEST) {
		return MULTIPATH_UNSURE;
	} else if (protocol == NEXTHDR_FRAGMENT) {
		const __u64 *fragment = (const void *)(ip + 1);

		/* A fragment has no ports, not even the first. */
		if (ip_bytes < IPV6_BYTES + sizeof(*fragment) || (const void *)(fragment + 1) > end)
			return MULTIPATH_UNSURE;
		protocol = *(const __u8 *)fragment;
	} else if (!read_ports(ip + 1, end, protocol, ip_bytes - IPV6_BYTES, &ports)) {
		return MULTIPATH_UNSURE;
	}

	__u64 source = bpf_be64_to_cpu(ip->source[0]), destination = bpf_be64_to_cpu(ip->destination[0]);
	if (source == destination) {
		source = bpf_be64_to_cpu(ip->source[1]);
		destination = bpf_be64_to_cpu(ip->destination[1]);
	}
	const __u64 *low = source <= destination ? ip->source : ip->destination;
	const __u64 *high = source <= destination ? ip->destination : ip->source;
	struct sip s = sip_begin(router);
	sip_keys(&s, protocol, label, ports);
	sip_word(&s, low[0] << 32);
	sip_word(&s, low[0] >> 32 | low[1] << 32);
	sip_word(&s, low[1] >> 32 | high[0] << 32);
	sip_word(&s, high[0] >> 32 | high[1] << 32);
	sip_word(&s, high[1] >> 32);
	return sip_end(&s, 72);
}

static __always_inline enum reason check_ipv6(struct packet *p, const struct ipv6 *ip)
{
	if (ip->version_class >> 4 != 6)
		return RARE(REASON_IPV6_BAD_HEADER);
	p->ip_bytes = IPV6_BYTES + bpf_ntohs(ip->payload_length);
	if (p->ip_bytes > p->frame_bytes - p->ip_offset)
		return RARE(REASON_IPV6_BAD_HEADER);
	if (ip->next_header == NEXTHDR_HOP)
		return RARE(REASON_IPV6_EXTENSION);
	return REASON_NONE;
}

static __always_inline enum reason forward_ipv6(struct packet *p, const struct router *router)
{
	struct ipv6 *ip = packet_data(p) + p->ip_offset;
	enum reason reason;

	if ((void *)(ip + 1) > packet_end(p))
		return RARE(REASON_IPV6_BAD_HEADER);
	if ((reason = check_ipv6(p, ip)) != REASON_NONE)
		return reason;

	__u64 source_hi = bpf_be64_to_cpu(ip->source[0]), source_lo = bpf_be64_to_cpu(ip->source[1]);
	__u64 hi = bpf_be64_to_cpu(ip->destination[0]), lo = bpf_be64_to_cpu(ip->destination[1]);
	trace_step(p, TRACE_IPV6_SOURCE, source_hi, source_lo);
	trace_step(p, TRACE_IPV6_DESTINATION, hi, lo);
	if (look_for_connection(p, router, 1)) {
		hi = bpf_be64_to_cpu(new_destination(p->connection, 0));
		lo = bpf_be64_to_cpu(new_destination(p->connection, 1));
	}

	__u32 slot = p->queue_nexthop;
	if (!queue_rows || !slot)
		slot = fib6_lookup(p, *(volatile const __u64 *)&router->fib6, hi, lo);
	if (slot >> FIB_KIND_SHIFT == FIB_GROUP) {
		__u64 hash = has_new_destination(p) ? MULTIPATH_UNSURE :
						      multipath_hash6(p->ctx, p->router, p->ip_offset, p->ip_bytes);

		if (hash == MULTIPATH_UNSURE)
			return RARE(ip->hop_limit <= 1 ? REASON_TTL_EXCEEDED : REASON_MEMBER_UNSURE);
		slot = group_member(p, slot, hash);
	}
	struct address address = { .lo = bpf_cpu_to_be64(hi), .hi = bpf_cpu_to_be64(lo) };
	if (!(p->out = resolve(p, slot, &address, &reason))) {
		note_local(p, router, reason, 1);
		return reason;
	}
	if (bad_source6(source_hi, source_lo))
		return RARE(REASON_BAD_SOURCE);
	if (ip->hop_limit <= 1)
		return RARE(REASON_TTL_EXCEEDED);
	if (p->out->interface == p->interface)
		return RARE(REASON_SAME_INTERFACE);	/* ip6_forward may owe a redirect (RFC 4861 8.2); no setting disables it */
	if (rules_decide(p, router, 1))
		return RARE(REASON_RULES);
	if ((reason = transmit(p)) != REASON_NONE)
		return reason;

	ip = packet_data(p) + p->ip_offset;
	if ((void *)(ip + 1) > packet_end(p))
		return RARE(REASON_MALFORMED);	/* cannot happen: checked above; for the verifier */
	ip->hop_limit--;
	if (p->connection)
		translate(p->ctx, p->connection, p->ip_offset | 1U << 31, p->explain ? 0 : p->ip_bytes);
	return REASON_NONE;
}
