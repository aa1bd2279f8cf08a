/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* A packet as the stages see it, and Ethernet with up to two VLAN tags. It is parsed once; later stages use its offsets. */
#pragma once

#define ETH_P_IP	0x0800
#define ETH_P_ARP	0x0806
#define ETH_P_8021Q	0x8100
#define ETH_P_8021AD	0x88A8
#define ETH_P_IPV6	0x86DD

#define ETHERNET_BYTES	14
#define TAG_BYTES	4

struct packet {
	struct xdp_md *ctx;
	const struct nexthop *out;	/* where it leaves, once known */
	__u64 connection;	/* of find_connection(); 0: none */
	__u64 out_mac;		/* destination MAC it leaves with, read once: bytes 0..5 in memory order */
	__u32 cpu;
	__u32 payer;		/* its row in charges: the router, else the port */
	__u32 frame_bytes;	/* whole frame, all buffers */
	__u32 ip_bytes;		/* the IP packet, without Ethernet padding */
	__u32 vlan;		/* VLAN key */
	__u32 queue_nexthop;	/* the next hop of a row of `queues`; 0: no row fits */
	__u32 queue_mtu;
	__u16 ip_offset;
	__u16 ether_type;	/* of what follows the tags, host byte order */
	__u16 port;		/* port id it came in by */
	__u16 interface;	/* interface it is for; 0: none */
	__u8  router;
	__u8  flags;		/* enum interface_flags */
	__u8  tags;
	bool  multi_buffer;
	bool  port_ready;	/* PORT_READY and so on of its port */
	bool  port_no_recv;
	bool  port_hands_over;
	bool  port_splits;
	/* Constants in each program: the compiler removes what they switch off. */
	bool  explain;
	bool  shared;		/* shares of the core may be in force */
	bool  handed;		/* it came from another core, and goes to no third one */
	bool  by_rules;		/* flow rules may change it */
	bool  capture;		/* it may be captured or sampled; only then these are used: */
	__u8  wanted;		/* bits: enum capture_why */
	__u16 egress;		/* port id by which a flow rule sends it */
	__u32 core;		/* to which it is handed, + 1 */
};

/*
 * For a value with which few packets leave a function. The empty statement gives their way to the end a place of its own. Without
 * it, the compiler would set what the end reads before each test, for all packets.
 */
#define RARE(value_) ({ asm volatile(""); (value_); })

static __always_inline void *packet_data(const struct packet *p)
{
	return (void *)(long)p->ctx->data;
}

static __always_inline void *packet_end(const struct packet *p)
{
	return (void *)(long)p->ctx->data_end;
}

/*
 * Headers are read and written in whole words, though they are at two-byte boundaries. Every machine with an XDP driver
 * does that in one instruction. With packed structures the compiler would access single bytes.
 */
struct ethernet {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
};

struct vlan_tag {
	__be16 tci;
	__be16 type;		/* of what follows */
};

static __always_inline bool is_tag(__u16 type)
{
	return type == ETH_P_8021Q || type == ETH_P_8021AD;
}

static __always_inline __u32 vlan_word(__u16 type, __u16 tci)
{
	return (tci & VLAN_VID) | (type == ETH_P_8021AD ? VLAN_AD : 0) | VLAN_PRESENT;
}

/* Only a priority tag (802.1p): VLAN 0, of either type. */
static __always_inline bool is_priority_tag(__u32 vlan)
{
	return (vlan & ~VLAN_AD) == VLAN_PRESENT;
}

/* The part that is read of the kernel's structure of this name; BTF says where the kernel has it. */
struct xdp_buff {
	__u32 flags;
} __attribute__((preserve_access_index));

#define XDP_FLAGS_HAS_FRAGS 1

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* One load if the kernel shows its own structure (since Linux 6.2), else a call of some 4 ns. */
static __always_inline bool has_frags(struct packet *p)
{
	if (bpf_ksym_exists(bpf_cast_to_kern_ctx)) {
		struct xdp_buff *buff = bpf_cast_to_kern_ctx(p->ctx);

		return buff->flags & XDP_FLAGS_HAS_FRAGS;
	}
	return bpf_xdp_get_buff_len(p->ctx) > (__u64)(packet_end(p) - packet_data(p));
}

/* Fills vlan, tags, ether_type, ip_offset and the lengths. A third tag is left as an unknown EtherType. */
static __always_inline enum reason parse_ethernet(struct packet *p)
{
	void *data = packet_data(p), *end = packet_end(p);
	struct ethernet *ethernet = data;

	if (data + sizeof(*ethernet) > end)
		return RARE(REASON_MALFORMED);
	p->multi_buffer = has_frags(p);
	p->frame_bytes = p->multi_buffer ? bpf_xdp_get_buff_len(p->ctx) : end - data;
	p->ether_type = bpf_ntohs(ethernet->type);
	p->ip_offset = ETHERNET_BYTES;
	p->vlan = 0;
	p->tags = 0;
	if (!is_tag(p->ether_type))
		return REASON_NONE;

	struct vlan_tag *tag = data + ETHERNET_BYTES;
	if ((void *)(tag + 2) > end)
		return RARE(REASON_MALFORMED);
	p->vlan = vlan_word(p->ether_type, bpf_ntohs(tag->tci));
	p->ether_type = bpf_ntohs(tag->type);
	p->ip_offset += TAG_BYTES;
	p->tags = 1;
	if (!is_tag(p->ether_type))
		return REASON_NONE;

	p->vlan |= vlan_word(p->ether_type, bpf_ntohs(tag[1].tci)) << VLAN_INNER_SHIFT;
	p->ether_type = bpf_ntohs(tag[1].type);
	p->ip_offset += TAG_BYTES;
	p->tags = 2;
	return REASON_NONE;
}
