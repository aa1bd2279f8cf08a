/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Three baselines without lookups.
 *   pass: every frame goes to the kernel; the least that an XDP program adds to the cost of a packet that the kernel handles.
 *   redirect: every frame leaves by the other port unchanged; the least that any XDP forwarder does.
 *   touch: the same after reading and rewriting the headers (MACs, TTL, checksum); the least that any router does.
 */
#include "lab.h"

const volatile __u8 next_hop_mac[ETH_ALEN];
const volatile __u8 source_mac[ETH_ALEN];

PORTS(out, 1);

SEC("xdp.frags")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp.frags")
int redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&out, 0, XDP_PASS);
}

SEC("xdp.frags")
int touch(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);
		__u32 check;

		if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl != 5 || ip->ttl <= 1)
			return XDP_PASS;
		/* RFC 1141: one less in the TTL's byte is 0x0100 more in the checksum; the carry is added back. */
		check = ip->check + bpf_htons(0x0100);
		ip->check = check + (check >= 0xffff);
		ip->ttl--;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->version != 6 || ip->hop_limit <= 1)
			return XDP_PASS;
		ip->hop_limit--;
	} else {
		return XDP_PASS;
	}
	for (int i = 0; i < ETH_ALEN; i++) {
		eth->h_dest[i] = next_hop_mac[i];
		eth->h_source[i] = source_mac[i];
	}
	return bpf_redirect_map(&out, 0, XDP_PASS);
}

char _license[] SEC("license") = "Dual MIT/GPL";
