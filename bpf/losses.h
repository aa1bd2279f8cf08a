/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Packets lost after the redirect: run() has counted them as forwarded, but the egress port, or the core that they were to go on
 * on, did not take them, and of that the kernel tells only tracepoints. Charged to the egress port (a core's to no port) with a
 * reason of class `lost`; what was for a worker, to the port it came in by, as dropped. The transmit one fires once for a bulk of up to 16 packets. Only the generation in charge counts, so
 * that a swap counts nothing twice. What is handed to a core is accounted for here, too, in core_queues, by each generation of its
 * own cores.
 */
#pragma once

#include "kernel.h"

/* The network namespace of the ports: tracepoints tell of every namespace, and ifindexes repeat across them. */
const volatile __u32 netns_inode = 0;

static __always_inline __u64 port_of(const struct net_device *device)
{
	return device->nd_net.net->ns.inum == netns_inode ? find_port(device->ifindex) : 0;
}

/* The first row of core_queues for a CPU map by which this generation hands packets over; -1: it does not. */
static __always_inline int first_row(__u32 map)
{
	const struct control *c = ROW(control, 0);

	if (!c)
		return -1;
	if (*(volatile const __u64 *)&c->core_map == map)
		return 0;
	return *(volatile const __u64 *)&c->split_map == map ? (int)core_rows : -1;
}

static __always_inline void count_dropped(__u32 row, __u64 packets)
{
	struct core_queue *q = ROW(core_queues, row);

	if (q)
		__sync_fetch_and_add(&q->dropped, packets);
}

/* Of whom no port is known. */
#define NO_PORT (CHARGE_ROWS - 1)

/* `payer`: a port's row of charges, or NO_PORT. */
static __always_inline int count_lost(__u32 payer, enum reason reason, __u64 packets)
{
	const struct control *c = ROW(control, 0);
	struct charges *lost;

	if (!c || !*(volatile const __u64 *)&c->counts_losses || payer >= CHARGE_ROWS)
		return 0;
	lost = ROW(charges, bpf_get_smp_processor_id() * CHARGE_ROWS + payer);
	if (lost)
		lost->packets[reason] += packets;
	return 0;
}

/*
 * bq_xmit_all, kernel/bpf/devmap.c: the driver took `sent` and not the `drops` after them, or none and said why. A bulk
 * has one source; both ends are looked at, as other programs may redirect to a port of ours.
 */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(lost_on_transmit, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	__u64 port;

	if (drops <= 0 || !port_of(from) || !(port = port_of(to)))
		return 0;
	return count_lost(MAX_ROUTERS + (__u16)(port >> 32), err ? REASON_TX_REFUSED : REASON_TX_RING_FULL, drops);
}

/* __xdp_enqueue and xdp_ok_fwd_dev: the packet did not get as far as a bulk. `slot` is that of tx_ports, or a core, or a path's: what
 * a worker's socket does not take is charged to the port it came in by (path.h counts it by path).
 */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(lost_on_redirect, const struct net_device *from, const void *program, const void *to, int err,
	     enum bpf_map_type type, __u32 map, __u32 slot)
{
	enum reason reason = err == -ENETDOWN ? REASON_PORT_DOWN :
			     err == -EMSGSIZE ? REASON_OVER_PORT_MTU :
			     err == -EOPNOTSUPP ? REASON_TX_REFUSED : REASON_REDIRECT_FAILED;

	int rows = type == BPF_MAP_TYPE_CPUMAP ? first_row(map) : -1;

	if (rows >= 0)
		count_dropped(rows + slot, 1);
	if (!port_of(from))
		return 0;
	if (type == BPF_MAP_TYPE_CPUMAP)
		return count_lost(NO_PORT, reason, 1);
	if (type == BPF_MAP_TYPE_XSKMAP)
		return count_lost(MAX_ROUTERS + (__u16)(port_of(from) >> 32),
				  err == -ENOBUFS ? REASON_PATH_RING_FULL : REASON_PATH_REFUSED, 1);
	return slot < MAX_PORTS ? count_lost(MAX_ROUTERS + slot, reason, 1) : 0;
}

/* bq_flush_to_queue, kernel/bpf/cpumap.c, once for up to 8 packets: the queue of a core had no room for `drops` of them. */
SEC("tp_btf/xdp_cpumap_enqueue")
int BPF_PROG(lost_on_hand_over, int map, unsigned int processed, unsigned int drops, int core)
{
	int rows = first_row(map);

	if (!drops || rows < 0)
		return 0;
	count_dropped(rows + core, drops);
	return count_lost(NO_PORT, rows ? REASON_SPLIT_CORE_FULL : REASON_RULE_CORE_FULL, drops);
}

/* The core that this thread of a CPU map is for, "cpumap/CORE/map:ID": it runs elsewhere while that is offline. */
static __always_inline __u32 core_of_thread(void)
{
	char name[16] = {};
	__u32 core = 0;

	bpf_get_current_comm(name, sizeof(name));
	for (__u32 i = sizeof("cpumap/") - 1; i < sizeof("cpumap/65535") - 1 && name[i] >= '0' && name[i] <= '9'; i++)
		core = core * 10 + name[i] - '0';
	return core;
}

/*
 * cpu_map_kthread_run, kernel/bpf/cpumap.c, once for up to 8 packets, when what was redirected of them has left. A packet that was
 * counted as handed over before `mark` was set may wait in another CPU's bulk until the end of its poll and be overtaken
 * meanwhile; not so one that was there a tick before.
 */
SEC("tp_btf/xdp_cpumap_kthread")
int BPF_PROG(done_on_core, int map, unsigned int processed)
{
	int rows = first_row(map);
	struct core_queue *q;
	__u64 now;

	if (!processed || rows < 0 || !(q = ROW(core_queues, rows + core_of_thread())))
		return 0;
	/* Two threads may have the same core for a moment, after it was offline. */
	__sync_fetch_and_add(&q->done, processed);
	now = bpf_jiffies64();
	if (now != q->mark_jiffies && q->done >= q->mark) {
		q->drained_jiffies = q->before_jiffies;
		q->before_jiffies = q->mark_jiffies;
		q->mark_jiffies = now;
		/* What is dropped later is not done: then it takes longer, and an empty queue tells for itself. */
		q->mark = *(volatile __u64 *)&q->handed - *(volatile __u64 *)&q->dropped;
	}
	return 0;
}

/* generic_xdp_tx, net/core/dev.c: the queue of a port was stopped, in generic mode. No program of ours returns XDP_TX. */
SEC("tp_btf/xdp_exception")
int BPF_PROG(lost_in_generic_mode, const struct net_device *to, const void *program, __u32 action)
{
	__u64 port;

	if (action != XDP_TX || !(port = port_of(to)))
		return 0;
	return count_lost(MAX_ROUTERS + (__u16)(port >> 32), REASON_TX_RING_FULL, 1);
}
