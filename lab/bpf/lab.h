/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What the lab's BPF programs share: how a test packet looks, and how it is recognised. */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TEST_UDP_PORT 9	/* discard (RFC 863): a packet to it is a test packet */

/* The interface index of a router (0: the host, n: virtual router n) is the last two bytes of its MACs. */
#define MAX_ROUTERS 512

/* Test packets at the sink since it was attached, one row per CPU. The generator reads it when it must not outrun the sink. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} arrived_in_all SEC(".maps");

struct headers {
	struct ethhdr *eth;
	struct iphdr *ip4;	/* one of ip4, ip6 is set */
	struct ipv6hdr *ip6;
	struct udphdr *udp;
};

/* A test packet (IPv4 without options, or IPv6, then UDP to TEST_UDP_PORT)? */
static __always_inline bool parse_test_packet(struct xdp_md *ctx, struct headers *h)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	h->eth = data;
	h->ip4 = NULL;
	h->ip6 = NULL;
	if ((void *)(h->eth + 1) > end)
		return false;
	if (h->eth->h_proto == bpf_htons(ETH_P_IP)) {
		h->ip4 = (void *)(h->eth + 1);
		h->udp = (void *)(h->ip4 + 1);
		if ((void *)(h->udp + 1) > end || h->ip4->ihl != 5 || h->ip4->protocol != IPPROTO_UDP)
			return false;
	} else if (h->eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		h->ip6 = (void *)(h->eth + 1);
		h->udp = (void *)(h->ip6 + 1);
		if ((void *)(h->udp + 1) > end || h->ip6->nexthdr != IPPROTO_UDP)
			return false;
	} else {
		return false;
	}
	return h->udp->dest == bpf_htons(TEST_UDP_PORT);
}
