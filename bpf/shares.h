/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Shares of a full core (M4, P12). If a router wants more than its share, some of its packets are cut here, before work is
 * spent on them. User space sets the part of packets that is carried out, and until when that holds. Without that nothing is
 * cut, and the attached program has none of this code. (A test of a word there would cost 2 to 7 ns, for registers.) Packets
 * are cut evenly, one by one. A budget per clock tick would let all packets of the tick's first half pass, and they would
 * fill the port's ring, which other routers share.
 */
#pragma once

#define ICMPV6_ROUTER_SOLICITATION 133
#define ICMPV6_REDIRECT 137

/* Is this packet carried out? `admit` of 2^32 packets are, evenly, or all if it is 0. */
static __always_inline bool admitted(__u32 admit, __u32 *credit)
{
	if (!admit)
		return true;
	*credit += admit;
	return *credit < admit;
}

/* Is `to` a link-local group (routing protocols), limited broadcast, or maybe an address of the router itself? */
static __always_inline bool maybe_own4(const struct router *router, __u32 to)
{
	return to >> 8 == 0xe00000 || to == 0xffffffff || maybe_local(router, to);
}

/* The same, with certainty: there is no filter of IPv6 addresses, so this looks in the table. */
static __always_inline bool is_own6(const struct router *router, __u64 hi, __u64 lo)
{
	const struct packet untraced = {};
	const struct nexthop *n;

	if (hi >> 56 == 0xff || hi >> 54 == 0xfe80 >> 6)
		return true;
	__u32 slot = fib6_lookup(&untraced, *(volatile const __u64 *)&router->fib6, hi, lo);
	if (slot >> FIB_KIND_SHIFT != FIB_NEXTHOP)
		return false;
	n = ROW(nexthops, slot & FIB_INDEX_MASK);
	return n && n->flags & NEXTHOP_LOCAL;
}

enum share_kind {
	SHARE_TRANSIT,
	SHARE_OWN,
	SHARE_NEVER_CUT,
	SHARE_MAYBE_NAT,	/* to an address of a router that has connections: see is_translated() */
};

static __always_inline enum share_kind kind_of_own(const struct router *router)
{
	return *(volatile const __u32 *)&router->flags & ROUTER_CONNECTIONS ? SHARE_MAYBE_NAT : SHARE_OWN;
}

static __always_inline enum share_kind kind_of(struct xdp_md *ctx, const struct router *router, __u32 ether_type, __u32 offset)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ipv4 *v4 = data + (offset & 0xff);
	const struct ipv6 *v6 = data + (offset & 0xff);
	const __u8 *type = (const void *)(v6 + 1);

	if (ether_type == ETH_P_ARP)
		return SHARE_NEVER_CUT;
	if (ether_type == ETH_P_IP && (void *)(v4 + 1) <= end)
		return maybe_own4(router, bpf_ntohl(v4->destination)) ? kind_of_own(router) : SHARE_TRANSIT;
	if (ether_type != ETH_P_IPV6 || (void *)(type + 1) > end)
		return SHARE_OWN;
	if (v6->next_header == IPPROTO_ICMPV6 && *type >= ICMPV6_ROUTER_SOLICITATION && *type <= ICMPV6_REDIRECT)
		return SHARE_NEVER_CUT;
	return is_own6(router, bpf_be64_to_cpu(v6->destination[0]), bpf_be64_to_cpu(v6->destination[1])) ?
	       kind_of_own(router) : SHARE_TRANSIT;
}

/*
 * Does NAT translate and forward a packet to an address of the router? Yes, if its connection has a row, even a void
 * one. So all packets of a connection are of one kind, and FIN follows the data. The programs call this directly,
 * because the functions above have no room on the stack for it.
 */
static __always_inline bool is_translated(const struct packet *p)
{
	__u32 version = p->ether_type == ETH_P_IPV6;

	return find_connection(p->ctx, p->router, p->ip_offset | version << 31, FIND_ROW);
}

/*
 * Counts a packet right after its router is known. Returns the packet's kind while the router's packets are being cut,
 * otherwise SHARE_NEVER_CUT. This is a separate function, so packets that nobody cuts do not pay for its registers.
 */
__noinline int count_share(struct xdp_md *ctx, __u32 row, __u32 ether_type, __u32 offset)
{
	const struct router *router = ROW(routers, row & (MAX_ROUTERS - 1));
	struct share *s = ROW(shares, row);

	if (!s || !router)
		return SHARE_NEVER_CUT;
	s->packets++;
	if (!*(volatile const __u32 *)&s->admit && !*(volatile const __u32 *)&s->own_admit)
		return SHARE_NEVER_CUT;
	return kind_of(ctx, router, ether_type, offset);
}

/*
 * Is a packet over the router's share? Packets for the router itself come first in the share, and are cut only if they
 * alone exceed it. ARP and neighbour discovery have a reserve of their own.
 */
__noinline int over_share(__u32 row, __u32 own)
{
	struct share *s = ROW(shares, row);

	if (!s)
		return 0;
	if (!own)
		return !admitted(*(volatile const __u32 *)&s->admit, &s->credit);
	if (admitted(*(volatile const __u32 *)&s->own_admit, &s->own_credit))
		return 0;
	s->own_cut++;
	return 1;
}

/* Nothing is cut past the deadline: the daemon may have ended. */
static __always_inline bool cut_by_share(const struct packet *p)
{
	const struct control *c = ROW(control, 0);

	if (!c || bpf_jiffies64() > *(volatile const __u64 *)&c->shares_deadline_jiffies)
		return false;
	int kind = count_share(p->ctx, p->cpu * MAX_ROUTERS + p->router, p->ether_type, p->ip_offset);
	if (kind == SHARE_NEVER_CUT)
		return false;
	if (kind == SHARE_MAYBE_NAT)
		kind = is_translated(p) ? SHARE_TRANSIT : SHARE_OWN;
	return over_share(p->cpu * MAX_ROUTERS + p->router, kind == SHARE_OWN);
}
