/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The hash with which Linux chooses a member of a multipath route. logic/src/multipath.rs holds the same code, and its head
 * cites the kernel. ipv4.h and ipv6.h select the fields of a packet that are hashed.
 */
#pragma once

/* Only the kernel can compute the hash. This value is never a hash, because hashes have 31 bits. */
#define MULTIPATH_UNSURE (1ULL << 32)

#define ICMP_BYTES	8
#define NO_PORTS	255

struct sip {
	__u64 a, b, c, d;
};

static __always_inline __u64 rotate(__u64 word, __u32 bits)
{
	return word << bits | word >> (64 - bits);
}

static __always_inline void sip_round(struct sip *s)
{
	s->a += s->b;
	s->b = rotate(s->b, 13) ^ s->a;
	s->a = rotate(s->a, 32);
	s->c += s->d;
	s->d = rotate(s->d, 16) ^ s->c;
	s->a += s->d;
	s->d = rotate(s->d, 21) ^ s->a;
	s->c += s->b;
	s->b = rotate(s->b, 17) ^ s->c;
	s->c = rotate(s->c, 32);
}

static __always_inline void sip_word(struct sip *s, __u64 word)
{
	s->d ^= word;
	sip_round(s);
	sip_round(s);
	s->a ^= word;
}

static __always_inline struct sip sip_begin(const struct router *router)
{
	__u64 k0 = *(volatile const __u64 *)&router->multipath_key[0];
	__u64 k1 = *(volatile const __u64 *)&router->multipath_key[1];

	return (struct sip){ k0 ^ 0x736f6d6570736575ULL, k1 ^ 0x646f72616e646f6dULL, k0 ^ 0x6c7967656e657261ULL,
			     k1 ^ 0x7465646279746573ULL };
}

static __always_inline __u64 sip_end(struct sip *s, __u64 bytes)
{
	sip_word(s, bytes << 56);
	s->c ^= 0xff;
	sip_round(s);
	sip_round(s);
	sip_round(s);
	sip_round(s);
	__u32 hash = s->a ^ s->b ^ s->c ^ s->d;
	return (hash ? hash : 1) >> 1;
}

/* basic, tags, vlan, cvlan, keyid and ports of struct flow_keys; icmp stays 0. Ports are sorted as they lie in memory. */
static __always_inline void sip_keys(struct sip *s, __u8 protocol, __u32 label, __u32 ports)
{
	__u16 first = ports, second = ports >> 16;

	sip_word(s, (__u64)protocol << 16 | (__u64)label << 32);
	sip_word(s, 0);
	sip_word(s, 0);
	sip_word(s, (first <= second ? (__u64)second << 16 | first : (__u64)first << 16 | second) << 32);
}

/* The offset of the ports within a protocol's header. ESP and AH use the SPI. */
static __always_inline __u32 ports_at(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_DCCP:
	case IPPROTO_ESP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
		return 0;
	case IPPROTO_AH:
		return 4;
	default:
		return NO_PORTS;
	}
}

/*
 * Reads the ports from a header with `left` bytes up to the end of the IP packet. Returns false if the packet has ports
 * that this program cannot see.
 */
static __always_inline bool read_ports(const void *header, const void *end, __u8 protocol, __u32 left, __u32 *ports)
{
	__u32 at = ports_at(protocol);

	*ports = 0;
	if (at == NO_PORTS || left < at + 4)
		return true;
	const __u32 *word = header + at;
	if ((const void *)(word + 1) > end)
		return false;
	*ports = *word;
	return true;
}
