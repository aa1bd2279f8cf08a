/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * ICMP errors from which Linux learns about a destination. It may then forward to that destination by a shorter MTU or by
 * another gateway (struct fib_nh_exception, struct rt6_exception), and it sends no message about this. So the destination
 * is noted here, and user space asks Linux about it (logic/src/learned.rs).
 *
 * Only packets that go up, or to a worker, get here. They may be for the router itself or not: Linux decides which errors
 * it believes.
 */
#pragma once

#define ICMP_UNREACHABLE	3
#define ICMP_TOO_LONG		4	/* code of ICMP_UNREACHABLE: fragmentation needed */
#define ICMP_REDIRECT		5
#define ICMPV6_TOO_BIG		2

static __always_inline void note_destination(__u32 router, __u32 family, const void *address, const void *end)
{
	struct learned_note note = { .router = router, .family = family };
	__u64 *noted = ROW(learned_counts, router);

	if (!noted || address + (family == 4 ? 4 : 16) > end)
		return;
	if (__sync_fetch_and_add(noted, 1) >= LEARNED_NOTES)
		return;
	if (family == 4)
		__builtin_memcpy(note.address, address, 4);
	else
		__builtin_memcpy(note.address, address, 16);
	/* No wakeup: user space looks every 15 ms, so a flood takes little of its time. */
	bpf_ringbuf_output(&learned, &note, sizeof(note), BPF_RB_NO_WAKEUP);
}

/* Separate functions: else packets that are forwarded would pay for the registers that these take. */
__noinline int note_error4(struct xdp_md *ctx, __u32 router, __u32 offset)
{
	const void *end = (void *)(long)ctx->data_end;
	const struct ipv4 *ip = (void *)(long)ctx->data + (offset & 0xff);

	if ((const void *)(ip + 1) > end || ip->protocol != IPPROTO_ICMP || ip->fragment & bpf_htons(IPV4_OFFSET))
		return 0;
	const __u8 *icmp = (const void *)ip + (ip->version_ihl & 15) * 4;
	const struct ipv4 *inner = (const void *)icmp + ICMP_BYTES;
	if ((const void *)(icmp + 2) > end)
		return 0;
	if ((icmp[0] == ICMP_UNREACHABLE && icmp[1] == ICMP_TOO_LONG) || icmp[0] == ICMP_REDIRECT)
		note_destination(router, 4, &inner->destination, end);
	return 0;
}

__noinline int note_error6(struct xdp_md *ctx, __u32 router, __u32 offset)
{
	const void *end = (void *)(long)ctx->data_end;
	const struct ipv6 *ip = (void *)(long)ctx->data + (offset & 0xff);
	const __u8 *icmp = (const void *)(ip + 1);
	const struct ipv6 *inner = (const void *)icmp + ICMP_BYTES;

	if ((const void *)(icmp + 1) > end || ip->next_header != IPPROTO_ICMPV6)
		return 0;
	if (*icmp == ICMPV6_TOO_BIG)
		note_destination(router, 6, &inner->destination, end);
	else if (*icmp == ICMPV6_REDIRECT)
		note_destination(router, 6, icmp + ICMP_BYTES + 16, end);	/* behind the target (RFC 4861, 4.5) */
	return 0;
}

static __always_inline void look_at_error(const struct packet *p)
{
	if (p->explain || p->payer >= MAX_ROUTERS)
		return;
	if (p->ether_type == ETH_P_IP)
		note_error4(p->ctx, p->payer, p->ip_offset);
	else if (p->ether_type == ETH_P_IPV6)
		note_error6(p->ctx, p->payer, p->ip_offset);
}
