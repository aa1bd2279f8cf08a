// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Sends frames into the RX rings of their queue and path, only for tests and measurements of AF_XDP. Frames have an
 * EtherType for experiments (IEEE 802, 9.2.4), and the byte behind the Ethernet header is the path.
 *
 * The names of attached programs begin with "millrace". Daemons of tests that run at the same time would otherwise take
 * the programs for somebody else's, and pass all packets to the kernel for a moment.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_P_IP	0x0800
#define ETH_P_EXPERIMENT 0x88b5
#define ETHERNET_BYTES	14
/* The offset behind IPv4 without options and UDP. */
#define PAYLOAD		42

/* router/tests/af_xdp/bed.rs has the same numbers. */
#define PATHS		4
#define QUEUES		8

/* A socket gets packets of its own port and queue only. Each port has a program of its own, so slots are of one port. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES * PATHS);
	__type(key, __u32);
	__type(value, __u32);
} paths SEC(".maps");

/* Where generated frames go. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} out SEC(".maps");

SEC("xdp")
int millrace_to_path(struct xdp_md *ctx)
{
	const __u8 *frame = (void *)(long)ctx->data;

	if (frame + ETHERNET_BYTES + 1 > (const __u8 *)(long)ctx->data_end)
		return XDP_PASS;
	if (*(const __be16 *)(frame + 12) != bpf_htons(ETH_P_EXPERIMENT) || frame[ETHERNET_BYTES] >= PATHS)
		return XDP_PASS;
	/* If the slot is empty, the kernel gets the frame. */
	return bpf_redirect_map(&paths, ctx->rx_queue_index * PATHS + frame[ETHERNET_BYTES], XDP_PASS);
}

/* The same, but IPv4 goes to path 0. */
SEC("xdp")
int millrace_ip_to_path(struct xdp_md *ctx)
{
	const __u8 *frame = (void *)(long)ctx->data;

	if (frame + ETHERNET_BYTES > (const __u8 *)(long)ctx->data_end || *(const __be16 *)(frame + 12) != bpf_htons(ETH_P_IP))
		return millrace_to_path(ctx);
	return bpf_redirect_map(&paths, ctx->rx_queue_index * PATHS, XDP_PASS);
}

/* Run by BPF_PROG_TEST_RUN with live frames, which leave by `out` unchanged. */
SEC("xdp")
int repeat(struct xdp_md *ctx)
{
	return bpf_redirect_map(&out, 0, 0);
}

/* Run by BPF_PROG_TEST_RUN with live frames: each is for path 0, and leaves by `out`. */
SEC("xdp")
int generate(struct xdp_md *ctx)
{
	__u8 *frame = (void *)(long)ctx->data;

	if (frame + ETHERNET_BYTES + 1 > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	*(__be16 *)(frame + 12) = bpf_htons(ETH_P_EXPERIMENT);
	frame[ETHERNET_BYTES] = 0;
	return bpf_redirect_map(&out, 0, 0);
}

/*
 * The same for an IPv4 frame that routers rewrite. Its page comes back as they left it, so this copies its first 12 bytes,
 * TTL and checksum back from its payload.
 */
SEC("xdp")
int restore(struct xdp_md *ctx)
{
	__u8 *frame = (void *)(long)ctx->data;

	if (frame + PAYLOAD + 15 > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(frame, frame + PAYLOAD, 12);
	frame[22] = frame[PAYLOAD + 12];
	__builtin_memcpy(frame + 24, frame + PAYLOAD + 13, 2);
	return bpf_redirect_map(&out, 0, 0);
}

/*
 * Frames of three paths, again and again: as many of path 0 as the second byte behind the header says, then one of path 1 and
 * one of path 2.
 */
SEC("xdp")
int mix(struct xdp_md *ctx)
{
	static __u32 next;
	__u8 *frame = (void *)(long)ctx->data;
	__u32 favoured;

	if (frame + ETHERNET_BYTES + 2 > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	favoured = frame[ETHERNET_BYTES + 1];
	*(__be16 *)(frame + 12) = bpf_htons(ETH_P_EXPERIMENT);
	frame[ETHERNET_BYTES] = next < favoured ? 0 : 1 + next - favoured;
	next = next > favoured ? 0 : next + 1;
	return bpf_redirect_map(&out, 0, 0);
}

/* Runs at the other end. */
SEC("xdp")
int millrace_sink(struct xdp_md *ctx)
{
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
