//! Changes that clients ask for, and their answers, which are sent when packets obey.

use super::rules::{cores, number};
use crate::{
    api::{
        ApiError,
        flows::{Command, FailedLine, FlowsChanged, FlowsRequest},
    },
    switch::seam::SwitchPort,
};
use logic::{
    flow::{
        Action, CoreChoice, FlowCommand, FlowMod, Refused,
        action::RulePort,
        kernel::FlowMemory,
        table::PathPorts,
        text::{self, BadText, Names},
    },
    openflow::agent::Agent,
};
use tokio::sync::oneshot;

/// The channel of an answer.
pub type Reply = oneshot::Sender<Result<FlowsChanged, ApiError>>;

/// A client's request, and the channel of its answer.
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
    /// Keeps an answer until packets obey `batch`.
    pub fn wait(&mut self, batch: u64, report: FlowsChanged, reply: Reply) {
        self.waiting.push((batch, report, reply));
    }

    /// Sends the answers of all batches up to `finished`, if the right program is attached (`obeys`). If it cannot
    /// be attached, `failed` is the reason, and the answers are errors.
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
                    "the rules are kept, but packets do not go by them yet; the daemon tries again each second: {why}"
                ))),
                _ => Ok(report),
            };
            // It does no harm if the client is gone.
            let _ = reply.send(answer);
        }
    }
}

/// The names of ports and paths, for flows as text.
pub fn names(ports: &[SwitchPort], paths: &PathPorts) -> Vec<(String, RulePort)> {
    ports.iter().map(|port| (port.name.clone(), number(port))).chain(names_of_paths(paths)).collect()
}

/// The same, of paths only.
pub fn names_of_paths(paths: &PathPorts) -> impl Iterator<Item = (String, RulePort)> {
    paths.iter().filter_map(|(id, path)| Some((format!("path:{}", path.name), RulePort::of_path(*id)?)))
}

/// Applies all lines, or those before the first line that cannot be read or applied. `most_rules`: the number in the
/// configuration.
pub fn apply<M: FlowMemory>(
    agent: &mut Agent<M>,
    request: &FlowsRequest,
    ports: &[SwitchPort],
    most_rules: u32,
    now_ms: u64,
) -> FlowsChanged {
    let names = names_of_agent(agent, ports);
    let names = Names::of(&names);
    let number = |(i, line)| (request.first_line.saturating_add(i as u64), line);
    let lines = request.flows.lines().enumerate().map(number).filter(|(_, line)| is_flow(line));
    let mut report = FlowsChanged::default();
    for (line, text) in lines {
        let done = read(text, request.command, names).and_then(|flow| {
            apply_one(agent, &flow, now_ms, &mut report)
                .map_err(|refused| why(agent, refused, &flow, ports, most_rules))
        });
        if let Err(why) = done {
            report.failed = Some(FailedLine { line, flow: text.trim().into(), why });
            break;
        }
    }
    report
}

/// The names of ports and paths that an agent knows.
pub fn names_of_agent<M: FlowMemory>(agent: &mut Agent<M>, ports: &[SwitchPort]) -> Vec<(String, RulePort)> {
    names(ports, agent.flows().tables().paths())
}

/// Adds a rule of a file. `kept`: it was in force when it was saved.
///
/// # Errors
/// Why it cannot be used.
pub fn load<M: FlowMemory>(
    agent: &mut Agent<M>,
    rule: &FlowMod,
    kept: bool,
    ports: &[SwitchPort],
    most_rules: u32,
    now_ms: u64,
) -> Result<(), String> {
    let done = if kept { agent.restore(rule, now_ms) } else { agent.change(rule, now_ms) };
    done.map_err(|refused| why(agent, refused, rule, ports, most_rules))
}

fn why<M: FlowMemory>(
    agent: &mut Agent<M>,
    refused: Refused,
    flow: &FlowMod,
    ports: &[SwitchPort],
    most_rules: u32,
) -> String {
    match refused {
        Refused::TableFull => full(agent.flows().tables().len(), most_rules),
        refused => explained(refused, flow, ports, agent.flows().tables().paths()),
    }
}

/// Is this a line with a flow? Other lines are empty, or comments.
pub fn is_flow(line: &str) -> bool {
    !line.trim().is_empty() && !line.trim_start().starts_with('#')
}

/// Reads a line. `otherwise`: the command of a line that begins with none.
///
/// # Errors
/// Why it cannot be read.
pub fn read(line: &str, otherwise: Command, names: Names<'_>) -> Result<FlowMod, String> {
    let (command, flow) = command_of(line, otherwise);
    text::parse_flow_named(flow, command, names).map_err(|bad| unread(bad, line))
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

const COMMANDS: &[(&str, Command)] = &[
    ("add", Command::Add),
    ("modify", Command::Modify),
    ("modify_strict", Command::ModifyStrict),
    ("delete", Command::Delete),
    ("delete_strict", Command::DeleteStrict),
];

/// The command of a line, and the rest of it. A line may begin with a command; `otherwise` is that of other lines.
fn command_of(line: &str, otherwise: Command) -> (FlowCommand, &str) {
    let first = line.split_whitespace().next().unwrap_or_default();
    let named = COMMANDS.iter().find(|(name, _)| *name == first).map(|&(_, command)| command);
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

/// Why a line cannot be read.
fn unread(bad: BadText, line: &str) -> String {
    let first = line.split_whitespace().next() == Some(&bad.word);
    match text::nearest(&bad.word, COMMANDS.iter().map(|(name, _)| *name)).filter(|_| first) {
        Some(command) => format!("{:?}: did you mean {command}? Otherwise it is {}", bad.word, bad.right),
        None => bad.to_string(),
    }
}

/// The error if there is no room for a rule.
pub fn full(rules: usize, most: u32) -> String {
    let most = format!("`rules` of [flows] in the configuration promises room for {most}");
    format!("{}: there are {rules} rules; {most}", Refused::TableFull)
}

/// Why a flow was refused, and what the user can do.
fn explained(refused: Refused, flow: &FlowMod, ports: &[SwitchPort], paths: &PathPorts) -> String {
    let to_path = flow.instructions.actions().find_map(|action| match action {
        Action::Output { port, .. } => port.path(),
        _ => None,
    });
    let core = flow.instructions.actions().find_map(|action| match action {
        Action::SetCore(choice) => Some(*choice),
        _ => None,
    });
    match (refused, core) {
        (Refused::BadPort, _) if to_path.is_some_and(|path| paths.contains_key(&path)) => {
            "a rule that gives packets to a path can do nothing else: it has no other action, meter or table"
                .into()
        }
        (Refused::BadPort, _) => format!("{refused}; there are: {}", names_of(ports)),
        (Refused::BadAction, Some(_)) if ports.iter().any(|port| port.generic) => {
            format!("{refused}: set_core does not work while a port is in generic mode")
        }
        (Refused::BadArgument, Some(CoreChoice::This(core))) => {
            let cores: Vec<_> = cores(ports).cores.iter().map(|core| core.number).collect();
            if cores.contains(&core) {
                return refused.to_string();
            }
            let cores: Vec<_> = cores.iter().map(u16::to_string).collect();
            format!("set_core:{core}: there is no core {core}; there are: {}", cores.join(", "))
        }
        (Refused::InconsistentAction, _) => {
            format!("{refused}; match what it changes, too: ip, ipv6, arp, tcp, udp, or a dl_vlan")
        }
        (other, _) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_suggests_the_right_command_for_a_misspelt_one() {
        let unread = |line| {
            let (command, flow) = command_of(line, Command::Add);
            unread(text::parse_flow_named(flow, command, Names::default()).unwrap_err(), line)
        };
        assert!(
            unread("modfy in_port=1,actions=drop")
                .starts_with("\"modfy\": did you mean modify? Otherwise it is ")
        );
        assert!(unread("Delete in_port=1,actions=drop").starts_with("\"Delete\": did you mean delete? "));
        assert!(unread("udp,modfy,actions=drop").starts_with("\"modfy\": not a field"));
    }

    #[test]
    fn the_answer_names_a_core_that_does_not_exist() {
        let flow = |text: &str| text::parse_flow(text, FlowCommand::Add).unwrap();
        let says = |actions: &str| {
            explained(Refused::BadArgument, &flow(&format!("actions={actions}")), &[], &PathPorts::new())
        };
        assert!(says("set_core:4999,1").starts_with("set_core:4999: there is no core 4999; there are: 0"));
        assert_eq!(says("mod_vlan_vid:1"), "this action's argument is out of range");
    }
}
