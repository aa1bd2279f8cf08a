/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Redirects that each have a known fault, to test what the lab itself sees (tests/known_answers.rs). They expect UDP over
 * IPv4 without tags, and choose packets by their number within the flow.
 */
#include "lab.h"

#define EVERY 100
#define DELAY_NS 100000
#define SEQUENCE_AT (ETH_HLEN + sizeof(struct iphdr) + sizeof(struct udphdr) + 4)

/* Entry 0: the port out. */
PORTS(out, 1);

/* Both entries: the port out. */
PORTS(twice, 2);

/* Entry 0: a core, with a queue. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

/* The place of the number in the packet; NULL if this is not a test packet of this kind. */
static __always_inline __be32 *sequence(struct xdp_md *ctx)
{
	__be32 *at = (void *)(long)ctx->data + SEQUENCE_AT;
	struct test_packet p;

	if (!parse_test_packet(ctx, &p) || p.protocol != IPPROTO_UDP)
		return NULL;
	return (void *)(at + 1) <= (void *)(long)ctx->data_end ? at : NULL;
}

SEC("xdp")
int faulty_drop(struct xdp_md *ctx)
{
	__be32 *number = sequence(ctx);

	if (number && bpf_ntohl(*number) % EVERY == 0)
		return XDP_DROP;
	return bpf_redirect_map(&out, 0, XDP_PASS);
}

/* Numbers 50 and 51 of every 100 change places. The sink sees the same as if the packets had changed places. */
SEC("xdp")
int faulty_swap(struct xdp_md *ctx)
{
	__be32 *number = sequence(ctx);

	if (number) {
		__u32 n = bpf_ntohl(*number);

		if (n % EVERY == 50)
			*number = bpf_htonl(n + 1);
		else if (n % EVERY == 51)
			*number = bpf_htonl(n - 1);
	}
	return bpf_redirect_map(&out, 0, XDP_PASS);
}

SEC("xdp")
int faulty_duplicate(struct xdp_md *ctx)
{
	__be32 *number = sequence(ctx);

	if (number && bpf_ntohl(*number) % EVERY == 0)
		return bpf_redirect_map(&twice, 0, BPF_F_BROADCAST);
	return bpf_redirect_map(&out, 0, XDP_PASS);
}

static long is_over(__u32 i, __u64 *until_ns)
{
	return bpf_ktime_get_ns() >= *until_ns;
}

SEC("xdp")
int faulty_delay(struct xdp_md *ctx)
{
	__u64 until_ns = bpf_ktime_get_ns() + DELAY_NS;

	if (sequence(ctx))
		bpf_loop(1 << 20, is_over, &until_ns, 0);
	return bpf_redirect_map(&out, 0, XDP_PASS);
}

/* The packet goes to another core, where Linux forwards it. */
SEC("xdp")
int faulty_cpumap(struct xdp_md *ctx)
{
	return bpf_redirect_map(&cpus, 0, XDP_PASS);
}

SEC("xdp")
int faultless(struct xdp_md *ctx)
{
	return bpf_redirect_map(&out, 0, XDP_PASS);
}

char _license[] SEC("license") = "Dual MIT/GPL";
