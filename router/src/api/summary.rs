//! What `millrace status` says first and last: whether all that Linux forwards is fast, and what is wrong or limited.

use super::{
    findings::{self, Finding, Remark},
    flows::ControllerLost,
    status::{ConditionReport, Families, LeftInterface, RouterReport, Status, Why},
    workers::WorkersReport,
};
use logic::cause::Code;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The main points of a status, as sentences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// How well packets are forwarded.
    pub state: SummaryState,
    /// A sentence about the state: why it is not ready, the first of `not_fast` or of `problems`, or which IP versions are
    /// fast.
    pub text: String,
    /// What makes forwarding slow, the widest effect first.
    pub not_fast: Vec<String>,
    /// What is wrong. Equal sentences about several things are one.
    pub problems: Vec<Remark>,
    /// What is slower or later than it could be, or is not known.
    pub notes: Vec<Remark>,
}

/// How well packets are forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SummaryState {
    /// Millrace forwards nothing, or its tables are not current.
    #[default]
    NotReady,
    /// Linux forwards a part, a port is in generic mode, or flow rules do not apply: see `not_fast`.
    Slow,
    /// All that Linux forwards is fast, and something is wrong.
    Problem,
    /// Nothing is wrong, but Linux forwards nothing between the ports, and there are no flow rules.
    Idle,
    /// All that Linux forwards is fast, and nothing is wrong.
    Fast,
}

impl Summary {
    /// Summarizes a status, without reading its own summary.
    pub fn of(s: &Status) -> Summary {
        let all = all_findings(s);
        let (notes, problems): (Vec<_>, Vec<_>) = all.into_iter().partition(|finding| finding.is_note);
        let problems = findings::remarks(&problems);
        let not_fast: Vec<String> =
            findings::remarks(&not_fast(s)).into_iter().map(|remark| remark.text).collect();
        let (state, text) = match (s.ready, not_fast.first(), problems.first()) {
            (false, ..) => {
                let why = s.problem.as_ref().map_or("the reason is not known", |why| &why.text);
                (SummaryState::NotReady, why.to_owned())
            }
            (true, Some(slow), _) => (SummaryState::Slow, slow.clone()),
            (true, None, Some(problem)) => (SummaryState::Problem, problem.text.clone()),
            (true, None, None) => all_fast(s),
        };
        Summary { state, text, not_fast, problems, notes: findings::remarks(&notes) }
    }
}

/// What is on the fast path, if nothing that Linux forwards is left to the kernel.
fn all_fast(s: &Status) -> (SummaryState, String) {
    // A namespace without an interface on a port is no router.
    let routers: Vec<_> = s.routers.iter().filter(|router| router.interfaces > 0).collect();
    let is_fast = |of: fn(Families<&'static str>) -> &'static str| {
        routers.iter().any(|router| of(how_much(router)) != "kernel")
    };
    let (ipv4, ipv6) = (is_fast(|how| how.ipv4), is_fast(|how| how.ipv6));
    let be = if ipv4 && ipv6 { "are" } else { "is" };
    let by_rules = s.flows.rules > 0 && s.flows.in_charge;
    let idle = |text: &str| (if by_rules { SummaryState::Fast } else { SummaryState::Idle }, text.to_owned());
    match (versions(ipv4, ipv6), routers.len()) {
        (_, 0) => idle("no router has an interface on a port"),
        (None, _) => idle("Linux forwards nothing between the ports (net.ipv4.ip_forward)"),
        (Some(which), 1) => (SummaryState::Fast, format!("{which} of the router {be} on the fast path")),
        (Some(which), n) => (SummaryState::Fast, format!("{which} of all {n} routers {be} on the fast path")),
    }
}

/// What keeps packets of routers from the fast path, with the widest effect first.
fn not_fast(s: &Status) -> Vec<Finding> {
    let routers = || s.routers.iter().filter(|router| router.interfaces > 0);
    let whole = routers().filter_map(|router| {
        let (which, why) = version(&router.why_not)?;
        Some(Finding::note(
            "router",
            &router.router,
            format!("{which} on the kernel path: {}", brief(&why.text)),
        ))
    });
    let rules = (s.flows.rules > 0 && !s.flows.in_charge)
        .then(|| Finding::note("", "", "flow rules are not in charge, so packets are routed"));
    let interfaces = routers().flat_map(|router| {
        router.left_to_kernel.iter().filter_map(|interface| {
            let (which, why) = version(&interface.why_not)?;
            let name = interface_name(&router.router, &interface.interface);
            Some(Finding::note(
                "interface",
                &name,
                format!("{which} on the kernel path: {}", brief(&why.text)),
            ))
        })
    });
    let ruled = routers().filter_map(|router| {
        let which = versions(router.ruled.ipv4, router.ruled.ipv6)?;
        let text = format!("some {which} packets on the kernel path: firewall rules may affect them");
        Some(Finding::note("router", &router.router, text))
    });
    let generic = s
        .ports
        .iter()
        .filter(|port| port.note.as_ref().is_some_and(|why| why.code == Code::GenericMode.name()));
    let generic = generic.map(|port| Finding::note("port", &port.port, "generic mode, which is slow"));
    rules.into_iter().chain(whole).chain(ruled).chain(interfaces).chain(generic).collect()
}

/// The IP versions that have reasons, and the first reason. A version that Linux does not forward either is not slow.
fn version(why: &Families<Vec<Why>>) -> Option<(&'static str, &Why)> {
    fn first(all: &[Why]) -> Option<&Why> {
        all.first().filter(|_| !all.iter().any(Why::is_idle))
    }
    let (ipv4, ipv6) = (first(&why.ipv4), first(&why.ipv6));
    Some((versions(ipv4.is_some(), ipv6.is_some())?, ipv4.or(ipv6)?))
}

fn versions(ipv4: bool, ipv6: bool) -> Option<&'static str> {
    match (ipv4, ipv6) {
        (true, true) => Some("IPv4 and IPv6"),
        (true, false) => Some("IPv4"),
        (false, true) => Some("IPv6"),
        (false, false) => None,
    }
}

/// What a sentence says, without the command that helps.
fn brief(text: &str) -> &str {
    text.split("; ").next().unwrap_or(text)
}

fn interface_name(router: &str, interface: &str) -> String {
    if router == "host" { interface.into() } else { format!("{router}/{interface}") }
}

/// Whether all, some or none of a router's interfaces are accelerated, by IP version.
pub fn how_much(r: &RouterReport) -> Families<&'static str> {
    let word = |accelerated: bool, why_not: &[Why], own: fn(&LeftInterface) -> bool| {
        let left = r.left_to_kernel.iter().filter(|i| own(i)).count() as u64;
        match accelerated {
            true => "fast",
            false if why_not.is_empty() && left < r.interfaces => "partly",
            false => "kernel",
        }
    };
    Families {
        ipv4: word(r.accelerated.ipv4, &r.why_not.ipv4, |i| !i.why_not.ipv4.is_empty()),
        ipv6: word(r.accelerated.ipv6, &r.why_not.ipv6, |i| !i.why_not.ipv6.is_empty()),
    }
}

/// Everything that is wrong, limited or unknown.
fn all_findings(s: &Status) -> Vec<Finding> {
    // Ports and routers have their own reasons; their conditions say since when.
    let ages: BTreeMap<&str, f64> =
        s.conditions.iter().filter(|c| is_of_thing(c)).map(|c| (c.subject.as_str(), c.age_s)).collect();
    let aged = |finding: Finding| {
        let age_s = ages.get(format!("{} {}", finding.kind, finding.name).as_str()).copied();
        Finding { age_s, ..finding }
    };
    let conditions = s.conditions.iter().filter(|c| !is_of_thing(c)).map(Finding::condition);
    let mut all: Vec<Finding> = conditions.collect();
    for port in &s.ports {
        let problem = |why: &Why| aged(Finding::problem("port", &port.port, &why.text));
        all.extend(port.problems.iter().map(problem));
        all.extend(port.note.iter().map(|why| Finding::note("port", &port.port, &why.text)));
    }
    // Problems of ports are listed already.
    let other = |why: &Why| why.code != Code::PortNotTrusted.name();
    all.extend(s.routers.iter().flat_map(|router| router_findings(router, other)).map(aged));
    if let Some(why) = s.flows.why_not.as_ref().filter(|_| s.flows.rules > 0 && !s.flows.in_charge) {
        all.push(Finding::problem("", "", format!("flow rules are not in charge: {}", why.text)));
    }
    let lost = controller_lost(&s.flows.controller_lost);
    all.extend(lost.map(|lost| Finding::note("", "", lost)));
    for path in &s.paths {
        let why = path.why_not.iter().map(|why| format!("it has no packets: {}", why.text));
        all.extend(why.map(|why| Finding::note("path", &path.path, why)));
        let stopped = path.run.as_ref().and_then(|run| run.stopped.as_ref());
        all.extend(stopped.map(|why| Finding::problem("path", &path.path, format!("it is stopped: {why}"))));
    }
    all.extend(worker_findings(&s.workers));
    all
}

/// Does its port or router list the reasons of this condition?
fn is_of_thing(condition: &ConditionReport) -> bool {
    ["port", "router"].contains(&condition.kind.as_str())
}

/// Why a router and its interfaces are not on the fast path, as far as these causes are wanted.
pub fn router_findings(r: &RouterReport, is_wanted: impl Fn(&Why) -> bool) -> Vec<Finding> {
    let sentences = |why: &Families<Vec<Why>>| {
        let wanted = |all: &[Why]| all.iter().filter(|why| is_wanted(why)).cloned().collect::<Vec<_>>();
        Families { ipv4: wanted(&why.ipv4), ipv6: wanted(&why.ipv6) }.sentences()
    };
    let router = |text: String| Finding::note("router", &r.router, text);
    let mut all: Vec<Finding> = sentences(&r.why_not).into_iter().map(router).collect();
    if let Some(which) = versions(r.ruled.ipv4, r.ruled.ipv6) {
        let some = "firewall rules may affect some packets; `millrace firewall` lists them";
        all.push(router(format!("{which}: {some}")));
    }
    if r.cut > 0 {
        all.push(router(format!("{} of its dropped packets were over its share of a full core", r.cut)));
    }
    for left in &r.left_to_kernel {
        let name = interface_name(&r.router, &left.interface);
        all.extend(sentences(&left.why_not).into_iter().map(|text| Finding::note("interface", &name, text)));
    }
    all
}

/// Problems of workers, and packets that they lost.
fn worker_findings(workers: &WorkersReport) -> Vec<Finding> {
    let mut all = Vec::new();
    let silent = workers.workers.iter().filter_map(|worker| worker.silent.as_ref());
    all.extend(silent.map(|why| Finding::problem("", "", why)));
    for queue in &workers.queues {
        let fault = queue.fault.iter().map(|fault| format!("workers, queue {}: {fault}", queue.queue));
        all.extend(fault.map(|text| Finding::problem("port", &queue.name, text)));
    }
    for resource in workers.resources.iter().filter(|resource| !resource.counted) {
        all.push(Finding::note("", "", format!("{} of paths: {}", resource.resource, resource.basis)));
    }
    if let Some(why) = &workers.switch.not_calibrated {
        let text = "the cost of packets includes switches between paths";
        all.push(Finding::note("", "", format!("{text}: {why} (`millrace calibrate` measures them)")));
    }
    for queue in workers.queues.iter().filter(|queue| queue.queue == 0) {
        let copied = queue.copies_because.iter().map(|why| format!("packets are copied for workers: {why}"));
        let unpolled = queue.not_polled_because.iter().map(|why| format!("workers do not poll it: {why}"));
        all.extend(copied.chain(unpolled).map(|text| Finding::note("port", &queue.name, text)));
    }
    let outputs = workers.workers.iter().flat_map(|worker| &worker.outputs).chain(&workers.closed_outputs);
    let mut lost = BTreeMap::<&str, u64>::new();
    for output in outputs {
        let lost = lost.entry(&output.name).or_default();
        *lost = lost.saturating_add(output.dropped());
    }
    for (port, lost) in lost.into_iter().filter(|(_, lost)| *lost > 0) {
        let text = format!("{lost} packets that workers sent were lost on their way out");
        all.push(Finding::note("port", port, text));
    }
    let up = &workers.up.all;
    if up.queue_full > 0 || up.failed > 0 {
        let text = format!(
            "{} packets that paths passed up did not reach the kernel: too many waited for {}, and it refused {}",
            up.queue_full.saturating_add(up.failed),
            up.queue_full,
            up.failed
        );
        all.push(Finding::note("", "", text));
    }
    all
}

/// The packets that were lost on the way to controllers; `None`: there are none.
pub fn controller_lost(lost: &ControllerLost) -> Option<String> {
    let parts = [
        (lost.no_controller, "because none was connected"),
        (lost.over_rate, "over packet_in_pps"),
        (lost.not_read, "because none read fast enough"),
    ];
    let said: Vec<_> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect();
    (!said.is_empty()).then(|| format!("packets lost to controllers: {}", said.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart() {
        let why = |code: Code, text: &str| Why { code: code.name().into(), text: text.into() };
        let left = |code, text| RouterReport {
            router: "red".into(),
            interfaces: 2,
            why_not: Families {
                ipv4: vec![why(code, text)],
                ipv6: vec![why(Code::ForwardingOff, "IPv6 forwarding is off")],
            },
            ..RouterReport::default()
        };
        let ipv6_off = || Families { ipv4: Vec::new(), ipv6: vec![why(Code::ForwardingOff, "off")] };
        let fast = RouterReport {
            interfaces: 2,
            accelerated: Families { ipv4: true, ipv6: false },
            why_not: ipv6_off(),
            ..RouterReport::default()
        };
        let off = left(Code::ForwardingOff, "IPv4 forwarding is off");
        let slow = left(Code::PolicyRule, "a policy rule; remove it with: x");
        let bad = ConditionReport { sentence: "netlink failed".into(), ..ConditionReport::default() };
        let known = Some(why(Code::NoTrustedPort, "no port is trusted"));
        for (ready, problem, conditions, routers, state, text) in [
            (false, known, vec![], vec![], SummaryState::NotReady, "no port is trusted"),
            (false, None, vec![], vec![], SummaryState::NotReady, "the reason is not known"),
            (true, None, vec![], vec![], SummaryState::Idle, "no router has an interface on a port"),
            (
                true,
                None,
                vec![],
                vec![off.clone()],
                SummaryState::Idle,
                "Linux forwards nothing between the ports (net.ipv4.ip_forward)",
            ),
            (true, None, vec![bad.clone()], vec![off], SummaryState::Problem, "netlink failed"),
            (
                true,
                None,
                vec![],
                vec![fast.clone()],
                SummaryState::Fast,
                "IPv4 of the router is on the fast path",
            ),
            (
                true,
                None,
                vec![bad],
                vec![fast, slow],
                SummaryState::Slow,
                "router red: IPv4 on the kernel path: a policy rule",
            ),
        ] {
            let summary = Summary::of(&Status { ready, problem, conditions, routers, ..Status::default() });
            assert_eq!((summary.state, summary.text.as_str()), (state, text));
        }
    }
}
