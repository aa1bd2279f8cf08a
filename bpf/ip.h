/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The headers of IPv4 and IPv6. */
#pragma once

#define IPV4_PLAIN	0x45	/* version 4, header of five words: no options */
#define IPV4_BYTES	20
#define IPV4_FRAGMENT	0x3fff	/* more fragments, or an offset */
#define IPV4_OFFSET	0x1fff

/* Types of ICMP errors, as bits: unreachable, source quench, redirect, time exceeded, parameter problem. */
#define ICMP_ERRORS	(1U << 3 | 1U << 4 | 1U << 5 | 1U << 11 | 1U << 12)

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 source;
	__be32 destination;
};

#define IPV6_BYTES	40
#define NEXTHDR_HOP	0	/* hop-by-hop options: the one header a router must look at; jumbograms have it */
#define NEXTHDR_ROUTING	43
#define NEXTHDR_FRAGMENT 44
#define NEXTHDR_DEST	60
#define IPPROTO_ICMPV6	58
#define ICMPV6_LAST_ERROR 4	/* unreachable, too big, time exceeded, parameter problem: 1 to 4 */

struct ipv6 {
	__u8 version_class;
	__u8 class_label[3];
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__be64 source[2];
	__be64 destination[2];
};
