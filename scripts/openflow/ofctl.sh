# Sourced by test-openflow.sh: the output of ovs-ofctl for the switch, and what the switch then does.

ofctl_part() {
	PART=ovs-ofctl
	testbed hosts
	start_target 10,13 || return 0
	local version
	for version in 10 13; do
		PART="ovs-ofctl 1.${version#1}"
		V=$version
		descriptions
		rules
		timeouts_and_errors
		whole_files
		ports
		packets
	done
	groups
	meters
}

# Runs a command of ovs-ofctl on the switch.
of() { local command=$1; shift; ofctl "$V" "$command" "$SWITCH" "$@"; }

flows() { of dump-flows "$@"; }

no_flows() { ! flows | grep -q actions=; }

descriptions() {
	check 'probe' '' of probe
	check 'ping' '64 bytes from .*: xid=' of ping 64
	check 'show: datapath id' 'FEATURES_REPLY.*dpid:0000000000000001' of show
	check 'show: port 3' ' 3\(p3\): addr:' of show
	check 'show: get-config' 'GET_CONFIG_REPLY.*frags=normal' of show
	check 'dump-desc' 'Manufacturer: .' of dump-desc
	check 'dump-ports' 'reply.*: 3 ports|reply.*: 4 ports' of dump-ports
	check 'dump-ports of one' 'port +2: rx pkts=' of dump-ports 2
	check 'dump-tables' 'table 0' of dump-tables
	check 'get-frags' 'normal' of get-frags
	check 'queue-stats' 'QUEUE reply' of queue-stats
	[ "$V" = 13 ] || return 0
	check 'dump-ports-desc' ' 2\(p2\): addr:' of dump-ports-desc
	check 'dump-table-features' 'table 0' of dump-table-features
}

rules() {
	check 'del-flows' '' of del-flows
	check 'dump-flows: none' '' no_flows
	check 'add-flow' '' of add-flow 'cookie=0x5,priority=7,ip,nw_dst=10.0.0.0/8,actions=output:2'
	check 'dump-flows' 'cookie=0x5, .*n_packets=0, n_bytes=0, .*priority=7,ip,nw_dst=10.0.0.0/8 actions=output:2' flows
	check 'add-flow with everything' '' of add-flow \
		'priority=9,tcp,in_port=1,dl_vlan=5,dl_vlan_pcp=3,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_tos=32,tp_src=1,tp_dst=2,actions=mod_dl_src:02:00:00:00:00:09,mod_nw_src:1.2.3.4,mod_nw_tos:16,mod_tp_dst:80,output:1,output:3'
	check 'dump-flows: everything' 'actions=.*02:00:00:00:00:09.*1\.2\.3\.4.*80.*output:1,output:3' flows
	check 'dump-flows by match' 'tp_src=1,tp_dst=2 actions=' flows in_port=1
	check 'dump-flows by output port' 'actions=.*output:3' flows out_port=3
	check 'dump-aggregate' 'packet_count=0 byte_count=0 flow_count=2' of dump-aggregate
	check 'mod-flows' '' of mod-flows 'ip,actions=output:3'
	check 'mod-flows has changed both' '' same_count 2 'actions=output:3'
	check 'mod-flows --strict' '' of mod-flows --strict 'priority=7,ip,nw_dst=10.0.0.0/8,actions=output:1'
	check 'mod-flows --strict has changed one' '' same_count 1 'actions=output:1'
	check 'del-flows --strict of another priority' '' of del-flows --strict 'priority=8,ip,nw_dst=10.0.0.0/8'
	check 'del-flows --strict of another priority has deleted nothing' 'flow_count=2' of dump-aggregate
	check 'del-flows --strict' '' of del-flows --strict 'priority=7,ip,nw_dst=10.0.0.0/8'
	check 'del-flows --strict has deleted one' 'flow_count=1' of dump-aggregate
	check 'del-flows by output port' '' of del-flows out_port=3
	check 'del-flows by output port has deleted the other' 'flow_count=0' of dump-aggregate
}

# Are there $1 rules with actions $2?
same_count() { [ "$(flows | grep -c " $2\$")" = "$1" ]; }

timeouts_and_errors() {
	check 'add-flow for check_overlap' '' of add-flow 'priority=5,ip,nw_src=10.0.0.0/8,actions=drop'
	refused 'check_overlap' 'FMFC_OVERLAP' of add-flow 'priority=5,ip,nw_dst=10.0.0.0/8,check_overlap,actions=drop'
	check 'idle and hard timeouts' '' of add-flow 'idle_timeout=60,hard_timeout=1,udp,actions=output:1'
	check 'dump-flows: timeouts' 'idle_timeout=60, hard_timeout=1' flows
	check 'a hard timeout removes its rule' '' within 4 gone idle_timeout=60
	check 'del-flows' '' of del-flows
}

gone() { ! flows | grep -q "$1"; }

whole_files() {
	printf 'udp,tp_dst=%d,actions=output:2\n' $(seq 1 500) >"$WORK/flows"
	check 'add-flows' '' of add-flows "$WORK/flows"
	check 'add-flows has added 500' 'flow_count=500' of dump-aggregate
	check 'diff-flows: none' '' of diff-flows "$WORK/flows"
	printf 'udp,tp_dst=%d,actions=output:3\n' $(seq 400 700) >"$WORK/others"
	check 'replace-flows' '' of replace-flows "$WORK/others"
	check 'diff-flows after replace-flows' '' of diff-flows "$WORK/others"
	check 'replace-flows has left 301' 'flow_count=301' of dump-aggregate
	# Bundles are an extension of 1.3.
	if [ "$TARGET" != millrace ]; then
		[ "$V" = 10 ] || check 'add-flows --bundle' '' of add-flows --bundle "$WORK/flows"
	else
		refused 'add-flows --bundle' 'BAD_EXPERIMENTER|BAD_VENDOR|version negotiation failed' of add-flows --bundle "$WORK/flows"
	fi
	check 'del-flows' '' of del-flows
	check 'del-flows has left none' 'flow_count=0' of dump-aggregate
}

ports() {
	check 'mod-port down' '' of mod-port 3 down
	check 'show: PORT_DOWN' '' within 3 port_says 3 PORT_DOWN
	check 'mod-port up' '' of mod-port 3 up
	check 'show: not PORT_DOWN' '' within 3 port_says 3 '(config: +0|NO_FLOOD)'
	if [ "$V" = 10 ]; then
		check 'mod-port noflood' '' of mod-port 2 noflood
		check 'show: NO_FLOOD' '' port_says 2 NO_FLOOD
		check 'mod-port flood' '' of mod-port 2 flood
	fi
	check 'mod-port no-packet-in' '' of mod-port 2 no-packet-in
	check 'show: NO_PACKET_IN' '' port_says 2 NO_PACKET_IN
	check 'mod-port packet-in' '' of mod-port 2 packet-in
	check 'show: nothing special' '' port_says 2 'config: +0'
}

# Do the lines of port $1 in `show` contain $2?
port_says() { of show | grep -A 4 -E "^ $1\(" | grep -m 1 config: | grep -qE "$2"; }

# An Ethernet frame of 60 bytes with unused addresses and type 0x88b5 (local experiments).
readonly FRAME=0200000000ff0200000000ee88b5$(printf '5a%.0s' $(seq 46))

packets() {
	local log=$WORK/monitor-$V.log seen=$WORK/seen.log
	check 'rules between hosts 1 and 2' '' of add-flows - <<<$'in_port=1,actions=output:2\nin_port=2,actions=output:1'
	check 'all packets pass, also the first' '20 received' in_ns h1 ping -q -c 20 -i 0.05 -W 2 10.0.0.2
	check 'dump-flows: counters' '' within 3 counted
	check 'del-flows' '' of del-flows
	check 'a rule that drops' '' of add-flow 'priority=1,actions=drop'
	check 'nothing passes a rule that drops' '0 received' in_ns_fails h1 ping -q -c 2 -i 0.2 -W 1 10.0.0.2
	start h2 "$seen" tcpdump --immediate-mode -lxni eth0 ether proto 0x88b5
	start peer "$log" env OVS_RUNDIR="$WORK" ovs-ofctl -O "OpenFlow$V" monitor "$SWITCH" 65535
	check 'tcpdump listens' '' within 10 grep -q listening "$seen"
	check 'packet-out' '' of packet-out "in_port=controller packet=$FRAME actions=output:2"
	check 'packet-out arrives' '' within 3 grep -q '5a5a 5a5a' "$seen"
	check 'a rule to the controller' '' of add-flow 'priority=9,arp,actions=CONTROLLER:65535'
	check 'monitor: packet-in' '' within 5 asked_for "$log" 'PACKET_IN.*'
	check 'monitor: the packet' '' grep -qE 'arp_spa=10.0.0.1,arp_tpa=10.0.0.77' "$log"
	check 'a rule that ends' '' of add-flow 'send_flow_rem,hard_timeout=1,udp,actions=drop'
	check 'monitor: flow-removed' '' within 4 grep -q 'FLOW_REMOVED.*reason=hard' "$log"
	in_ns h3 ip link set eth0 down
	check 'monitor: port-status' '' within 5 grep -qE 'PORT_STATUS.*MOD: 3\(p3\)' "$log"
	in_ns h3 ip link set eth0 up
	check 'del-flows' '' of del-flows
}

# Does the rule count an ARP request (60 bytes, or 42 without padding) and 20 echo requests of 98 bytes?
counted() { flows | grep -qE 'n_packets=21, n_bytes=20(20|02), .*in_port=1'; }

in_ns_fails() { ! in_ns "$@"; }

# Host 1 looks for a neighbour. Does the log have $2?
asked_for() { in_ns h1 ping -c 1 -W 1 10.0.0.77; grep -qE "$2" "$1"; }

groups() {
	check 'dump-group-features' 'max_groups=' of dump-group-features
	check 'add-group' '' of add-group 'group_id=1,type=indirect,bucket=output:2'
	check 'add-group: all' '' of add-group 'group_id=2,type=all,bucket=output:2,bucket=output:3'
	check 'add-group: select' '' of add-group 'group_id=3,type=select,bucket=weight:1,output:2,bucket=weight:3,output:3'
	check 'add-group: fast failover' '' of add-group 'group_id=4,type=ff,bucket=watch_port:3,output:3,bucket=watch_port:2,output:2'
	check 'dump-groups' 'group_id=3,type=select,bucket=.*weight:3.*actions=output:3' of dump-groups
	refused 'a group that exists' 'GROUP_EXISTS' of add-group 'group_id=1,type=indirect,bucket=output:3'
	refused 'a rule to a group that does not exist' 'BAD_OUT_GROUP' of add-flow 'actions=group:9'
	check 'mod-group' '' of mod-group 'group_id=1,type=indirect,bucket=output:1'
	check 'dump-groups after mod-group' 'group_id=1,type=indirect,bucket=.*actions=output:1' of dump-groups
	check 'rules to groups' '' of add-flows - <<<$'in_port=1,actions=group:4\nin_port=2,actions=group:1'
	in_ns h3 ip link set eth0 down
	check 'fast failover: the first bucket is down' '' within 5 in_ns h1 ping -c 1 -W 1 10.0.0.2
	check 'fast failover: all packets pass' '20 received' in_ns h1 ping -q -c 20 -i 0.05 -W 2 10.0.0.2
	in_ns h3 ip link set eth0 up
	check 'dump-group-stats' 'group_id=4,.*ref_count=1,packet_count=[1-9]' of dump-group-stats
	check 'del-groups' '' of del-groups
	check 'del-groups has deleted their rules' 'flow_count=0' of dump-aggregate
}

meters() {
	check 'meter-features' 'max_meter' of meter-features
	check 'add-meter' '' of add-meter 'meter=1,pktps,burst,band=type=drop,rate=10,burst_size=10'
	check 'dump-meters' 'meter=1 pktps burst bands=' of dump-meters
	refused 'a meter that exists' 'METER_EXISTS' of add-meter 'meter=1,kbps,band=type=drop,rate=10'
	refused 'a rule to a meter that does not exist' 'UNKNOWN_METER|INVALID_METER' of add-flow 'actions=meter:9,output:1'
	check 'rules, one with a meter' '' of add-flows - <<<$'ip,in_port=1,actions=meter:1,output:2\narp,in_port=1,actions=output:2\nin_port=2,actions=output:1'
	check 'few packets pass' '5 received' in_ns h1 ping -q -c 5 -i 0.3 -W 1 10.0.0.2
	check 'most of many packets do not pass' ' [1-5]?[0-9] received' in_ns h1 ping -q -c 200 -i 0.01 -W 1 10.0.0.2
	check 'meter-stats' 'meter:1 flow_count:1 packet_in_count:20[0-9]' of meter-stats
	check 'mod-meter' '' of mod-meter 'meter=1,kbps,band=type=drop,rate=1000'
	check 'dump-meters after mod-meter' 'meter=1 kbps bands=' of dump-meters
	check 'del-meters' '' of del-meters
	check 'del-meters has deleted their rules' 'flow_count=2' of dump-aggregate
}

# Paths of the user plane are logical ports. The first path gets what rules send it. The second one has no worker, because its
# router does not exist.
paths_part() {
	PART=paths
	[ "$TARGET" = millrace ] || return 0
	testbed hosts
	in_ns h1 ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev eth0
	local MORE='
[workers]
cores = "0-1"
[[path]]
name = "ruled"
class = { flow_rules = true }
chain = [{ element = "forward", port = "p2" }]
[[path]]
name = "without-a-router"
router = "none"
class = { protocol = "sctp" }
chain = ["discard"]
'
	start_target 10,13 || return 0
	local version
	for version in 10 13; do
		PART="paths 1.${version#1}"
		V=$version
		logical_ports
	done
}

logical_ports() {
	# OpenFlow 1.0 has no error for the input port of a packet-out.
	local up='state: +0' bad_in_port=OFPBRC_EPERM seen=$WORK/udp-$V.log before
	[ "$V" = 10 ] || { up='state: +LIVE' bad_in_port=OFPBRC_BAD_PORT; }
	check 'show: the first' ' 65024\(path:ruled\): addr:00:00:00:00:00:00' of show
	check 'show: the second, with a shortened name' ' 65025\(path:without-a-\): addr:' of show
	check 'show: a worker has the first' '' within 5 state_says 65024 "$up"
	check 'show: no worker has the second' '' state_says 65025 LINK_DOWN
	check 'dump-ports' 'reply.*: 5 ports' of dump-ports
	check 'add-flow' '' of add-flow 'udp,tp_dst=4000,actions=output:65024'
	check 'dump-flows' 'tp_dst=4000 actions=output:65024' flows
	check 'dump-flows by output port' 'tp_dst=4000' flows out_port=65024
	start h2 "$seen" tcpdump --immediate-mode -lni eth0 udp dst port 4000
	check 'tcpdump listens' '' within 10 grep -q listening "$seen"
	before=$(given)
	check 'host 1 sends ten packets' '' in_ns h1 bash -c 'for n in {1..10}; do echo >/dev/udp/10.0.0.2/4000; done'
	check 'the worker sends them' '' within 5 eval '[ "$(grep -c "10.0.0.2.4000" "$seen")" = 10 ]'
	check 'dump-ports of one: the path was given ten more' '' within 5 eval '[ "$(given)" = $((before + 10)) ]'
	refused 'packet-out' 'OFPBAC_BAD_OUT_PORT' of packet-out "in_port=controller packet=$FRAME actions=output:65024"
	refused 'packet-out from there' "$bad_in_port" of packet-out "in_port=65024 packet=$FRAME actions=output:2"
	refused 'mod-port down' 'OFPPMFC_BAD_CONFIG|OFPBRC_EPERM' of mod-port 65024 down
	refused 'a rule that does more' 'OFPBAC_BAD_OUT_PORT' of add-flow 'udp,tp_dst=4001,actions=output:65024,output:2'
	refused 'a third path' 'OFPBAC_BAD_OUT_PORT' of add-flow 'udp,tp_dst=4001,actions=output:65026'
	check 'del-flows' '' of del-flows
}

# As port_says, for the port's state.
state_says() { of show | grep -A 4 -E "^ $1\(" | grep -m 1 state: | grep -qE "$2"; }

# Packets that the first path was given.
given() { of dump-ports 65024 | sed -n 's/.*tx pkts=\([0-9]*\).*/\1/p'; }
