# Sourced by test-openflow.sh: os-ken's learning switches as controllers, while three hosts talk through the switch.

learning() {
	learning_switch 10 simple_switch
	stop_all
	learning_switch 13 simple_switch_13
}

# Arguments: OpenFlow version, application.
learning_switch() {
	PART="learning switch 1.${1#1}"
	testbed hosts
	local log=$WORK/learning.log from to seen flows
	start_controller "$log" "$APPLICATIONS/$2.py" || return 0
	start_target "$1" tcp:192.0.2.2:6653 || return 0
	if ! within 15 learned; then
		fail "a first ping passes" "$(tail -n 3 "$log")"
		return 0
	fi
	for from in 1 2 3; do
		for to in 1 2 3; do
			[ $from != $to ] || continue
			check "host $from reaches host $to" '3 received' in_ns h$from ping -c 3 -i 0.2 -W 2 10.0.0.$to
		done
	done
	flows=$(ofctl "$1" dump-flows "$SWITCH")
	for to in 1 2 3; do
		check "rules to host $to appear" "dl_dst=02:00:00:00:00:0$to actions=output:$to" echo "$flows"
	done
	# Once the rules are there, no packet goes to the controller.
	seen=$(grep -c 'packet in' "$log")
	check "200 pings pass" '200 received' in_ns h1 ping -q -c 200 -i 0.01 -W 2 10.0.0.2
	check "none of them goes to the controller" "^$seen$" grep -c 'packet in' "$log"
	check "its rule counts them" '' within 3 counted_by "$1" 200
}

learned() { in_ns h1 ping -c 1 -W 1 10.0.0.2; }

# With OpenFlow version $1, does the rule from host 1 to host 2 count at least $2 packets?
counted_by() {
	local rule='n_packets=\([0-9]*\),.*dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02' packets
	packets=$(ofctl "$1" dump-flows "$SWITCH" | sed -n "s/.* $rule.*/\1/p")
	[ "${packets:-0}" -ge "$2" ]
}
