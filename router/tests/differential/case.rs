//! A case: commands, comparisons between them, and the frames of each comparison. It can be kept as text.

use crate::sides::Sent;
use std::fmt::{self, Display};

/// One step of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A command in the host's namespace. Linux may refuse it.
    Host(String),
    /// A command in the tenant's namespace.
    Tenant(String),
    /// Millrace starts, in one of the two beds.
    Start,
    /// `millrace routers` or `millrace interfaces` shows this text within a while.
    Shows(String),
    /// Neither command shows it any more within a while.
    Hides(String),
    /// All frames go through both beds, and the same bytes must come out.
    Compare,
}

impl Step {
    pub fn run(tenant: bool, line: String) -> Step {
        if tenant { Step::Tenant(line) } else { Step::Host(line) }
    }

    /// Whether it runs in the tenant's namespace, and the command line.
    pub fn command(&self) -> Option<(bool, &str)> {
        match self {
            Step::Host(line) => Some((false, line)),
            Step::Tenant(line) => Some((true, line)),
            _ => None,
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Host(line) => write!(f, "host {line}"),
            Step::Tenant(line) => write!(f, "tenant {line}"),
            Step::Start => f.write_str("start"),
            Step::Shows(text) => write!(f, "shows {text}"),
            Step::Hides(text) => write!(f, "hides {text}"),
            Step::Compare => f.write_str("compare"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    pub steps: Vec<Step>,
    pub frames: Vec<Sent>,
}

impl Case {
    /// Reads a case as `Display` writes it. `#` begins a comment line.
    pub fn parse(text: &str) -> Result<Case, String> {
        let mut case = Case::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "host" => case.steps.push(Step::Host(rest.into())),
                "tenant" => case.steps.push(Step::Tenant(rest.into())),
                "start" => case.steps.push(Step::Start),
                "shows" => case.steps.push(Step::Shows(rest.into())),
                "hides" => case.steps.push(Step::Hides(rest.into())),
                "compare" => case.steps.push(Step::Compare),
                "frame" => case.frames.push(frame(rest).ok_or_else(|| format!("no frame: {line}"))?),
                _ => return Err(format!("no step: {line}")),
            }
        }
        Ok(case)
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        for (port, bytes) in &self.frames {
            writeln!(f, "frame {port} {}", hex(bytes))?;
        }
        Ok(())
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The port that a frame is sent into, and its bytes.
fn frame(text: &str) -> Option<Sent> {
    let (port, digits) = text.split_once(' ')?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    Some((port.parse().ok()?, bytes?))
}

#[test]
fn a_case_is_read_as_it_was_written() {
    let steps = vec![
        Step::Tenant("ip link set m0 down".into()),
        Step::Start,
        Step::Host("tc qdisc add dev p0 root htb".into()),
        Step::Shows("qdisc htb,".into()),
        Step::Compare,
        Step::Hides("qdisc htb,".into()),
    ];
    let case = Case { steps, frames: vec![(2, vec![0, 0xfe, 0x10]), (0, vec![1])] };
    assert_eq!(Case::parse(&format!("# why it is kept\n\n{case}")).unwrap(), case);
    assert!(Case::parse("compare\nstop").is_err() && Case::parse("frame 0 0g").is_err());
    assert!(Case::parse("frame 0 012").is_err(), "half a byte");
}
