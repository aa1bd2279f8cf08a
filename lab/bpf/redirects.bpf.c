/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Packets lost after a redirect, whoever redirected them: only tracepoints tell of some of them. Watches the whole machine;
 * rows are by network namespace, as interface indexes repeat across them.
 */
#include "lab.h"
#include <linux/errno.h>
#include <bpf/bpf_tracing.h>
#include "../../bpf/kernel.h"

enum why {
	/* Of the device that packets came by; it counts them as dropped, too. */
	WHY_OVER_MTU,
	WHY_DOWN,
	WHY_REDIRECT_FAILED,
	/* Of the device that packets were to leave by. */
	WHY_RING_FULL,		/* it took fewer than there were */
	WHY_REFUSED,		/* it took none: it cannot transmit what XDP redirects, or its peer cannot receive it */
	/* Of the CPU with this number, in no namespace. */
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

/* bq_xmit_all, kernel/bpf/devmap.c: once for a bulk of up to 16 packets. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(on_transmit, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	if (drops <= 0)
		return 0;
	return count(to->nd_net.net->ns.inum, to->ifindex, err < 0 ? WHY_REFUSED : WHY_RING_FULL, drops);
}

/* The packet did not get as far as a bulk. The device is that by which it came: of the other one the kernel does not tell. */
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
