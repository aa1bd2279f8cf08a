/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Shared by the lab's BPF programs: what a test packet looks like, and how it is recognised.
 *
 * A test packet is UDP or TCP to TEST_PORT or an ICMP echo request, over IPv4 without options or IPv6, behind at most two
 * VLAN tags. TEST_MARK is in a field that routers do not change, so packets that others send to the same port are not
 * counted.
 *
 * A test packet has a stamp: its flow, its number within the flow and the time when it was written, each a 32-bit number
 * in network order. In UDP and ICMP these are the first 12 bytes of the payload. In TCP they are the acknowledgement
 * number, the sequence number and the first 4 bytes of the payload. Packets that are too short for that (IPv6 and UDP
 * alone take 62 bytes) are counted and have no stamp.
 */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TEST_PORT 9		/* discard (RFC 863) */
#define TEST_MARK 0x6d6c	/* identification of IPv4 (RFC 6864: free in packets that are never fragmented), flow label of IPv6 */

/* The second byte of routers' MACs. Their last two bytes are the router (0: the host, n: virtual router n). */
#define ROUTER_MAC_BYTE 0x6d
#define MAX_ROUTERS 512

#define MAX_STREAMS 8
/* A flow's number: the stream in the upper 8 bits, and the place of the target in the stream in the others. */
#define FLOW_BITS 24
#define FLOW_MASK ((1U << FLOW_BITS) - 1)

/* Ports to redirect packets to. */
#define PORTS(name, count)                              \
	struct {                                        \
		__uint(type, BPF_MAP_TYPE_DEVMAP);      \
		__uint(max_entries, count);             \
		__type(key, __u32);                     \
		__type(value, struct bpf_devmap_val);   \
	} name SEC(".maps")

struct arrived_in_all {
	__u64 packets;		/* test packets at the sink since it was attached */
	__u32 newest_ns;	/* when the last of them with a stamp was written */
	__u32 pad;
};

/* One row per CPU. The generator reads it when it must not outrun the sink. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrived_in_all);
} arrived_in_all SEC(".maps");

/* linux/icmp.h includes the C library, which clang -target bpf lacks. */
#define ICMP_ECHO_REQUEST 8
#define ICMPV6_ECHO_REQUEST 128

struct echo_header {
	__u8  type;
	__u8  code;
	__be16 checksum;
	__be16 identifier;
	__be16 sequence;
};

struct vlan_header {
	__be16 tag;
	__be16 protocol;
};

struct test_packet {
	struct ethhdr *eth;
	void *transport;	/* UDP, TCP or ICMP header, at least 8 bytes of it */
	__u8 protocol;		/* IPPROTO_... */
};

struct stamp {			/* in host order when it is read, in network order when it is written */
	__u32 flow;
	__u32 sequence;		/* within the flow, from 0 */
	__u32 time_ns;		/* CLOCK_MONOTONIC, low 32 bits: compare by subtraction */
};

/* Is it a test packet? */
static __always_inline bool parse_test_packet(struct xdp_md *ctx, struct test_packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *at = data + ETH_HLEN;
	struct udphdr *udp;
	__be16 ether_type;

	p->eth = data;
	if (at > end)
		return false;
	ether_type = p->eth->h_proto;
	for (int tags = 0; tags < 2; tags++) {
		struct vlan_header *vlan = at;

		if (ether_type != bpf_htons(ETH_P_8021Q) && ether_type != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(vlan + 1) > end)
			return false;
		ether_type = vlan->protocol;
		at = vlan + 1;
	}
	if (ether_type == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = at;

		p->transport = ip + 1;
		if (p->transport + sizeof(*udp) > end || ip->ihl != 5 || ip->id != bpf_htons(TEST_MARK))
			return false;
		p->protocol = ip->protocol;
	} else if (ether_type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = at;

		p->transport = ip + 1;
		if (p->transport + sizeof(*udp) > end || *(__be32 *)ip != bpf_htonl(6 << 28 | TEST_MARK))
			return false;
		p->protocol = ip->nexthdr;
	} else {
		return false;
	}
	udp = p->transport;
	switch (p->protocol) {
	case IPPROTO_UDP:
	case IPPROTO_TCP:
		return udp->dest == bpf_htons(TEST_PORT);
	case IPPROTO_ICMP:
		return *(__u8 *)p->transport == ICMP_ECHO_REQUEST;
	case IPPROTO_ICMPV6:
		return *(__u8 *)p->transport == ICMPV6_ECHO_REQUEST;
	}
	return false;
}

/* Reads a test packet's stamp; false if the packet is too short for one. */
static __always_inline bool parse_stamp(struct xdp_md *ctx, const struct test_packet *p, struct stamp *stamp)
{
	void *end = (void *)(long)ctx->data_end;
	__be32 *words = p->transport;	/* 8 bytes of UDP or ICMP header are two */

	if (p->protocol == IPPROTO_TCP) {
		if ((void *)(words + 6) > end)
			return false;
		stamp->sequence = bpf_ntohl(words[1]);
		stamp->flow = bpf_ntohl(words[2]);
		stamp->time_ns = bpf_ntohl(words[5]);
	} else {
		if ((void *)(words + 5) > end)
			return false;
		stamp->flow = bpf_ntohl(words[2]);
		stamp->sequence = bpf_ntohl(words[3]);
		stamp->time_ns = bpf_ntohl(words[4]);
	}
	return true;
}
