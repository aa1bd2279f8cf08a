/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The generator: run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, once per packet, it writes the packet and
 * redirects it out of the generator's port. The kernel recycles pages without restoring them (TRAPS.md), so every byte
 * of every header is written every time.
 *
 * One instance runs on one core: it alone writes `generated`; user space writes `load` and `targets` while it is idle.
 */
#include "lab.h"

struct target {			/* 32 bytes; user space computes what is constant (lab::packet) */
	__u8  dmac[6];
	__be16 protocol;	/* ETH_P_IP or ETH_P_IPV6 */
	__u8  destination[16];	/* IPv4 in the first four bytes */
	__be16 source_port;
	__be16 ip_check;	/* IPv4 header checksum */
	__u32 pad;
};

struct load {
	__u8  smac[6];
	__u16 frame_bytes;	/* without FCS */
	__be32 source4;
	__u32 target_count;
	__u8  source6[16];
	__u64 rate;		/* packets per 2^30 ns; 0: not paced */
	__u64 limit;		/* stop sending after so many packets; 0: never */
	__u32 window;		/* most packets between generator and sink; 0: no matter how many */
	__u32 sink_cpu;		/* where the sink runs */
};

struct generated {
	__u64 packets;		/* handed to the port; its ring may still have been full */
	__u64 held;		/* frames given back because it was not time, or there was no room, for some microseconds */
	__u64 start_ns;		/* when pacing began */
	__u64 paced;		/* packets since start_ns, skipped ones included */
	__u64 failed;		/* redirect refused */
	__u64 skipped;		/* due but never sent, because the generator was held up for longer than MAX_BACKLOG */
	__u64 arrived;		/* at the sink, when last looked */
	__u64 arrived_ns;	/* when that last changed */
	__u64 behind;		/* packets - arrived when nothing is on its way */
	__u32 credit;		/* packets that may be sent without looking again */
	__u32 calls;		/* since then without credit */
	__u32 next;		/* next target */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << 20);
	__type(key, __u32);
	__type(value, struct target);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct load);
} load SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct generated);
} generated SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 16);	/* MAX_PORTS of lab::topology */
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} out SEC(".maps");

/* After being held up (the core was taken away) at most so many packets are sent at once: less than a veth ring. */
#define MAX_BACKLOG 128

/* Is packet number `paced` due? Compares packets sent with rate * elapsed in 2^30 ns units: no division. */
static __always_inline bool due(const struct load *l, struct generated *g)
{
	__u64 now_ns = bpf_ktime_get_ns();
	__u64 target;

	/* Start over every 2^37 ns (137 s): at 16 Mpps rate * elapsed stays below 2^62. */
	if (!g->start_ns || now_ns - g->start_ns > 1ULL << 37) {
		g->start_ns = now_ns;
		g->paced = 0;
	}
	target = ((now_ns - g->start_ns) * l->rate) >> 30;
	if (g->paced >= target)
		return false;
	if (target - g->paced > MAX_BACKLOG) {
		g->skipped += target - MAX_BACKLOG - g->paced;
		g->paced = target - MAX_BACKLOG;
	}
	g->paced++;
	return true;
}

/* Calls without credit between two looks at the sink's counter: the sink's core pays for each look with a cache miss. */
#define LOOK_EVERY 256
/* After so long without an arrival what is on its way is taken for lost: longer than a core is ever taken away. */
#define LOST_NS 50000000

/* Does the window have room? */
static __always_inline bool room(const struct load *l, struct generated *g)
{
	__u32 zero = 0;
	__u64 *arrived, now_ns;
	__s64 on_way;

	if (g->credit) {
		g->credit--;
		return true;
	}
	if (g->calls++ % LOOK_EVERY)
		return false;
	arrived = bpf_map_lookup_percpu_elem(&arrived_in_all, &zero, l->sink_cpu);
	if (!arrived)
		return false;
	now_ns = bpf_ktime_get_ns();
	if (!g->arrived_ns)
		g->behind = -*arrived;
	if (!g->arrived_ns || g->arrived != *arrived) {
		g->arrived = *arrived;
		g->arrived_ns = now_ns;
	} else if (now_ns - g->arrived_ns > LOST_NS) {
		g->behind = g->packets - g->arrived;
		g->arrived_ns = now_ns;
	}
	on_way = g->packets - g->arrived - g->behind;
	if (on_way < 0) {	/* it was not lost */
		g->behind += on_way;
		on_way = 0;
	}
	if (on_way < l->window)
		g->credit = l->window - on_way;
	return false;
}

static __always_inline bool may_send(const struct load *l, struct generated *g)
{
	return (!l->rate || due(l, g)) && (!l->window || room(l, g));
}

struct waited {
	__u64 enough;
};

static long look(__u32 i, struct waited *waited)
{
	__u32 zero = 0;
	struct load *l = bpf_map_lookup_elem(&load, &zero);
	struct generated *g = bpf_map_lookup_elem(&generated, &zero);

	waited->enough = l && g && may_send(l, g);
	return waited->enough;
}

/*
 * Waits here, some microseconds: a frame that is dropped goes back to its pool under a lock, which the core that frees what
 * was sent would have to wait for.
 */
static __always_inline bool wait_until_sending(struct waited *waited)
{
	bpf_loop(512, look, waited, 0);
	return waited->enough;
}

static __always_inline void write_ipv4(void *at, const struct target *t, const struct load *l)
{
	struct iphdr *ip = at;

	ip->version = 4;
	ip->ihl = 5;
	ip->tos = 0;
	ip->tot_len = bpf_htons(l->frame_bytes - ETH_HLEN);
	ip->id = 0;
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	ip->check = t->ip_check;
	ip->saddr = l->source4;
	__builtin_memcpy(&ip->daddr, t->destination, sizeof(ip->daddr));
}

static __always_inline void write_ipv6(void *at, const struct target *t, const struct load *l)
{
	struct ipv6hdr *ip = at;

	*(__be32 *)at = bpf_htonl(0x60000000);
	ip->payload_len = bpf_htons(l->frame_bytes - ETH_HLEN - sizeof(*ip));
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, l->source6, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, t->destination, sizeof(ip->daddr));
}

/* UDP without checksum (for IPv6 that is RFC 6935), then the packet's number where there is room for it. */
static __always_inline void write_udp(void *at, void *end, const struct target *t, __u16 length, __u64 number)
{
	struct udphdr *udp = at;
	__u64 *sequence = (void *)(udp + 1);

	udp->source = t->source_port;
	udp->dest = bpf_htons(TEST_UDP_PORT);
	udp->len = bpf_htons(length);
	udp->check = 0;
	if ((void *)(sequence + 1) <= end)
		*sequence = bpf_cpu_to_be64(number);
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct generated *g;
	struct target *t;
	struct load *l;
	struct waited waited = {};
	__u32 zero = 0;
	long verdict;

	l = bpf_map_lookup_elem(&load, &zero);
	g = bpf_map_lookup_elem(&generated, &zero);
	if (!l || !g)
		return XDP_ABORTED;
	if (l->limit && g->packets >= l->limit)
		return XDP_DROP;
	if (!may_send(l, g) && !wait_until_sending(&waited)) {
		g->held++;
		return XDP_DROP;
	}
	t = bpf_map_lookup_elem(&targets, &g->next);
	if (!t || data + ETH_HLEN + sizeof(struct ipv6hdr) > end)
		return XDP_ABORTED;
	__builtin_memcpy(eth->h_dest, t->dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, l->smac, ETH_ALEN);
	eth->h_proto = t->protocol;
	if (t->protocol == bpf_htons(ETH_P_IP)) {
		if (data + ETH_HLEN + sizeof(struct iphdr) + sizeof(struct udphdr) > end)
			return XDP_ABORTED;
		write_ipv4(eth + 1, t, l);
		write_udp(data + ETH_HLEN + sizeof(struct iphdr), end, t,
			  l->frame_bytes - ETH_HLEN - sizeof(struct iphdr), g->packets);
	} else {
		if (data + ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct udphdr) > end)
			return XDP_ABORTED;
		write_ipv6(eth + 1, t, l);
		write_udp(data + ETH_HLEN + sizeof(struct ipv6hdr), end, t,
			  l->frame_bytes - ETH_HLEN - sizeof(struct ipv6hdr), g->packets);
	}
	if (++g->next >= l->target_count)
		g->next = 0;
	verdict = bpf_redirect_map(&out, 0, XDP_DROP);
	if (verdict == XDP_REDIRECT)
		g->packets++;
	else
		g->failed++;
	return verdict;
}

char _license[] SEC("license") = "Dual MIT/GPL";
