/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The layout of the maps of the user plane's paths; abi.h has the other maps. A packet's key is compared with rows of
 * masked words, one for each class, in the order of the paths. The first row that fits decides. logic::paths::class says
 * what a class is, and logic::paths::rows makes rows of classes.
 *
 * Who writes what
 *   user space writes: path_classes (the half that is not in use), path_control, path_sockets
 *   the program writes: path_counts and path_scratch, each CPU its own rows
 */
#pragma once

#define MAX_PATHS	64
#define PATH_WORDS	7	/* of a key */
#define PATH_KEY_BYTES	(8 * PATH_WORDS)
#define PATH_DEPTH	64	/* a class may match bytes of the frame up to here */
#define PATH_TABLES	4
#define PATH_TABLE_SIZE	256
#define PATH_NOWHERE	0xff	/* no table; no bytes */

/* Words of a key. A field that a packet lacks, or does not have whole, is 0. */
enum path_word {
	PATH_WORD_INGRESS,	/* bits 0..7 port id, 16..31 router + 1, 32..47 EtherType, 48..55 IP protocol, 56..63 enum path_flags */
	PATH_WORD_PORTS,	/* bits 0..31 transport ports as loaded, source in the low half */
	PATH_WORD_MAC,		/* bits 0..47 destination, in memory order */
	PATH_WORD_SOURCE,	/* IPv6: two words as loaded; IPv4: the low half of the first */
	PATH_WORD_DESTINATION = 5,	/* the same */
};

enum path_flags {
	PATH_IPV4 = 1,
	PATH_IPV6 = 2,
	PATH_IP = 4,		/* one of them */
	PATH_PORTS = 8,		/* TCP, UDP or SCTP, and no fragment */
	PATH_SYN = 16,		/* it opens a TCP connection */
};

/* What happens to a path's packets that no worker can take. */
enum path_otherwise {
	PATH_UP,		/* they go on as if there were no path */
	PATH_DROP,		/* they are dropped: packets that a path encrypts must not leave in the clear */
};

struct path_row {		/* 128 bytes */
	__u64 mask[PATH_WORDS];
	__u64 value[PATH_WORDS];
	__u16 bytes_mask;	/* two bytes of the frame, as loaded */
	__u16 bytes_value;
	__u8  bytes_offset;	/* PATH_NOWHERE: no bytes are compared */
	__u8  path;		/* the path's number */
	__u8  otherwise;	/* enum path_otherwise */
	__u8  pad[9];
};

/*
 * All classes: path_classes[path_control.half]. They are constant while that half is in use. Few of many rows can fit a
 * packet. Each table says which ones may, by one byte of the key or of the frame: bit i is row i.
 */
struct path_classes {
	__u64 rows;		/* bit i: row i is a class */
	__u64 drops;		/* the rows of these with PATH_DROP */
	__u32 asks_router;	/* 1: one of them tests the router */
	__u8  place[PATH_TABLES];	/* a byte of the key or, from PATH_KEY_BYTES on, of the frame; PATH_NOWHERE: no more tables */
	__u16 own_router[MAX_PORTS];	/* for packets to no interface, by port: router + 1; 0: none */
	struct path_row row[MAX_PATHS];
	__u64 may[PATH_TABLES][PATH_TABLE_SIZE];
};

struct path_control {
	__u64 half;		/* the half of path_classes in use; this one word switches it */
	__u64 most_bytes;	/* the longest frame that workers have room for */
	__u64 sockets;		/* kernel's id of path_sockets */
	__u64 held;		/* 1: no worker gets packets, because the tables of workers are not kept up to date */
	__u64 drops;		/* bit i: path i is PATH_DROP, for packets that flow rules give to it */
};

/* Reasons why no worker gets a packet, from REASON_PATH_UNSURE on. */
#define PATH_REASONS	4

/* Counts of a path: path_counts[cpu * MAX_PATHS + path]. */
struct path_count {		/* two cache lines */
	__u64 packets;		/* given to its worker */
	__u64 bytes;
	__u64 ring_full;	/* given, but lost because the ring was full */
	__u64 refused;		/* given, but lost for another reason */
	__u64 up[PATH_REASONS];	/* not given: they went on as if there were no path */
	__u64 dropped[PATH_REASONS];	/* not given: they were dropped */
	__u64 pad[4];
};

/* The program's working memory, one row per CPU. */
struct path_scratch {
	__u64 key[PATH_WORDS];
	struct flow_layout layout;
	__u16 port;
	__u16 router;		/* + 1 */
	__u32 pad;
} __attribute__((aligned(64)));
