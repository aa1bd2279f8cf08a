//! `millrace cores` and `millrace events` as text for people.

use super::{
    table::{Table, number, percent},
    text::findings,
};
use crate::{
    api::{
        cores::{CoreReport, CoresReport, EventReport, ModerationReport, QueueReport, SpreadReport},
        findings::Finding,
    },
    base::words::some_names,
};
use chrono::{DateTime, Local, SecondsFormat, TimeZone};
use logic::cores::CoreId;

/// Cells of a bar: one per 5 % of a core.
const BAR: usize = 20;

/// `millrace cores`.
pub fn cores(report: &CoresReport) -> String {
    let mut text = settings(report) + &ports(report);
    for core in &report.cores {
        let CoreReport { core, resume_us: Some(us), deepest_idle, .. } = core else { continue };
        let deepest = deepest_idle
            .as_ref()
            .map_or(String::new(), |state| format!(", and sleeps no deeper than {state}"));
        text += &format!("awake       core {core} wakes up within {us} us while it forwards{deepest}\n");
    }
    let conditions: Vec<_> = report.conditions.iter().map(Finding::condition).collect();
    let tables = [
        core_table(report).text(),
        handed(report).text(),
        queues(&report.queues).text(),
        workloads(report).text(),
        findings(&conditions),
    ];
    for part in tables.iter().filter(|part| !part.is_empty()) {
        text += &format!("\n{part}");
    }
    text
}

fn list(cores: &[CoreId]) -> String {
    cores.iter().map(CoreId::to_string).collect::<Vec<_>>().join(",")
}

/// What decides about queues and cores.
fn settings(report: &CoresReport) -> String {
    let allowed = report.allowed.as_ref().map_or("all".into(), |allowed| list(allowed));
    let mut text = match report.policy.as_str() {
        "off" => "policy      off: queues are left alone\n".to_owned(),
        policy => format!(
            "policy      {policy}; may forward: {allowed}; above {} % a core gives queues away, below {} % one is given back after \
             {} s\n",
            report.high, report.low, report.hold_s
        ),
    };
    if let Some(floor) = report.floor {
        text += &format!("floor       applications that want it keep {floor} % of each core that forwards\n");
    }
    if let Some(serve) = &report.serve {
        let cores = serve.cores.as_ref().map_or("not known yet".into(), |cores| list(cores));
        text += &format!("serve       {} gets the cores that do not forward: {cores}\n", serve.directory);
    }
    if let Some(local) = &report.local {
        text += &format!(
            "local       packets of {} of {} queues go to the cores where their sockets are read\n",
            local.follow, local.queues
        );
    }
    text
}

/// How queues move, spread and wait.
fn ports(report: &CoresReport) -> String {
    let mut text = String::new();
    if let Some(drains) = report.drains.as_ref().filter(|drains| drains.left > 0 || drains.remained > 0) {
        text += &format!(
            "moves       {} waited until all earlier packets had left, {} us at most; {} did not\n",
            drains.left, drains.longest_us, drains.remained
        );
    }
    for SpreadReport { port, used, of, why_not } in &report.spreads {
        text += &match why_not {
            Some(why) => format!("spreading   {port}: over {used} queues; {why}\n"),
            None => format!("spreading   {port}: over {used} of {of} queues\n"),
        };
    }
    for ModerationReport { port, by, us, why_not } in &report.moderations {
        text += &match (by, us) {
            (Some(by), Some(us)) => {
                format!("moderation  {port}: packets wait up to {us} us for others, by {by}\n")
            }
            _ => format!("moderation  {port}: {}\n", why_not.as_deref().unwrap_or("not known yet")),
        };
    }
    text
}

fn core_table(report: &CoresReport) -> Table {
    let mut table = Table::new(&["CORE", "NODE", "ROLE", "FORWARDS", "OTHER", "LOAD", "QUEUES", "WORKLOADS"]);
    for core in &report.cores {
        let on = report.queues.iter().filter(|queue| queue.core == Some(core.core));
        let on: Vec<_> = on.map(|queue| format!("{}/{}", queue.port, queue.queue)).collect();
        let note = match &core.kept_by {
            Some(group) => Some(format!("control group {group} keeps this core for itself")),
            None if core.may_forward => None,
            None => Some("it may not forward (`allowed` in [cores])".to_owned()),
        };
        let role = note.map_or(core.role.clone(), |note| format!("{} {}", core.role, table.note(&note)));
        table.row([
            core.core.to_string(),
            core.node.to_string(),
            role,
            percent(core.forwarding),
            core.other.map_or(String::new(), percent),
            bar(core.forwarding, core.other.unwrap_or(0.0)),
            some_names(on.iter().map(String::as_str)),
            some_names(core.workloads.iter().map(String::as_str)),
        ]);
    }
    table
}

/// Packets that cores got from others because of rules.
fn handed(report: &CoresReport) -> Table {
    let mut table = Table::new(&["CORE", "HANDED PACKETS", "DROPPED", "FLOWS", "PRIORITY"]);
    for core in report.cores.iter().filter(|core| core.handed_packets > 0 || core.flows > 0) {
        let CoreReport { core, handed_packets, handed_dropped, flows, priority_flows, .. } = core;
        table.row([
            core.to_string(),
            handed_packets.to_string(),
            handed_dropped.to_string(),
            flows.to_string(),
            priority_flows.to_string(),
        ]);
    }
    table
}

fn queues(queues: &[QueueReport]) -> Table {
    let mut table = Table::new(&[
        "PORT",
        "QUEUE",
        "CORE",
        "SHARED BY",
        "RAN",
        "WAITED",
        "WAKE-UPS/S",
        "PACKETS/S",
        "A POLL",
        "MOVED BY",
    ]);
    for queue in queues {
        let about = if queue.is_estimate { "~" } else { "" };
        let shared: Vec<_> = queue.shared.iter().map(CoreId::to_string).collect();
        let moved_by = match (&queue.moved_by, &queue.moved_with, &queue.why_not) {
            (Some(by), None, _) => by.clone(),
            (Some(_), Some(leader), _) => format!("with {leader}"),
            (None, _, Some(why)) => format!("nothing {}", table.note(&why.text)),
            (None, _, None) => "nothing".into(),
        };
        table.row([
            queue.port.clone(),
            queue.queue.to_string(),
            queue.core.map_or(String::new(), |core| core.to_string()),
            shared.join("+"),
            match percent(queue.ran) {
                ran if ran.is_empty() => ran,
                ran => format!("{about}{ran}"),
            },
            percent(queue.waited),
            number(queue.wakeups_per_s, 0),
            queue.packets_per_s.map_or(String::new(), |packets| number(packets, 0)),
            a_poll(queue).map_or(String::new(), |packets| number(packets, 1)),
            moved_by,
        ]);
    }
    table
}

fn workloads(report: &CoresReport) -> Table {
    let mut table = Table::new(&["WORKLOAD", "ID", "KIND", "CORES"]);
    for workload in &report.workloads {
        let id = if workload.kind == "declared" { String::new() } else { workload.id.to_string() };
        table.row([workload.name.clone(), id, workload.kind.clone(), list(&workload.cores)]);
    }
    table
}

/// `millrace events`: a line for each; with `silent`, nothing if there are none.
pub fn events(events: &[EventReport], silent: bool) -> String {
    if events.is_empty() && !silent {
        return "no decisions yet\n".into();
    }
    events.iter().map(event).collect()
}

/// A line of `millrace events`, with the date in the zone of this machine.
pub fn event(event: &EventReport) -> String {
    event_in(event, &Local)
}

fn event_in(event: &EventReport, zone: &impl TimeZone) -> String {
    let cores = |cores: &[CoreId]| cores.iter().map(CoreId::to_string).collect::<Vec<_>>().join("+");
    let EventReport { unix_s, port, queue, from, to, why, .. } = event;
    let change = match (cores(from), cores(to)) {
        (from, to) if from == to => from,
        (from, to) if from.is_empty() => format!("-> {to}"),
        (from, to) => format!("{from} -> {to}").trim_end().into(),
    };
    let about = match (port.is_empty(), change.is_empty()) {
        (true, _) => "-".into(),
        (false, true) => format!("{port}/{queue}"),
        (false, false) => format!("{port}/{queue}  core {change}"),
    };
    format!("{}  {about}  {why}\n", date(*unix_s, zone))
}

/// RFC 3339, with milliseconds and the offset of the zone.
fn date(unix_s: f64, zone: &impl TimeZone) -> String {
    let ms = (unix_s * 1000.0).round();
    // Floats beyond i64 become its bounds, which are no dates.
    let utc = DateTime::from_timestamp_millis(ms as i64).filter(|_| ms.is_finite());
    utc.map_or("-".into(), |utc| utc.with_timezone(zone).to_rfc3339_opts(SecondsFormat::Millis, false))
}

/// Packets per poll, on average.
fn a_poll(queue: &QueueReport) -> Option<f64> {
    let (packets, polls) = queue.packets_per_s.zip(queue.polls_per_s)?;
    (polls > 0.0).then(|| packets / polls)
}

/// Forwarding as `#`, other work as `=`.
fn bar(forwarding: f64, other: f64) -> String {
    let cells = |fraction: f64| (fraction.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let forwarding = cells(forwarding);
    let other = cells(other).min(BAR - forwarding);
    format!("[{}{}{}]", "#".repeat(forwarding), "=".repeat(other), " ".repeat(BAR - forwarding - other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{
        cores::{DrainsReport, LocalReport, ServeReport, WorkloadReport},
        status::{ConditionReport, Why},
    };
    use chrono::FixedOffset;

    #[test]
    fn cores_are_shown() {
        let core = |core, role: &str, forwarding, other| CoreReport {
            core,
            role: role.into(),
            may_forward: core != 2,
            forwarding,
            other,
            ..CoreReport::default()
        };
        let queue = QueueReport {
            port: "eth1".into(),
            queue: 0,
            core: Some(1),
            moved_by: Some("thread 42".into()),
            ran: 0.5,
            waited: 0.01,
            wakeups_per_s: 1999.6,
            packets_per_s: Some(48_000.4),
            polls_per_s: Some(4000.0),
            ..QueueReport::default()
        };
        let why_not = Some(Why { code: "no_interrupt".into(), text: "it has no interrupt".into() });
        let fixed = QueueReport { port: "eth2".into(), why_not, is_estimate: true, ..QueueReport::default() };
        let workload = WorkloadReport { id: 7, name: "db".into(), kind: "process".into(), cores: vec![0, 2] };
        let report = CoresReport {
            policy: "pack".into(),
            allowed: Some(vec![0, 1]),
            high: 85,
            low: 70,
            hold_s: 2.0,
            floor: Some(40),
            serve: Some(ServeReport { directory: "/apps".into(), cores: Some(vec![0, 2]) }),
            local: Some(LocalReport { queues: 2, follow: 1, sockets: 65536 }),
            at_s: 1.0,
            period_ms: 10,
            drains: Some(DrainsReport { left: 3, longest_us: 90, remained: 1 }),
            cores: vec![
                CoreReport { workloads: vec!["db".into()], ..core(0, "serve", 0.0, Some(0.25)) },
                CoreReport {
                    resume_us: Some(20),
                    deepest_idle: Some("C1".into()),
                    ..core(1, "forward", 0.5, None)
                },
                core(2, "idle", 0.0, Some(0.0)),
            ],
            queues: vec![queue, fixed],
            spreads: vec![
                SpreadReport { port: "eth1".into(), used: 4, of: 16, why_not: None },
                SpreadReport { port: "eth2".into(), used: 3, of: 3, why_not: Some("why".into()) },
            ],
            moderations: vec![
                ModerationReport {
                    port: "eth1".into(),
                    by: Some("the device".into()),
                    us: Some(50.0),
                    ..ModerationReport::default()
                },
                ModerationReport {
                    port: "eth2".into(),
                    why_not: Some("why".into()),
                    ..ModerationReport::default()
                },
            ],
            workloads: vec![workload],
            conditions: vec![ConditionReport {
                sentence: "x".into(),
                age_s: 5.0,
                ..ConditionReport::default()
            }],
        };
        assert_eq!(
            cores(&report),
            "policy      pack; may forward: 0,1; above 85 % a core gives queues away, below 70 % one is given back after 2 s\n\
             floor       applications that want it keep 40 % of each core that forwards\n\
             serve       /apps gets the cores that do not forward: 0,2\n\
             local       packets of 1 of 2 queues go to the cores where their sockets are read\n\
             moves       3 waited until all earlier packets had left, 90 us at most; 1 did not\n\
             spreading   eth1: over 4 of 16 queues\n\
             spreading   eth2: over 3 queues; why\n\
             moderation  eth1: packets wait up to 50 us for others, by the device\n\
             moderation  eth2: why\n\
             awake       core 1 wakes up within 20 us while it forwards, and sleeps no deeper than C1\n\
             \n\
             CORE  NODE  ROLE      FORWARDS  OTHER  LOAD                    QUEUES  WORKLOADS\n   \
             0     0  serve          0 %   25 %  [=====               ]  -       db\n   \
             1     0  forward       50 %      -  [##########          ]  eth1/0  -\n   \
             2     0  idle [1]       0 %    0 %  [                    ]  -       -\n  \
             [1] it may not forward (`allowed` in [cores])\n\
             \n\
             PORT  QUEUE  CORE   RAN  WAITED  WAKE-UPS/S  PACKETS/S  A POLL  MOVED BY\n\
             eth1      0     1  50 %     1 %        2000      48000    12.0  thread 42\n\
             eth2      0     -  ~0 %     0 %           0          -       -  nothing [1]\n  \
             [1] it has no interrupt\n\
             \n\
             WORKLOAD  ID  KIND     CORES\n\
             db         7  process  0,2\n\
             \n\
             problems:\n  x (for 5 s)\n"
        );
        let steered = CoreReport {
            handed_packets: 5000,
            handed_dropped: 7,
            flows: 12,
            priority_flows: 1,
            ..core(1, "both", 0.0, None)
        };
        let steered =
            CoresReport { cores: vec![core(0, "idle", 0.0, None), steered], ..CoresReport::default() };
        assert!(cores(&steered).ends_with(
            "\n\nCORE  HANDED PACKETS  DROPPED  FLOWS  PRIORITY\n   \
             1            5000        7     12         1\n"
        ));
        let off = CoresReport { policy: "off".into(), ..CoresReport::default() };
        assert!(cores(&off).starts_with("policy      off: queues are left alone\n"));
    }

    #[test]
    fn cores_that_share_a_queue_are_shown() {
        let queue =
            |shared| QueueReport { port: "a".into(), core: Some(1), shared, ..QueueReport::default() };
        let text = super::queues(&[queue(vec![]), queue(vec![1, 3])]).text();
        let rows: Vec<_> = text.lines().map(|line| line.split_whitespace().nth(3)).collect();
        assert_eq!(rows, [Some("SHARED"), Some("-"), Some("1+3")], "{text}");
    }

    #[test]
    fn bars_have_one_length() {
        for (forwarding, other) in [(0.0, 0.0), (1.0, 1.0), (0.61, 0.38), (7.0, -1.0), (0.0, f64::NAN)] {
            assert_eq!(bar(forwarding, other).len(), BAR + 2, "{forwarding} {other}");
        }
        assert_eq!(bar(0.5, 0.25), "[##########=====     ]");
    }

    #[test]
    fn events_are_shown() {
        assert_eq!(events(&[], false), "no decisions yet\n");
        assert_eq!(events(&[], true), "");
        let happened = EventReport {
            number: 1,
            unix_s: 1_000_000_000.25,
            port: "eth1".into(),
            queue: 2,
            from: vec![0],
            to: vec![0, 1],
            why: "it alone wants 90 %".into(),
        };
        let zone = FixedOffset::east_opt(5400).unwrap();
        let line = |event: &EventReport| event_in(event, &zone);
        assert_eq!(
            line(&happened),
            "2001-09-09T03:16:40.250+01:30  eth1/2  core 0 -> 0+1  it alone wants 90 %\n"
        );
        let about_a_core =
            EventReport { port: String::new(), why: "core 1 is online".into(), ..happened.clone() };
        assert_eq!(line(&about_a_core), "2001-09-09T03:16:40.250+01:30  -  core 1 is online\n");
        let stays = EventReport { to: vec![0], ..happened.clone() };
        assert!(line(&stays).ends_with("  eth1/2  core 0  it alone wants 90 %\n"));
        let gone =
            EventReport { from: vec![], to: vec![], why: "the queue is gone".into(), ..happened.clone() };
        assert!(line(&gone).ends_with("+01:30  eth1/2  the queue is gone\n"), "{}", line(&gone));
        let left = EventReport { from: vec![3], to: vec![], ..gone.clone() };
        assert!(line(&left).ends_with("  eth1/2  core 3 ->  the queue is gone\n"));
        let new = EventReport { from: vec![], to: vec![3], ..gone };
        assert!(line(&new).ends_with("  eth1/2  core -> 3  the queue is gone\n"));
        for unix_s in [f64::NAN, f64::INFINITY, -f64::INFINITY, 1e300] {
            assert!(line(&EventReport { unix_s, ..happened.clone() }).starts_with("-  eth1/2"), "{unix_s}");
        }
    }
}
