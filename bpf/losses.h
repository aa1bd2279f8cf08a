/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Counts packets that are lost after the redirect. run() has counted them as forwarded, but the egress port or another core
 * did not take them. The kernel reports this only to tracepoints. Such a packet is charged to the egress port (to no port
 * if it was for a core) with a reason of class `lost`. One for a worker is charged to its ingress port, as dropped. The
 * tracepoint of transmit fires once for a bulk of up to 16 packets. Only the generation in charge counts, so a swap counts
 * nothing twice. These programs also keep core_queues, each generation for its own cores.
 */
#pragma once

#include "kernel.h"

/* The network namespace of the ports: tracepoints report all namespaces, and an ifindex may be in several. */
const volatile __u32 netns_inode = 0;

static __always_inline __u64 port_of(const struct net_device *device)
{
	return device->nd_net.net->ns.inum == netns_inode ? find_port(device->ifindex) : 0;
}

/* The first row of core_queues for a CPU map of this generation; -1: the map is not of this generation. */
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

/* The row of packets whose port is not known. */
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
 * bq_xmit_all, kernel/bpf/devmap.c: the driver took `sent` packets and not the `drops` after them, or none because of
 * `err`. A bulk has one source. Both ends are checked, as other programs may redirect to a port of ours.
 */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(lost_on_transmit, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	__u64 port;

	if (drops <= 0 || !port_of(from) || !(port = port_of(to)))
		return 0;
	return count_lost(MAX_ROUTERS + (__u16)(port >> 32), err ? REASON_TX_REFUSED : REASON_TX_RING_FULL, drops);
}

/*
 * __xdp_enqueue and xdp_ok_fwd_dev: the packet did not get into a bulk. `slot` is one of tx_ports, a core, or one of
 * path_sockets. A packet that a worker's socket did not take is charged to its ingress port (path.h counts it by path).
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

/* bq_flush_to_queue, kernel/bpf/cpumap.c, once for up to 8 packets: a core's queue had no room for `drops` of them. */
SEC("tp_btf/xdp_cpumap_enqueue")
int BPF_PROG(lost_on_hand_over, int map, unsigned int processed, unsigned int drops, int core)
{
	int rows = first_row(map);

	if (!drops || rows < 0)
		return 0;
	count_dropped(rows + core, drops);
	return count_lost(NO_PORT, rows ? REASON_SPLIT_CORE_FULL : REASON_RULE_CORE_FULL, drops);
}

/* The core of this thread of a CPU map, "cpumap/CORE/map:ID". The thread runs elsewhere while that core is offline. */
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
 * cpu_map_kthread_run, kernel/bpf/cpumap.c, once for up to 8 packets, after those that it redirected have left. A packet
 * that was counted as handed over before `mark` was set may still wait in another CPU's bulk until its poll ends, and
 * others may overtake it. A packet that was handed over a tick before `mark` was set cannot.
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
		/* If some of these are dropped later, `done` gets there later; queue_is_past() also sees an empty queue. */
		q->mark = *(volatile __u64 *)&q->handed - *(volatile __u64 *)&q->dropped;
	}
	return 0;
}

/* generic_xdp_tx, net/core/dev.c: a port's TX queue was stopped, in generic mode. No program of ours returns XDP_TX. */
SEC("tp_btf/xdp_exception")
int BPF_PROG(lost_in_generic_mode, const struct net_device *to, const void *program, __u32 action)
{
	__u64 port;

	if (action != XDP_TX || !(port = port_of(to)))
		return 0;
	return count_lost(MAX_ROUTERS + (__u16)(port >> 32), REASON_TX_RING_FULL, 1);
}
