//! Changes that clients ask for, and their answers, which come when packets obey.

use super::{
    report::{Command, FailedLine, FlowsChanged, FlowsRequest},
    rules::number,
};
use crate::daemon::{api::ApiError, seam::SwitchPort};
use logic::{
    flow::{
        FlowCommand, FlowMod, Refused,
        action::Port,
        kernel::FlowMemory,
        text::{self, Names},
    },
    openflow::agent::Agent,
};
use tokio::sync::oneshot;

/// Where an answer goes.
pub type Reply = oneshot::Sender<Result<FlowsChanged, ApiError>>;

/// What a client asks for, and where its answer goes.
pub struct Change {
    pub request: FlowsRequest,
    pub reply: Reply,
}

/// Answers that wait for a batch.
#[derive(Default)]
pub struct Changing {
    waiting: Vec<(u64, FlowsChanged, Reply)>,
}

impl Changing {
    /// Answers when packets obey `batch`.
    pub fn wait(&mut self, batch: u64, report: FlowsChanged, reply: Reply) {
        self.waiting.push((batch, report, reply));
    }

    /// Packets obey all batches up to `finished`, if the right program is attached (`obeys`); or why it is not.
    pub fn answer(&mut self, finished: u64, obeys: bool, failed: Option<&str>) {
        if !obeys && failed.is_none() {
            return;
        }
        let (done, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(batch, ..)| *batch <= finished);
        self.waiting = waiting;
        let done: Vec<_> = done;
        for (_, report, reply) in done {
            let answer = match failed {
                Some(why) if !obeys => Err(ApiError::failed(format!(
                    "the rules are kept, but packets do not go by them yet, which is tried again each second: {why}"
                ))),
                _ => Ok(report),
            };
            // The client may have gone; that is its business.
            let _ = reply.send(answer);
        }
    }
}

/// The names of ports, for flows as text.
pub fn names(ports: &[SwitchPort]) -> Vec<(String, Port)> {
    ports.iter().map(|port| (port.name.clone(), number(port))).collect()
}

/// Does all of it, or what is before the first line that cannot be done, or read.
pub fn apply<M: FlowMemory>(
    agent: &mut Agent<M>,
    request: &FlowsRequest,
    ports: &[SwitchPort],
    now_ms: u64,
) -> FlowsChanged {
    let names = names(ports);
    let names = Names::of(&names);
    let lines = (request.first_line..).zip(request.flows.lines());
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    let mut report = FlowsChanged::default();
    for (line, text) in lines {
        let (command, flow) = command_of(text, request.command);
        let done = text::parse_flow_named(flow, command, names).map_err(|bad| bad.to_string());
        let done = done.and_then(|flow| {
            apply_one(agent, &flow, now_ms, &mut report)
                .map_err(|refused| explained(refused, &names_of(ports)))
        });
        if let Err(why) = done {
            report.failed = Some(FailedLine { line, flow: text.trim().into(), why });
            break;
        }
    }
    report
}

fn apply_one<M: FlowMemory>(
    agent: &mut Agent<M>,
    flow: &FlowMod,
    now_ms: u64,
    report: &mut FlowsChanged,
) -> Result<(), Refused> {
    let meant = match flow.command {
        FlowCommand::Add => 1,
        FlowCommand::Modify { .. } | FlowCommand::Delete { .. } => {
            agent.flows().tables().meant_by(flow).len() as u64
        }
    };
    agent.change(flow, now_ms)?;
    *match flow.command {
        FlowCommand::Add => &mut report.added,
        FlowCommand::Modify { .. } => &mut report.modified,
        FlowCommand::Delete { .. } => &mut report.deleted,
    } += meant;
    Ok(())
}

/// A line may begin with what is to be done.
fn command_of(line: &str, otherwise: Command) -> (FlowCommand, &str) {
    let first = line.split_whitespace().next().unwrap_or_default();
    let named = match first {
        "add" => Some(Command::Add),
        "modify" => Some(Command::Modify),
        "modify_strict" => Some(Command::ModifyStrict),
        "delete" => Some(Command::Delete),
        "delete_strict" => Some(Command::DeleteStrict),
        _ => None,
    };
    let text = if named.is_some() { &line.trim_start()[first.len()..] } else { line };
    let command = match named.unwrap_or(otherwise) {
        Command::Add => FlowCommand::Add,
        Command::Modify => FlowCommand::Modify { strict: false },
        Command::ModifyStrict => FlowCommand::Modify { strict: true },
        Command::Delete => FlowCommand::Delete { strict: false },
        Command::DeleteStrict => FlowCommand::Delete { strict: true },
    };
    (command, text)
}

fn names_of(ports: &[SwitchPort]) -> String {
    let there = ports.iter().filter(|port| port.ifindex.is_some());
    there.map(|port| format!("{} ({})", number(port), port.name)).collect::<Vec<_>>().join(", ")
}

/// Why, and what can be done.
fn explained(refused: Refused, ports: &str) -> String {
    match refused {
        Refused::BadPort => format!("{refused}; there are: {ports}"),
        Refused::TableFull => {
            format!("{refused}; `rules` of [flows] in the configuration says how many there may be")
        }
        Refused::InconsistentAction => {
            format!("{refused}; match what it changes, too: ip, ipv6, arp, tcp, udp, or a dl_vlan")
        }
        other => other.to_string(),
    }
}
