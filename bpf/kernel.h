/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The parts of kernel structures that tracepoint programs read, also the lab's. BTF says where the kernel has them. */
#pragma once

#define OF_THE_KERNEL __attribute__((preserve_access_index))

struct ns_common {
	__u32 inum;
} OF_THE_KERNEL;

struct net {
	struct ns_common ns;
} OF_THE_KERNEL;

typedef struct {
	struct net *net;
} OF_THE_KERNEL possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} OF_THE_KERNEL;
