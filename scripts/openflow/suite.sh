# Sourced by test-openflow.sh: os-ken's public test suites of OpenFlow switches, with an Open vSwitch as the tester.
# There is no wait between the barrier reply of a rule and the packet that needs the rule (the suite's --interval is 0).

suite() {
	PART=suite
	suite_run 10 "$(suite_cases)/of10" || return 0
	count_cases "$WORK/suite.log"
}

# The suites of 1.3. Each can also be run by its own name. suite13.txt has the expected outcome of each case.
suite13() { suite13_action && suite13_match && suite13_group && suite13_meter; }
suite13_action() { suite13_part action; }
suite13_match() { suite13_part match; }
suite13_group() { suite13_part group; }
suite13_meter() { suite13_part meter; }

suite13_part() {
	PART="suite 1.3"
	local cases=$WORK/cases outcome name
	rm -rf "$cases"
	cp -r "$(suite_cases)/of13/$1" "$cases"
	# On a busy machine the tester, an Open vSwitch in userspace, cannot forward 10,000 full frames a second.
	rm -f "$cases"/01_DROP_00_KBPS_02_100M.json "$cases"/01_DROP_01_PKTPS_02_10000.json
	# The default of OpenFlow 1.3. Otherwise a packet without a rule would reach the controller late, when the next case waits for
	# another packet.
	MISS=drop
	suite_run 13 "$cases" || return 0
	if ! "$PYTHON" scripts/openflow/outcomes.py "$1" "$WORK/suite.log" scripts/openflow/suite13.txt >"$WORK/outcomes"; then
		fail "outcomes of $1 are read"
	fi
	while IFS=$'\t' read -r outcome name; do
		case $outcome in
		ok) pass "$name" ;;
		*) fail "$name" "$outcome" ;;
		esac
	done <"$WORK/outcomes"
	stop_all
}

suite_cases() {
	"$PYTHON" -c 'import os_ken.tests.switch as s, os; print(os.path.dirname(s.__file__))'
}

# Runs the cases of directory $2 with OpenFlow version $1.
suite_run() {
	local log=$WORK/suite.log version=openflow$1
	testbed tester
	# The controller ends after its report.
	start_controller "$log" --test-switch-target 1 --test-switch-tester 2 --test-switch-target-version "$version" \
		--test-switch-tester-version "$version" --test-switch-interval 0 --test-switch-dir "$2" \
		os_ken.tests.switch.tester || return 1
	local controller=${PIDS[-1]}
	bridge peer t "OpenFlow$1" 0000000000000002 tcp:127.0.0.1:6653
	uncached peer
	start_target "$1" tcp:192.0.2.2:6653 || return 1
	if ! within "$SUITE_LIMIT_S" not_running "$controller"; then
		fail "it ends within $SUITE_LIMIT_S s" "$(tail -n 3 "$log")"
	fi
}

# A case is a line with its description and OK or ERROR, indented by four. The line before such lines names the file. A line
# indented by eight describes the fault.
count_cases() {
	local line file= failed=
	while IFS= read -r line; do
		line=${line%$'\r'}
		case $line in
		'--- Test report'*) break ;;
		'        '*) [ -z "$failed" ] || echo "          ${line#        }" ;;
		'    '*' OK') failed=; pass "$file: $(sed 's/^ *//; s/ *OK$//' <<<"$line")" ;;
		'    '*' ERROR') failed=1; fail "$file: $(sed 's/^ *//; s/ *ERROR$//' <<<"$line")" ;;
		*) file=$line ;;
		esac
	done <"$1"
}
