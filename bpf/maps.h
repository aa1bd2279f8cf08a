/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The maps, and what user space fixes at load. Sizes marked 1 are set by router/src/plane/ before loading. Mapped ones
 * (BPF_F_MMAPABLE) are written and read by user space without system calls.
 */
#pragma once

/* Constants from here on: the verifier prunes what they switch off. */
const volatile __u32 interface_rows = 1;	/* rows of `counters` per CPU */
const volatile __u32 interface_mask = 0;	/* buckets of `interface_index` - 1 */
const volatile __u32 neighbour_mask = 0;	/* buckets of `neighbour_index` - 1 */
const volatile __u32 sample_mask = 127;		/* time one packet in (mask + 1) per CPU */
const volatile __u64 exception_cost_ns = 0;	/* 1/rate of packets that need the slow path, per CPU and payer; 0: no limit */
const volatile __u64 control_cost_ns = 0;	/* the same for ARP and neighbour discovery */
const volatile __u64 police_burst_ns = 100000000;	/* credit a bucket can hold */

#define ARRAY(name_, type_, entries_, flags_)		\
	struct {					\
		__uint(type, BPF_MAP_TYPE_ARRAY);	\
		__uint(map_flags, flags_);		\
		__uint(max_entries, entries_);		\
		__type(key, __u32);			\
		__type(value, type_);			\
	} name_ SEC(".maps")

ARRAY(control, struct control, 1, BPF_F_MMAPABLE);
ARRAY(port_index, struct port, PORT_INDEX_SIZE, BPF_F_MMAPABLE);
ARRAY(interface_index, struct interface_bucket, 1, BPF_F_MMAPABLE);
ARRAY(routers, struct router, MAX_ROUTERS, BPF_F_MMAPABLE);
ARRAY(fib, struct fib_block, 1, BPF_F_MMAPABLE);
ARRAY(fib_tails, struct fib_tail, 1, BPF_F_MMAPABLE);
ARRAY(nexthops, struct nexthop, 1, BPF_F_MMAPABLE);
ARRAY(neighbour_index, struct neighbour_bucket, 1, BPF_F_MMAPABLE);
ARRAY(counters, struct interface_counters, 1, BPF_F_MMAPABLE);
ARRAY(charges, struct charges, 1, BPF_F_MMAPABLE);
ARRAY(policers, struct policer, 1, 0);
ARRAY(trace, struct trace, 1, 0);

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} tx_ports SEC(".maps");

#define ROW(map_, row_) ({ __u32 row__ = (row_); bpf_map_lookup_elem(&map_, &row__); })
