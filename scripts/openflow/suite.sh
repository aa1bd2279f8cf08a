# Sourced by test-openflow.sh: os-ken's public test suite of OpenFlow 1.0 switches, with an Open vSwitch as the tester.
# Between the barrier reply of a rule and the packet that needs it nothing waits (the suite's --interval is 0).

suite() {
	PART=suite
	testbed tester
	local log=$WORK/suite.log cases
	cases=$("$PYTHON" -c 'import os_ken.tests.switch as s, os; print(os.path.dirname(s.__file__))')/of10
	# The controller ends by itself, with a report.
	start_controller "$log" --test-switch-target 1 --test-switch-tester 2 --test-switch-target-version openflow10 \
		--test-switch-tester-version openflow10 --test-switch-interval 0 --test-switch-dir "$cases" \
		os_ken.tests.switch.tester || return 0
	local controller=${PIDS[-1]}
	bridge peer t OpenFlow10 0000000000000002 tcp:127.0.0.1:6653
	uncached peer
	start_target 10 tcp:192.0.2.2:6653 || return 0
	if ! within "$SUITE_LIMIT_S" not_running "$controller"; then
		fail "it ends within $SUITE_LIMIT_S s" "$(tail -n 3 "$log")"
	fi
	count_cases "$log"
}

# A case is a line of its description and OK or ERROR, indented by four; the line before such lines names the file, and
# a line indented by eight says what was wrong.
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
