/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * ICMP errors from which Linux learns about a destination. It may then forward to that destination by a shorter MTU or by another
 * gateway (struct fib_nh_exception, net/ipv4/route.c). It sends no message, and a dump shows this only once Linux has sent a
 * packet there. So the destination is noted here, and user space asks Linux about it (logic/src/learned.rs).
 *
 * Only packets that go up get here. They may be for the router itself or not: Linux decides which errors it believes.
 */
#pragma once

#define ICMP_UNREACHABLE	3
#define ICMP_TOO_LONG		4	/* code of ICMP_UNREACHABLE: fragmentation needed */
#define ICMP_REDIRECT		5

/* A function of its own: packets that are forwarded would pay for the registers that it takes. */
__noinline int note_learned(struct xdp_md *ctx, __u32 router, __u32 offset)
{
	const void *end = (void *)(long)ctx->data_end;
	const struct ipv4 *ip = (void *)(long)ctx->data + (offset & 0xff);

	if ((const void *)(ip + 1) > end || ip->protocol != IPPROTO_ICMP || ip->fragment & bpf_htons(IPV4_OFFSET))
		return 0;
	const __u8 *icmp = (const void *)ip + (ip->version_ihl & 15) * 4;
	const struct ipv4 *inner = (const void *)icmp + ICMP_BYTES;
	if ((const void *)(inner + 1) > end)
		return 0;
	if ((icmp[0] == ICMP_UNREACHABLE && icmp[1] == ICMP_TOO_LONG) || icmp[0] == ICMP_REDIRECT) {
		__u64 note = (__u64)router << 32 | bpf_ntohl(inner->destination);

		/* A full ring loses notes: user space takes them out at its own pace. */
		bpf_ringbuf_output(&learned, &note, sizeof(note), 0);
	}
	return 0;
}

static __always_inline void look_at_error(const struct packet *p)
{
	if (!p->explain && p->payer < MAX_ROUTERS && p->ether_type == ETH_P_IP)
		note_learned(p->ctx, p->payer, p->ip_offset);
}
