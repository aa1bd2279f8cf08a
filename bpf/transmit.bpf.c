// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Reads how full the ring is by which a CPU sends to a device. User space runs this (BPF_PROG_TEST_RUN), so it costs packets
 * nothing.
 *
 * It knows devices whose transmit queue is a ring in memory that is chosen by the sending CPU: veth (veth_xdp_xmit,
 * drivers/net/veth.c: the ring of the peer, which the peer's NAPI instance empties) and tun (tun_xdp_xmit,
 * drivers/net/tun.c). It only reads, and the ring may change meanwhile, so the answer may mix two moments.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "kernel.h"

/* The question and the answer. */
struct transmit {
	/* The question: a device of the caller's network namespace, and a CPU that may send by it. */
	__u32 ifindex;
	__u32 cpu;
	/* The number of rings; 0: not one of the devices above. */
	__u32 rings;
	/* Entries; 0: the ring cannot be seen. */
	__u32 size;
	/* The next entry to take, and the next to put; they are equal if the ring is empty or full. */
	__u32 head;
	__u32 tail;
	/* The ring is empty. */
	__u32 is_empty;
	/* The NAPI instance that empties the ring is scheduled. */
	__u32 is_taking;
	/* The CPU of the thread that empties the ring, + 1; 0: none is known. */
	__u32 taker;
	__u32 unused;
};

struct hlist_node {
	struct hlist_node *next;
} OF_THE_KERNEL;

struct hlist_head {
	struct hlist_node *first;
} OF_THE_KERNEL;

struct net___devices {
	struct hlist_head *dev_index_head;
} OF_THE_KERNEL;

struct nsproxy {
	struct net *net_ns;
} OF_THE_KERNEL;

struct thread_info {
	__u32 cpu;
} OF_THE_KERNEL;

struct task_struct {
	struct nsproxy *nsproxy;
	struct thread_info thread_info;
} OF_THE_KERNEL;

struct rtnl_link_ops {
	const char *kind;
} OF_THE_KERNEL;

struct net_device___transmit {
	int ifindex;
	struct hlist_node index_hlist;
	const struct rtnl_link_ops *rtnl_link_ops;
	unsigned int real_num_rx_queues;
	/* Since Linux 6.10. */
	__u8 priv[0];
} OF_THE_KERNEL;

/* include/linux/ptr_ring.h: taken entries are cleared later, so `consumer_head` shows which ones wait. */
struct ptr_ring {
	int producer;
	int consumer_head;
	int size;
	void **queue;
} OF_THE_KERNEL;

struct napi_struct {
	unsigned long state;
	struct task_struct *thread;
} OF_THE_KERNEL;

struct veth_rq {
	struct napi_struct xdp_napi;
	struct ptr_ring xdp_ring;
} OF_THE_KERNEL;

struct veth_priv {
	struct net_device___transmit *peer;
	struct veth_rq *rq;
} OF_THE_KERNEL;

struct tun_file {
	struct ptr_ring tx_ring;
} OF_THE_KERNEL;

struct tun_struct {
	struct tun_file *tfiles[256];
	unsigned int numqueues;
} OF_THE_KERNEL;

/* enum in include/linux/netdevice.h; bits of `state`. */
#define NAPI_SCHEDULED 1

/* NETDEV_HASHENTRIES, and more devices of one hash than any machine has. */
#define DEVICE_HASHES 256
#define MOST_OF_ONE_HASH 64

static __always_inline struct net_device___transmit *find_device(__u32 ifindex)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct net___devices *net = (void *)BPF_CORE_READ(task, nsproxy, net_ns);
	struct hlist_head *heads = BPF_CORE_READ(net, dev_index_head);
	__u64 at = bpf_core_field_offset(struct net_device___transmit, index_hlist);
	struct hlist_node *node = BPF_CORE_READ(&heads[ifindex % DEVICE_HASHES], first);

	for (int i = 0; i < MOST_OF_ONE_HASH && node; i++) {
		struct net_device___transmit *device = (void *)node - at;

		if ((__u32)BPF_CORE_READ(device, ifindex) == ifindex)
			return device;
		node = BPF_CORE_READ(node, next);
	}
	return 0;
}

/* netdev_priv() */
static __always_inline void *private_of(struct net_device___transmit *device)
{
	if (bpf_core_field_exists(device->priv))
		return (void *)device + bpf_core_field_offset(struct net_device___transmit, priv);
	return (void *)device + (bpf_core_type_size(struct net_device___transmit) + 31) / 32 * 32;
}

static __always_inline bool is_kind(struct net_device___transmit *device, const char *kind, int length)
{
	const char *found = BPF_CORE_READ(device, rtnl_link_ops, kind);
	char text[8] = {};

	if (!found || bpf_probe_read_kernel_str(text, sizeof(text), found) != length + 1)
		return false;
	for (int i = 0; i < length; i++)
		if (text[i] != kind[i])
			return false;
	return true;
}

static __always_inline void look_at(struct ptr_ring *ring, struct transmit *t)
{
	void **queue = BPF_CORE_READ(ring, queue), *next = 0;
	__u32 head;

	t->size = BPF_CORE_READ(ring, size);
	head = BPF_CORE_READ(ring, consumer_head);
	t->tail = BPF_CORE_READ(ring, producer);
	bpf_probe_read_kernel(&next, sizeof(next), &queue[head]);
	t->head = BPF_CORE_READ(ring, consumer_head);
	/* An entry that was taken meanwhile is cleared, so `next` alone does not show an empty ring. */
	t->is_empty = !next && t->head == head && head == t->tail;
}

static __always_inline void look_at_veth(struct net_device___transmit *device, struct transmit *t)
{
	struct veth_priv *priv = private_of(device), *others;
	struct net_device___transmit *peer = BPF_CORE_READ(priv, peer);
	struct task_struct *thread;
	struct veth_rq *rq;

	if (!peer)
		return;
	others = private_of(peer);
	t->rings = BPF_CORE_READ(peer, real_num_rx_queues);
	rq = BPF_CORE_READ(others, rq);
	if (!t->rings || !rq)
		return;
	rq = (void *)rq + bpf_core_type_size(struct veth_rq) * (t->cpu % t->rings);
	look_at((void *)rq + bpf_core_field_offset(struct veth_rq, xdp_ring), t);
	t->is_taking = BPF_CORE_READ(rq, xdp_napi.state) & NAPI_SCHEDULED;
	thread = BPF_CORE_READ(rq, xdp_napi.thread);
	if (thread && bpf_core_field_exists(thread->thread_info.cpu))
		t->taker = BPF_CORE_READ(thread, thread_info.cpu) + 1;
}

static __always_inline void look_at_tun(struct net_device___transmit *device, struct transmit *t)
{
	struct tun_struct *tun = private_of(device);
	struct tun_file *file = 0;

	t->rings = BPF_CORE_READ(tun, numqueues);
	if (!t->rings)
		return;
	bpf_probe_read_kernel(&file, sizeof(file),
			      (void *)tun + bpf_core_field_offset(struct tun_struct, tfiles) +
				      sizeof(file) * (t->cpu % t->rings));
	if (file)
		look_at((void *)file + bpf_core_field_offset(struct tun_file, tx_ring), t);
}

SEC("syscall")
int look_at_transmit(struct transmit *t)
{
	struct net_device___transmit *device = find_device(t->ifindex);

	if (!device)
		return 0;
	/* If the kernel lacks a kind, its code is not reached, and is left out at load. */
	if (bpf_core_type_exists(struct veth_priv) && is_kind(device, "veth", 4))
		look_at_veth(device, t);
	else if (bpf_core_type_exists(struct tun_struct) && is_kind(device, "tun", 3))
		look_at_tun(device, t);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
