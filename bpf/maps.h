/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The maps, and the constants that user space sets at load. router/src/plane/ sets sizes that are 1 here. User space reads
 * and writes mapped ones (BPF_F_MMAPABLE) without system calls.
 */
#pragma once

/* These are constants for the verifier, which removes the code that they switch off. */
const volatile __u32 interface_rows = 1;	/* rows of `counters` per CPU */
const volatile __u32 interface_mask = 0;	/* buckets of `interface_index` - 1 */
const volatile __u32 neighbour_mask = 0;	/* buckets of `neighbour_index` - 1 */
const volatile __u32 connection_mask = 0;	/* blocks of `connections` - 1 */
const volatile __u32 candidate_mask = 0;	/* rows of each CPU in `candidates`, without LOCAL_CANDIDATES, minus 1 */
const volatile __u64 connection_seed = 0;	/* of the hash of connections: random */
const volatile bool queue_rows = false;	/* a port has a classifier: `queues` has rows, and flows are sampled */
const volatile bool splits_queues = true;	/* false: for frames of user space, which have no queue */
const volatile __u32 core_rows = 1;		/* rows of `core_queues` for each CPU map: the number of cores */
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
ARRAY(firewalls, struct firewall, MAX_ROUTERS, BPF_F_MMAPABLE);
ARRAY(interface_groups, __u64, 1, BPF_F_MMAPABLE);
ARRAY(policy, __u64, MAX_ROUTERS, BPF_F_MMAPABLE);
ARRAY(fib, struct fib_block, 1, BPF_F_MMAPABLE);
ARRAY(fib_tails, struct fib_tail, 1, BPF_F_MMAPABLE);
ARRAY(nexthops, struct nexthop, 1, BPF_F_MMAPABLE);
ARRAY(neighbour_index, struct neighbour_bucket, 1, BPF_F_MMAPABLE);
ARRAY(queues, struct queue_row, 1, BPF_F_MMAPABLE);
ARRAY(flow_samples, struct flow_samples, 1, BPF_F_MMAPABLE);
ARRAY(counters, struct interface_counters, 1, BPF_F_MMAPABLE);
ARRAY(charges, struct charges, 1, BPF_F_MMAPABLE);
ARRAY(shares, struct share, 1, BPF_F_MMAPABLE);
ARRAY(policers, struct policer, 1, 0);
ARRAY(backlogs, struct backlog, 1, BPF_F_MMAPABLE);	/* by CPU; one map for all programs (router/src/plane/backlog.rs) */

/* Records are struct learned_note: the destinations of ICMP errors (learned.h). */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, LEARNED_RING_BYTES);
} learned SEC(".maps");
ARRAY(learned_counts, __u64, MAX_ROUTERS, BPF_F_MMAPABLE);

/* Connections (connection.h). Records of the ring are struct connection_note. */
ARRAY(connections, struct connection, 1, BPF_F_MMAPABLE);
ARRAY(connection_counts, __u64, 2 * MAX_ROUTERS, BPF_F_MMAPABLE);
ARRAY(candidates, __u64, 1, 0);	/* cpu * (candidate_mask + 1 + LOCAL_CANDIDATES) + a part of the hash */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CONNECTION_RING_BYTES);
} connection_notes SEC(".maps");

ARRAY(trace, struct trace, 1, 0);
ARRAY(core_queues, struct core_queue, 1, BPF_F_MMAPABLE);
ARRAY(split_index, __u64, MAX_PORTS * MAX_QUEUES, BPF_F_MMAPABLE);
ARRAY(split_queues, struct split_queue, SPLIT_QUEUES, BPF_F_MMAPABLE);
ARRAY(helped_napis, __u64, SPLIT_QUEUES, BPF_F_MMAPABLE);

/* Cores that are ready to share queues, by number. An entry runs millrace_core. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} split_cores SEC(".maps");

/* Flow rules (flow_abi.h); only programs with flow rules use these. */
const volatile __u32 flow_rows = 1;		/* rows of `flow_counters` per CPU: highest rule id + 1 */
ARRAY(flow_masks, struct flow_mask, FLOW_MASKS, BPF_F_MMAPABLE);
ARRAY(flow_tables, struct flow_table, FLOW_RULES, BPF_F_MMAPABLE);
ARRAY(flow_index, struct flow_bucket, 1, BPF_F_MMAPABLE);
ARRAY(flow_rules, struct flow_rule, 1, BPF_F_MMAPABLE);
ARRAY(flow_rest, struct flow_rest, 1, BPF_F_MMAPABLE);
ARRAY(flow_patches, struct flow_patch, 1, BPF_F_MMAPABLE);
ARRAY(flow_steps, struct flow_step, 1, BPF_F_MMAPABLE);
ARRAY(flow_groups, struct flow_group, 1, BPF_F_MMAPABLE);
ARRAY(flow_meters, struct flow_meter, 1, BPF_F_MMAPABLE);
ARRAY(flow_cache, struct flow_cached, 1, BPF_F_MMAPABLE);
ARRAY(flow_cache_rest, struct flow_rest, 1, 0);
ARRAY(flow_seen, struct flow_tags, 1, 0);
ARRAY(flow_counters, struct flow_count, 1, BPF_F_MMAPABLE);
ARRAY(flow_scratch, struct flow_scratch, 1, BPF_F_MMAPABLE);

/* Cores that flow rules hand packets to, by number. An entry runs millrace_flow_core; it is made when a rule needs it. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} rule_cores SEC(".maps");

/* By queue, as split_index: the place of the core that polls it. */
ARRAY(rule_seats, __u64, MAX_PORTS * MAX_QUEUES, 0);
ARRAY(flow_choices, __u64, CHOICE_SLOTS, BPF_F_MMAPABLE);
ARRAY(core_rings, struct core_ring, 2, BPF_F_MMAPABLE);

/* Captures (capture.h); only programs with captures use these. Records of the ring are struct capture_record. */
ARRAY(capture_control, struct capture_control, 1, BPF_F_MMAPABLE);
ARRAY(capture_rows, struct capture_row, 1, BPF_F_MMAPABLE);	/* by CPU */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, CAPTURE_RING_BYTES);
} capture_ring SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SAMPLE_RING_BYTES);
} sample_ring SEC(".maps");	/* the same without `frame`, for another reader */

/* Paths of the user plane (path_abi.h); used by millrace_paths, millrace_flow_paths and millrace_explain. */
ARRAY(path_control, struct path_control, 1, BPF_F_MMAPABLE);
ARRAY(path_classes, struct path_classes, 2, BPF_F_MMAPABLE);
ARRAY(path_counts, struct path_count, 1, BPF_F_MMAPABLE);
ARRAY(path_scratch, struct path_scratch, 1, 0);

/*
 * RX rings of workers: (port id * MAX_QUEUES + queue) * MAX_PATHS + path. A socket gets packets of its own port and queue
 * only. The kernel empties the slot of a socket that is closed.
 */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, MAX_PORTS * MAX_QUEUES * MAX_PATHS);
	__type(key, __u32);
	__type(value, __u32);
} path_sockets SEC(".maps");

/* Sets of ports, one map each: a packet to a set goes to all of them except its ingress port. */
struct port_set {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct port_set);
} flow_sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} flow_notices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} tx_ports SEC(".maps");

/*
 * The ports that flow rules send to. They are not in tx_ports, because a port may be taken from rules alone (OFPPC_NO_FWD), and
 * rules outlive a generation.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} rule_ports SEC(".maps");

#define ROW(map_, row_) ({ __u32 row__ = (row_); bpf_map_lookup_elem(&map_, &row__); })
