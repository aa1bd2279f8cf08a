/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Makes packets more expensive for the core that forwards them, as tunnels or encryption would. It waits after each bulk
 * that leaves by one device, in the thread that forwarded it (bq_xmit_all, kernel/bpf/devmap.c).
 */
#include "lab.h"
#include <bpf/bpf_tracing.h>
#include "../../bpf/kernel.h"

const volatile __u32 namespace;	/* inode */
const volatile __u32 ifindex;
const volatile __u32 work_ns;	/* for each packet */

/* A bulk has up to 16 packets, and reading the clock takes 25 ns. */
#define MOST_LOOKS (1 << 14)

static long is_over(__u32 i, __u64 *until_ns)
{
	return bpf_ktime_get_ns() >= *until_ns;
}

SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(after_transmit, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	__u64 until_ns;

	if (sent <= 0 || to->ifindex != ifindex || to->nd_net.net->ns.inum != namespace)
		return 0;
	until_ns = bpf_ktime_get_ns() + (__u64)sent * work_ns;
	bpf_loop(MOST_LOOKS, is_over, &until_ns, 0);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
