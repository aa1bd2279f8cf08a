// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The kernel plane: one pass per packet on one core, no queue (M2). Packets that it does not forward go up to the kernel
 * untouched, each with a counted reason. Read forward() first: it is the whole path. There are several programs, so that
 * packets do not pay for features that are not used:
 *   millrace             routes
 *   millrace_shared      the same, while a core is full
 *   millrace_flow        the same, while there are flow rules
 *   millrace_paths, millrace_flow_paths   the same without and with flow rules, while there are paths of the user plane
 *   millrace_flow_core   goes on with a packet on the core that a rule has named or chosen
 *   millrace_core        goes on with a packet on a core that shares a queue
 *   millrace_..._capture the same as without `capture`, while somebody captures or samples packets
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "abi.h"
#include "flow_abi.h"
#include "path_abi.h"
#include "backlog.h"
#include "maps.h"
#include "packet.h"
#include "account.h"
#include "tables.h"
#include "egress.h"
#include "multipath.h"
#include "ip.h"
#include "firewall.h"
#include "connection.h"
#include "ipv4.h"
#include "ipv6.h"
#include "shares.h"
#include "learned.h"
#include "queues.h"
#include "hand_over.h"
#include "split.h"
#include "spill.h"
#include "losses.h"
#include "flow_key.h"
#include "flow_rules.h"
#include "flow_cache.h"
#include "flow_rewrite.h"
#include "flow_choice.h"

/* Did no daemon confirm the mirror in time? If so, Linux forwards. */
static __always_inline bool mirror_expired(void)
{
	const struct control *c = ROW(control, 0);

	return !c || bpf_jiffies64() > *(volatile const __u64 *)&c->deadline_jiffies;
}

/* The same for flow rules, which the configuration may let go on without a daemon. */
static __always_inline bool rules_expired(void)
{
	const struct control *c = ROW(control, 0);

	return !c || bpf_jiffies64() > *(volatile const __u64 *)&c->rules_deadline_jiffies;
}

/* Do flow rules drop packets even past their deadline? */
static __always_inline bool rules_keep_drops(void)
{
	const struct control *c = ROW(control, 0);

	return c && *(volatile const __u64 *)&c->rules_keep_drops;
}

/* Neighbour discovery goes up with a reason of its own, because it and ARP have a reserve. */
static __always_inline bool neighbour_discovery(const struct packet *p)
{
	const struct ipv6 *ip = packet_data(p) + p->ip_offset;
	const __u8 *type = (const void *)(ip + 1);

	return p->ether_type == ETH_P_IPV6 && (const void *)(type + 1) <= packet_end(p) &&
	       ip->next_header == IPPROTO_ICMPV6 && *type >= ICMPV6_ROUTER_SOLICITATION && *type <= ICMPV6_REDIRECT;
}

static __always_inline enum reason unclassified(const struct packet *p, __u64 mac)
{
	if (p->ether_type == ETH_P_ARP)
		return RARE(REASON_ARP);
	if (neighbour_discovery(p))
		return RARE(REASON_NEIGHBOUR_DISCOVERY);
	return mac & 1 ? REASON_BROADCAST : REASON_NOT_OUR_MAC;
}

/* Finds the interface, and so the router, by destination MAC, port and VLAN (M1). */
static __always_inline enum reason classify(struct packet *p)
{
	void *data = packet_data(p);
	__u64 mac;

	if (data + ETHERNET_BYTES > packet_end(p))
		return RARE(REASON_MALFORMED);
	mac = *(__u64 *)data & 0xffffffffffffULL;
	__u64 slot = find_queue_row(p, mac);
	if (!slot)
		slot = find_interface(mac, p->port, p->vlan);
	/* A frame of VLAN 0 is untagged unless there is a device of VLAN 0 (check_vlan_id in net/core/dev.c). */
	if (!slot && is_priority_tag(p->vlan))
		slot = find_priority_tagged(mac, p->port);
	if (!slot)
		return unclassified(p, mac);
	p->interface = slot >> 32;
	p->payer = p->router = slot >> 48;
	p->flags = slot >> 56;
	trace_step(p, TRACE_INTERFACE, p->interface, p->router);
	return REASON_NONE;
}

/* Has a policy of this router changed that user space has not read yet? (policy.bpf.c) */
static __always_inline bool policy_changed(__u32 router)
{
	const __u64 *changes = ROW(policy, router);

	return !changes || *(volatile const __u64 *)changes;
}

static __always_inline enum reason route(struct packet *p)
{
	const struct router *router = ROW(routers, p->router);
	enum reason reason;

	if (!router)
		return RARE(REASON_ROUTER_NOT_ACCELERATED);
	if (policy_changed(p->router))
		return RARE(REASON_POLICY_CHANGED);
	if (p->shared && cut_by_share(p))
		return RARE(REASON_OVER_SHARE);
	switch (p->ether_type) {
	case ETH_P_IP:
		return p->flags & IF_IPV4 ? forward_ipv4(p, router) : RARE(REASON_ROUTER_NOT_ACCELERATED);
	case ETH_P_IPV6:
		if (!(p->flags & IF_IPV6))
			return RARE(REASON_ROUTER_NOT_ACCELERATED);
		reason = forward_ipv6(p, router);
		return (reason == REASON_LOCAL || reason == REASON_LOCAL_PREFIX) && neighbour_discovery(p) ?
		       REASON_NEIGHBOUR_DISCOVERY : reason;
	case ETH_P_ARP:
		return RARE(REASON_ARP);
	default:
		return RARE(REASON_NOT_IP);
	}
}

/*
 * Forwards as Linux would. may_hand_over is a constant here and below. A program for other cores must not use the map of
 * cores: the map holds the program, so neither would ever be freed.
 */
static __always_inline enum reason forward_normal(struct packet *p, bool may_hand_over)
{
	enum reason reason;
	int fate;

	if (mirror_expired())
		return RARE(REASON_FALLBACK);
	if (!p->port_ready)
		return RARE(REASON_PORT_NOT_READY);
	if ((reason = parse_ethernet(p)) != REASON_NONE)
		return reason;
	trace_step(p, TRACE_PARSED, p->vlan, p->ether_type);
	if ((reason = classify(p)) != REASON_NONE)
		return reason;
	fate = may_hand_over ? hand_over_part(p) : SPLIT_STAYS;
	capture_handed(p, fate);
	if (fate != SPLIT_STAYS)
		return fate == SPLIT_DROPPED ? RARE(REASON_SPLIT_LEAVES) : REASON_NONE;
	return route(p);
}

#include "path.h"
#include "flow.h"

/* How a packet comes in. */
enum entry {
	ROUTED,
	SHARED,			/* the same, while shares are in force */
	BY_RULES,
	HANDED_OVER,		/* by rules, from another core */
	PART,			/* of a split queue, from the core that receives it */
	EXPLAINED,
};

/*
 * `paths`: packets of paths go to workers first. (This is not two more entries: clang would not see that a value compared
 * with two constants is constant itself, and would leave flow rules in programs that do not use them.)
 */
static __always_inline enum reason forward(struct packet *p, enum entry entry, bool paths)
{
	enum reason reason;

	__u64 port = find_port(p->ctx->ingress_ifindex);
	__u16 port_flags = port >> 48;
	if (!port)
		return RARE(REASON_NOT_A_PORT);
	p->port = port >> 32;
	p->port_ready = port_flags & PORT_READY;
	p->port_no_recv = port_flags & PORT_NO_RECV;
	p->port_hands_over = port_flags & PORT_HANDS_OVER;
	/* While a port enters generic mode, it may have PORT_SPLITS without PORT_HANDS_OVER. */
	p->port_splits = (port_flags & PORT_SPLITS) && p->port_hands_over;
	p->payer = MAX_ROUTERS + p->port;
	trace_step(p, TRACE_PORT, p->port, port_flags);
	/* Paths do not get packets that rules refuse (OFPPC_NO_RECV), as long as rules are in force. */
	bool refused = entry == BY_RULES && p->port_no_recv && (!rules_expired() || rules_keep_drops());
	if (paths && !refused && taken_by_path(p, &reason))
		return reason;
	if (entry == BY_RULES || entry == HANDED_OVER)
		return forward_by_rules(p, entry == BY_RULES, paths);
	return forward_normal(p, entry == ROUTED || entry == SHARED);
}

static __always_inline int run(struct xdp_md *ctx, enum entry entry, bool paths, bool capture)
{
	struct packet packet = {
		.ctx = ctx,
		.explain = entry == EXPLAINED,
		.shared = entry != ROUTED && entry != EXPLAINED,
		.handed = entry == HANDED_OVER || entry == PART,
		.by_rules = entry == BY_RULES,
		.capture = capture,
		.cpu = bpf_get_smp_processor_id(),
		.payer = CHARGE_ROWS - 1,
	};
	__u64 start_ns = sample_start(&packet);

	if (capture) {
		packet.egress = CAPTURE_NO_PORT;
		packet.wanted = capture_begin(ctx, packet.cpu);
	}
	enum reason reason = forward(&packet, entry, paths);

	if (reason != REASON_NONE) {
		int action = pass_up(&packet, reason);

		if (action != XDP_DROP)
			look_at_error(&packet);
		return action;
	}
	count_forwarded(&packet, start_ns);
	/* Flows are steered by the destination with which they arrive. */
	if (queue_rows && start_ns && !has_new_destination(&packet))
		sample_flow(&packet);
	if (capture)
		capture_end(&packet, REASON_NONE);
	trace_step(&packet, TRACE_VERDICT, REASON_NONE, XDP_REDIRECT);
	return XDP_REDIRECT;
}

SEC("xdp.frags")
int millrace(struct xdp_md *ctx)
{
	return run(ctx, ROUTED, false, false);
}

/* Routes, with shares of a full core. */
SEC("xdp.frags")
int millrace_shared(struct xdp_md *ctx)
{
	return run(ctx, SHARED, false, false);
}

/* Asks flow rules before it routes. */
SEC("xdp.frags")
int millrace_flow(struct xdp_md *ctx)
{
	return run(ctx, BY_RULES, false, false);
}

/*
 * For packets that another core hands over (rule_cores). They come without the index of their queue, and one at a time on
 * each core: cpu_map_bpf_prog_run (kernel/bpf/cpumap.c) disables softirqs, as in a driver.
 */
SEC("xdp.frags/cpumap")
int millrace_flow_core(struct xdp_md *ctx)
{
	return run(ctx, HANDED_OVER, false, false);
}

/* As millrace, for packets of a queue that is shared among cores (split_cores). */
SEC("xdp.frags/cpumap")
int millrace_core(struct xdp_md *ctx)
{
	return run(ctx, PART, false, false);
}

/* As millrace and millrace_flow, while there are paths of the user plane. Shares may be in force with both. */
SEC("xdp.frags")
int millrace_paths(struct xdp_md *ctx)
{
	return run(ctx, SHARED, true, false);
}

SEC("xdp.frags")
int millrace_flow_paths(struct xdp_md *ctx)
{
	return run(ctx, BY_RULES, true, false);
}

/* For captures and samples. Shares may be in force with all of them. */
SEC("xdp.frags")
int millrace_capture(struct xdp_md *ctx)
{
	return run(ctx, SHARED, false, true);
}

SEC("xdp.frags")
int millrace_paths_capture(struct xdp_md *ctx)
{
	return run(ctx, SHARED, true, true);
}

SEC("xdp.frags")
int millrace_flow_capture(struct xdp_md *ctx)
{
	return run(ctx, BY_RULES, false, true);
}

SEC("xdp.frags")
int millrace_flow_paths_capture(struct xdp_md *ctx)
{
	return run(ctx, BY_RULES, true, true);
}

/* For frames of user space that go to the kernel's stack. */
SEC("xdp.frags")
int millrace_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/* As millrace_paths, for `millrace explain`: records its steps in `trace`, and changes no counter, budget or next hop. */
SEC("xdp.frags")
int millrace_explain(struct xdp_md *ctx)
{
	return run(ctx, EXPLAINED, true, false);
}

/* User space runs this, as it cannot read jiffies itself. */
SEC("syscall")
int millrace_clock(void *ctx)
{
	struct control *c = ROW(control, 0);

	if (c)
		c->jiffies = bpf_jiffies64();
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
