/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Why a packet was not forwarded by the kernel plane: the one list, read by the C compiler (abi.h) and by
 * logic/build.rs, which makes the Rust enum `Reason` of it. Order is the ABI of the `charges` map; append at the end.
 *
 * REASON(NAME, class, "text for people")
 *   class pass      went up to the kernel, never policed: for the box itself (applications, routing protocols), or
 *                   forwarded by Linux as it would be without us
 *   class exception went up to the kernel, policed per router: mostly dropped there, or answered with an ICMP error, which
 *                   costs more than forwarding
 *   class control   went up to the kernel, policed by the reserve: ARP and neighbour discovery
 *   class drop      dropped
 *   class taken     dropped here, once user space had a copy: it does the rest
 *   class lost      forwarded, and lost on its way out: charged to the egress port, if one is known (losses.h)
 */
REASON(FALLBACK,            pass,      "no daemon has confirmed the mirror in time; the kernel forwards")
REASON(NOT_A_PORT,          pass,      "arrived on a device Millrace does not know")
REASON(PORT_NOT_READY,      pass,      "the port is not trusted for acceleration (see `millrace ports`)")
REASON(MALFORMED,           pass,      "truncated or inconsistent headers")
REASON(NOT_IP,              pass,      "neither IPv4 nor IPv6")
REASON(NOT_OUR_MAC,         pass,      "no interface has this port, VLAN and destination MAC")
REASON(ROUTER_NOT_ACCELERATED, pass,   "the interface's router is not safe to accelerate (see `millrace routers`, `millrace interfaces`)")
REASON(LOCAL,               pass,      "addressed to the router itself")
REASON(BROADCAST,           pass,      "broadcast or multicast destination")
REASON(ARP,                 control,   "ARP")
REASON(NEIGHBOUR_DISCOVERY, control,   "IPv6 neighbour discovery")
REASON(IPV4_BAD_HEADER,     exception, "IPv4 version, header length, total length or checksum is wrong")
REASON(IPV4_OPTIONS,        exception, "IPv4 options")
REASON(IPV6_BAD_HEADER,     exception, "IPv6 version or payload length is wrong")
REASON(IPV6_EXTENSION,      exception, "IPv6 extension header a router must look at")
REASON(TTL_EXCEEDED,        exception, "TTL or hop limit is 1 or less")
REASON(BAD_SOURCE,          exception, "source address that Linux validates: local, loopback, multicast, zero or link-local")
REASON(REVERSE_PATH,        exception, "source fails reverse path filtering")
REASON(NO_ROUTE,            exception, "no route")
REASON(SPECIAL_ROUTE,       exception, "blackhole, unreachable, prohibit or throw route")
REASON(COMPLEX_ROUTE,       pass,      "route with encapsulation, TOS, source or a next hop form the fast path does not take")
REASON(EGRESS_NOT_A_PORT,   pass,      "the route leaves through a device that is not a Millrace port")
REASON(UNRESOLVED,          exception, "the next hop's MAC address is not known yet")
REASON(SAME_BOX,            pass,      "the next hop is another interface of this box on the same port")
REASON(SAME_INTERFACE,      pass,      "leaves through the interface it came in: the kernel may owe a redirect")
REASON(OVER_MTU,            exception, "longer than the egress MTU")
REASON(TX_NOT_READY,        pass,      "the egress port is not ready to transmit (see `millrace interfaces`)")
REASON(NO_HEADROOM,         exception, "the frame has no room for the egress VLAN tag or cannot be trimmed")
REASON(MULTI_BUFFER,        pass,      "multi-buffer frame to a port that cannot send one")
REASON(MAP_FULL,            pass,      "a table entry is missing because a map was full")
REASON(POLICED,             drop,      "over the router's limit for packets that need the slow path")
REASON(CONTROL_POLICED,     drop,      "over the reserve for ARP and neighbour discovery")
REASON(SOURCE_UNSURE,       pass,      "only the kernel can tell whether the source passes reverse path filtering")
REASON(TX_RING_FULL,        lost,      "redirected, but the TX ring of the egress port was full")
REASON(TX_REFUSED,          lost,      "redirected, but the driver of the egress port refused it")
REASON(PORT_DOWN,           lost,      "redirected, but the egress port was down")
REASON(OVER_PORT_MTU,       lost,      "redirected, but longer than the egress port's own MTU")
REASON(REDIRECT_FAILED,     lost,      "redirected, but it did not get to the egress port")
REASON(RULE_DROP,           drop,      "a flow rule drops it")
REASON(RULE_LOCAL,          pass,      "a flow rule sends it to the kernel")
REASON(RULE_SLOW,           taken,     "user space does with it what the flow rules say")
REASON(RULE_NO_PORT,        drop,      "a flow rule sends it to a port that cannot transmit")
REASON(RULE_SLOW_LOST,      drop,      "user space was to do what the flow rules say, and did not take it")
REASON(RULE_NO_ROOM,        drop,      "what a flow rule puts in front of it finds no room")
REASON(RULE_CORE_FULL,      lost,      "a flow rule hands it to another core, whose queue was full")
REASON(RULE_CONTROLLER,     taken,     "a flow rule sends it to the controllers only")
REASON(RULE_CONTROLLER_LOST, drop,     "a flow rule sends it to the controllers only, and user space did not take it")
REASON(OVER_SHARE,          drop,      "its core is full, and its router has had its share of it (see `millrace routers`)")
REASON(SPLIT_CORE_FULL,     lost,      "the core that shares its queue had no room for it")
REASON(SPLIT_LEAVES,        drop,      "its flow is leaving a core that shares its queue and cannot keep up")
