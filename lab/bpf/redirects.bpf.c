/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Counts packets that are lost after a redirect by any program. Only tracepoints report some of these. It watches the
 * whole machine. Rows have the network namespace, because namespaces may have equal interface indexes.
 */
#include "lab.h"
#include <linux/errno.h>
#include <bpf/bpf_tracing.h>
#include "../../bpf/kernel.h"

enum why {
	/* Counted for the device that packets came by, which counts them as dropped, too. */
	WHY_OVER_MTU,
	WHY_DOWN,
	WHY_REDIRECT_FAILED,
	/* Counted for the device that packets should have left by. */
	WHY_RING_FULL,		/* the device took only some of the packets */
	WHY_REFUSED,		/* it took none: it, or its peer, cannot handle packets that XDP redirects */
	/* Counted for the CPU with this number, in namespace 0. */
	WHY_CPUMAP_FULL,
};

struct place {
	__u32 namespace;	/* inode */
	__u32 ifindex;
	__u32 why;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct place);
	__type(value, __u64);
} lost SEC(".maps");

const struct place *unused_place __attribute__((unused));	/* for BTF */

static __always_inline int count(__u32 namespace, __u32 ifindex, __u32 why, __u64 packets)
{
	struct place place = { .namespace = namespace, .ifindex = ifindex, .why = why };
	__u64 *sum = bpf_map_lookup_elem(&lost, &place);

	if (!sum) {
		__u64 none = 0;

		/* Another CPU may be making the row, too. */
		bpf_map_update_elem(&lost, &place, &none, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&lost, &place);
	}
	if (sum)
		*sum += packets;
	return 0;
}

/* bq_xmit_all, kernel/bpf/devmap.c: called once for a bulk of up to 16 packets. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(on_transmit, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	if (drops <= 0)
		return 0;
	return count(to->nd_net.net->ns.inum, to->ifindex, err < 0 ? WHY_REFUSED : WHY_RING_FULL, drops);
}

/* The packet was lost before it was in a bulk. The kernel reports only the device that it came by. */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(on_redirect, const struct net_device *from, const void *program, const void *to, int err)
{
	__u32 why = err == -EMSGSIZE ? WHY_OVER_MTU : err == -ENETDOWN ? WHY_DOWN : WHY_REDIRECT_FAILED;

	return count(from->nd_net.net->ns.inum, from->ifindex, why, 1);
}

SEC("tp_btf/xdp_cpumap_enqueue")
int BPF_PROG(on_enqueue, int map, unsigned int processed, unsigned int drops, int to_cpu)
{
	return drops ? count(0, to_cpu, WHY_CPUMAP_FULL, drops) : 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
