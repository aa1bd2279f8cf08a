/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* IPv4: as ip_rcv_core, ip_route_input and ip_forward of Linux, for packets that need nothing special (RFC 1812). */
#pragma once

/*
 * Ones' complement sum of the header; valid when 0xffff (RFC 1071). Five words have less than 35 bits, so after two steps the
 * sum is at most 0x10008. It is not 0, because the first word is not.
 */
static __always_inline bool checksum_ok(const struct ipv4 *ip)
{
	const __u32 *word = (const void *)ip;
	__u64 sum = (__u64)word[0] + word[1] + word[2] + word[3] + word[4];

	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return sum == 0xffff;
}

/* Sources that Linux refuses on every interface (ip_route_input_slow): 0/8, 127/8, multicast, limited broadcast. */
static __always_inline bool martian_source(__u32 source)
{
	__u32 top = source >> 24;

	/* Most sources are one of these: 1 to 126, 128 to 223. */
	if (top - 1 < 126 || top - 128 < 96)
		return false;
	return top < 0xf0 || source == 0xffffffff;
}

/* May this source be one of the router's own addresses? One hash, no false negatives. */
static __always_inline bool maybe_local(const struct router *router, __u32 source)
{
	__u32 bit = source * 0x9e3779b1U >> 21;

	return router->local4[bit >> 6 & (LOCAL_FILTER_BITS / 64 - 1)] >> (bit & 63) & 1;
}

/* Does Linux refuse this broadcast or own address as a source only sometimes? With accept_local it accepts some. */
static __always_inline bool local_source_unsure(const struct nexthop *n, __u8 flags)
{
	return flags & IF_ACCEPT_LOCAL || n->reason == REASON_LOCAL_PREFIX ||
	       (n->reason == REASON_BROADCAST && !(flags & (IF_RPF_LOOSE | IF_RPF_STRICT)));
}

/*
 * As fib_validate_source: the source must not be ours, and with rp_filter a route must lead back to it (RFC 3704). The
 * kernel decides if that is not possible here (strict mode and several next hops back, routes that depend on more than
 * the address).
 */
static __always_inline enum reason look_at_source(const struct packet *p, __u64 root, __u32 source)
{
	__u32 slot = fib4_lookup(p, root, source);
	bool group = slot >> FIB_KIND_SHIFT == FIB_GROUP;
	/* Any member will do: strict mode leaves groups to the kernel. */
	const struct nexthop *n = ROW(nexthops, (group ? group_member(p, slot, 0) : slot) & FIB_INDEX_MASK);
	__u8 flags = p->flags;
	enum reason reason = REASON_NONE;

	if (!n || n->reason == REASON_MAP_FULL)
		reason = REASON_SOURCE_UNSURE;
	else if (n->flags & NEXTHOP_LOCAL)
		reason = local_source_unsure(n, flags) ? REASON_SOURCE_UNSURE : REASON_BAD_SOURCE;
	else if (!(flags & (IF_RPF_LOOSE | IF_RPF_STRICT)))
		reason = REASON_NONE;
	else if (n->reason == REASON_COMPLEX_ROUTE || n->reason == REASON_LEARNED_PATH || (group && (flags & IF_RPF_STRICT)))
		reason = REASON_SOURCE_UNSURE;
	else if (!(n->flags & NEXTHOP_UNICAST) || ((flags & IF_RPF_STRICT) && n->interface != p->interface))
		reason = REASON_REVERSE_PATH;
	trace_step(p, TRACE_SOURCE_CHECK, slot, reason == REASON_NONE);
	return reason;
}

/* Called for packets that would be forwarded. Packets for the box itself have already gone up, unpoliced. */
static __always_inline enum reason
check_source(const struct packet *p, const struct router *router, __u64 root, __u32 source)
{
	if (martian_source(source))
		return RARE(REASON_BAD_SOURCE);
	if ((p->flags & (IF_RPF_LOOSE | IF_RPF_STRICT | IF_LOOK_AT_SOURCES)) || maybe_local(router, source))
		return look_at_source(p, root, source);
	return REASON_NONE;
}

/* The header that policy 0 hashes: in an ICMP error that of the inner packet; NULL: the program cannot see it. */
static __always_inline const struct ipv4 *followed4(const struct ipv4 *ip, const void *end, __u32 ip_bytes)
{
	const __u8 *type = (const void *)(ip + 1);
	const struct ipv4 *inner = (const void *)type + ICMP_BYTES;

	if (ip->protocol != IPPROTO_ICMP || ip->fragment & bpf_htons(IPV4_OFFSET) || ip_bytes < 2 * IPV4_BYTES + ICMP_BYTES)
		return ip;
	if ((const void *)(inner + 1) > end)
		return NULL;
	return *type < 32 && ICMP_ERRORS >> *type & 1 ? inner : ip;
}

/* A separate function: else packets that need no choice would pay for the registers that it takes. */
__noinline __u64 multipath_hash4(struct xdp_md *ctx, __u32 row, __u32 offset, __u32 ip_bytes)
{
	const struct router *router = ROW(routers, row & (MAX_ROUTERS - 1));
	const void *end = (void *)(long)ctx->data_end;
	const struct ipv4 *ip = (void *)(long)ctx->data + (offset & 0xff);
	__u32 ports = 0, protocol = 0;

	if (!router || (const void *)(ip + 1) > end)
		return MULTIPATH_UNSURE;
	if (router->flags & ROUTER_MULTIPATH_L4_IPV4) {
		protocol = ip->protocol;
		if (!(ip->fragment & bpf_htons(IPV4_FRAGMENT)) &&
		    !read_ports(ip + 1, end, protocol, ip_bytes - IPV4_BYTES, &ports))
			return MULTIPATH_UNSURE;
	} else if (!(ip = followed4(ip, end, ip_bytes))) {
		return MULTIPATH_UNSURE;
	}

	__u32 source = ip->source, destination = ip->destination;
	bool sorted = source <= destination;
	struct sip s = sip_begin(router);
	sip_keys(&s, protocol, 0, ports);
	sip_word(&s, (__u64)(sorted ? source : destination) << 32);
	sip_word(&s, sorted ? destination : source);
	return sip_end(&s, 48);
}

static __always_inline enum reason check_ipv4(struct packet *p, const struct ipv4 *ip)
{
	if (ip->version_ihl != IPV4_PLAIN)
		return RARE(ip->version_ihl >> 4 == 4 && (ip->version_ihl & 15) > 5 ? REASON_IPV4_OPTIONS
										     : REASON_IPV4_BAD_HEADER);
	p->ip_bytes = bpf_ntohs(ip->total_length);
	if (p->ip_bytes < IPV4_BYTES || p->ip_bytes > p->frame_bytes - p->ip_offset || !checksum_ok(ip))
		return RARE(REASON_IPV4_BAD_HEADER);
	return REASON_NONE;
}

static __always_inline enum reason forward_ipv4(struct packet *p, const struct router *router)
{
	struct ipv4 *ip = packet_data(p) + p->ip_offset;
	enum reason reason;

	if ((void *)(ip + 1) > packet_end(p))
		return RARE(REASON_IPV4_BAD_HEADER);
	if ((reason = check_ipv4(p, ip)) != REASON_NONE)
		return reason;

	__u32 source = bpf_ntohl(ip->source), destination = bpf_ntohl(ip->destination);
	__u64 root = *(volatile const __u64 *)&router->fib4;
	trace_step(p, TRACE_IPV4, source, destination);
	if (look_for_connection(p, router, 0))
		destination = bpf_ntohl(new_destination(p->connection, 0));
	__u32 slot = p->queue_nexthop;
	if (!queue_rows || !slot)
		slot = fib4_lookup(p, root, destination);
	if (slot >> FIB_KIND_SHIFT == FIB_GROUP) {
		__u64 hash = has_new_destination(p) ? MULTIPATH_UNSURE :
						      multipath_hash4(p->ctx, p->router, p->ip_offset, p->ip_bytes);

		if (hash == MULTIPATH_UNSURE)
			return RARE(ip->ttl <= 1 ? REASON_TTL_EXCEEDED : REASON_MEMBER_UNSURE);
		slot = group_member(p, slot, hash);
	}
	struct address address = { .lo = bpf_htonl(destination) };
	if (!(p->out = resolve(p, slot, &address, &reason))) {
		note_local(p, router, reason, 0);
		return reason;
	}
	if ((reason = check_source(p, router, root, source)) != REASON_NONE)
		return reason;
	if (ip->ttl <= 1)
		return RARE(REASON_TTL_EXCEEDED);
	if (p->out->interface == p->interface && (p->flags & IF_REDIRECTS))
		return RARE(REASON_SAME_INTERFACE);
	if (rules_decide(p, router, 0))
		return RARE(REASON_RULES);
	if ((reason = transmit(p)) != REASON_NONE)
		return reason;

	ip = packet_data(p) + p->ip_offset;
	if ((void *)(ip + 1) > packet_end(p))
		return RARE(REASON_MALFORMED);	/* cannot happen: checked above; for the verifier */
	/* ip_decrease_ttl: adding 0x0100 to the checksum as ones' complement, end-around carry included (RFC 1141). */
	__u32 sum = ip->checksum + bpf_htons(0x0100);
	ip->checksum = sum + (sum >= 0xffff);
	ip->ttl--;
	if (p->connection)
		translate(p->ctx, p->connection, p->ip_offset, p->explain ? 0 : p->ip_bytes);
	return REASON_NONE;
}
