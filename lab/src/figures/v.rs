//! V: which core receives a flow to a virtual machine. Linux's receive packet steering takes the place of the paper's
//! RSS, because veth ports do not hash. Millrace's flow rules take the place of VSE: they name a core, or let the
//! switch choose one (docs/inside/flow-rules.md).
//!
//! C is the rate of frames with 1,400 bytes that one core receives with Linux. It is measured first, and loads are
//! parts of it. Frames with 64 bytes come at the same rate, as in the paper, where the sender limits them. The paper
//! has four cores, two of them for the machines. We have two, so each table has its own arrangement of the part that it
//! is about.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::{FiguresOptions, picture, published::PaperFigure};
use crate::{
    figure::{Axis, Figure},
    record::Recorder,
    steering::{BUSY, Bed, FREE, Steering, SteeringOutcome, machine::Guest, sender::Flow},
};

/// Bytes of payload inside the tunnel. The paper's 8,192 bytes come as fragments; ours fit into a packet.
const PAYLOADS: [u16; 2] = [64, 1400];
const HEAVY: u16 = 1400;
/// More than a core receives.
const TOO_MUCH_PPS: f64 = 150_000.0;
/// Time between the starts of two flows, so that a choice takes the earlier flow into account.
const APART: Duration = Duration::from_millis(300);
/// Time after the last flow has begun.
const WARM_UP: Duration = Duration::from_millis(300);
/// Pairs of source ports in a repeat. Each pair has other hashes.
const DRAWS: u16 = 5;

const LINUX: &str = "linux";
const HASHED: &str = "linux, hashed";
const NAMED: &str = "millrace";
const CHOSEN: &str = "millrace, chosen";

/// One table.
struct Table<'a> {
    figure: &'a PaperFigure,
    options: &'a FiguresOptions,
    recorder: &'a mut Recorder,
    bed: Bed,
    /// C: see the head of this file.
    capacity_pps: f64,
}

/// One measurement.
struct Case<'a> {
    subject: &'a str,
    steering: Steering,
    queue_core: usize,
    guests: Vec<Guest>,
    /// Load of each machine's flow, from the first on, as a part of C.
    loads: &'a [f64],
    payload: u16,
    /// Which source ports are used.
    draw: u16,
    repeat: u16,
    parameters: Value,
}

/// VT4: two flows on one core or on two, and a flow on the core of its machine or on the other.
pub(super) fn collisions(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const LOAD: f64 = 0.75;
    let ours = format!(
        "{}. Flows are placed by flow rules in all four cases; the port's queue is on the sender's core. Two flows to machines that \
         only receive, each {LOAD} C; one flow of {LOAD} C to a machine that computes on its core all the time",
        set_up()
    );
    let x = Axis::new("/parameters/case", "", "");
    let y = Axis::new("/sample/mbps", "arrived", "Mbit/s");
    recorder.figure(&picture_of(figure, x.clone(), y, &ours).series("/parameters/payload"))?;
    recorder.figure(&computed(figure, x, &ours).series("/parameters/payload"))?;
    let cases: [(&str, &[&str], &[f64], Guest); 4] = [
        ("flows collision", &["1", "1"], &[LOAD; 2], Guest::Idle),
        ("non-flows collision", &["0", "1"], &[LOAD; 2], Guest::Idle),
        ("flow-VM collision", &["1"], &[LOAD], Guest::Busy(BUSY)),
        ("non flow-VM collision", &["0"], &[LOAD], Guest::Busy(BUSY)),
    ];
    let mut table = Table::new(figure, options, recorder, 2)?;
    for repeat in 0..options.repeat {
        let alone = table.bed.alone(BUSY, table.window())?;
        for payload in PAYLOADS {
            for (name, cores, loads, guest) in cases {
                let seen = table.measure(&Case {
                    subject: NAMED,
                    steering: rules(cores),
                    queue_core: FREE,
                    guests: vec![guest; loads.len()],
                    loads,
                    payload,
                    draw: 0,
                    repeat,
                    parameters: json!({"case": name}),
                })?;
                let busy = guest != Guest::Idle;
                let machines: Vec<f64> = seen.machines.iter().map(|machine| machine.mbps).collect();
                let sample = json!({"mbps": machines.iter().sum::<f64>(), "mbps_of_machines": machines,
                    "index": busy.then(|| seen.machines[0].units_per_s / alone)});
                table.line(NAMED, repeat, json!({"case": name, "payload": bytes(payload)}), sample)?;
            }
        }
    }
    Ok(())
}

/// VT5: how much of the traffic a machine's core receives.
pub(super) fn cores(figure: &PaperFigure, options: &FiguresOptions, recorder: &mut Recorder) -> Result<()> {
    const LOADS: [f64; 2] = [0.3; 2];
    let ours = format!(
        "{}. One machine computes, pinned to a core, where Millrace discovers it automatically; the other core is free, and has the port's \
         queue. A flow of 0.3 C to this machine and one to another that only receives. {DRAWS} pairs of source ports in each repeat. \
         Published: packets on cores 0 and 1, where their machines are, of all in table V",
        set_up()
    );
    let x = Axis::new("/parameters/payload", "", "");
    let y = Axis::new("/sample/machine_core", "received on the machine's core", "%").times(100.0);
    recorder.figure(&picture_of(figure, x.clone(), y, &ours).series("/subject"))?;
    recorder.figure(&computed(figure, x, &ours).series("/subject"))?;
    let subjects = [(LINUX, Steering::Queue), (HASHED, Steering::Hash), (CHOSEN, rules(&["choose"; 2]))];
    let mut table = Table::new(figure, options, recorder, 2)?;
    for repeat in 0..options.repeat {
        let alone = table.bed.alone(BUSY, table.window())?;
        for (subject, steering) in &subjects {
            for (draw, payload) in draws(repeat) {
                let seen = table.measure(&Case {
                    subject,
                    steering: steering.clone(),
                    queue_core: FREE,
                    guests: vec![Guest::Busy(BUSY), Guest::Idle],
                    loads: &LOADS,
                    payload,
                    draw,
                    repeat,
                    parameters: json!({}),
                })?;
                let on =
                    |core: usize| seen.machines.iter().map(|machine| machine.by_core_pps[core]).sum::<f64>();
                let sample = json!({"machine_core": on(BUSY) / (on(BUSY) + on(FREE)),
                    "index": seen.machines[0].units_per_s / alone});
                table.line(subject, draw, json!({"payload": bytes(payload)}), sample)?;
            }
        }
    }
    Ok(())
}

/// VT6: losses of two flows.
pub(super) fn losses(figure: &PaperFigure, options: &FiguresOptions, recorder: &mut Recorder) -> Result<()> {
    const LOADS: [f64; 2] = [0.75; 2];
    let ours = format!(
        "{}. Two flows of 0.75 C each to machines that only receive, on any core; the port's queue is on the core that is not the \
         sender's. Millrace's rules name a core for each flow, as the paper's did, or let it choose. {DRAWS} pairs of source ports in \
         each repeat",
        set_up()
    );
    let x = Axis::new("/parameters/machine", "", "");
    let y = Axis::new("/sample/loss", "loss", "%").times(100.0);
    recorder.figure(&picture_of(figure, x, y, &ours).series("/subject"))?;
    let subjects = [
        (LINUX, Steering::Queue),
        (HASHED, Steering::Hash),
        (NAMED, rules(&["0", "1"])),
        (CHOSEN, rules(&["choose"; 2])),
    ];
    let mut table = Table::new(figure, options, recorder, 2)?;
    for repeat in 0..options.repeat {
        for (subject, steering) in &subjects {
            table.by_machine(subject, steering, BUSY, &LOADS, repeat)?;
        }
    }
    Ok(())
}

/// VT7: a flow with priority.
pub(super) fn priority(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const LOADS: [f64; 3] = [0.6; 3];
    let ours = format!(
        "{}. Three flows of 0.6 C each to machines that only receive, on any core, so two cores cannot receive all; the port's queue is \
         on the sender's core. Named: VM1's flow on that core, the others on the other one, as the paper has VM1's on a core of its own. \
         Chosen: Millrace chooses, for VM1's flow first (set_core:choose_first). This flow begins first and has one of two idle cores for itself. If \
         that is not the one with the queue, it loses as much as the others: in the port's ring, which the core that they fill has \
         to empty. {DRAWS} sets of source \
         ports in each repeat",
        set_up()
    );
    let x = Axis::new("/parameters/machine", "", "");
    let y = Axis::new("/sample/mbps", "arrived", "Mbit/s");
    recorder.figure(&picture_of(figure, x, y, &ours).series("/subject"))?;
    let subjects = [
        (HASHED, Steering::Hash),
        (NAMED, rules(&["0", "1", "1"])),
        (CHOSEN, rules(&["choose_first", "choose", "choose"])),
    ];
    let mut table = Table::new(figure, options, recorder, 3)?;
    for repeat in 0..options.repeat {
        for (subject, steering) in &subjects {
            table.by_machine(subject, steering, FREE, &LOADS, repeat)?;
        }
    }
    Ok(())
}

impl<'a> Table<'a> {
    fn new(
        figure: &'a PaperFigure,
        options: &'a FiguresOptions,
        recorder: &'a mut Recorder,
        machines: u8,
    ) -> Result<Self> {
        let bed = Bed::new(machines)?;
        let mut table = Self { figure, options, recorder, bed, capacity_pps: TOO_MUCH_PPS };
        let seen = table.measure(&Case {
            subject: LINUX,
            steering: Steering::Queue,
            queue_core: BUSY,
            guests: vec![Guest::Idle],
            loads: &[1.0],
            payload: HEAVY,
            draw: 0,
            repeat: 0,
            parameters: json!({"case": "C"}),
        })?;
        table.capacity_pps = seen.machines[0].received_pps;
        Ok(table)
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.options.seconds)
    }

    /// Measures all draws and payloads, and records a line for each machine.
    fn by_machine(
        &mut self,
        subject: &str,
        steering: &Steering,
        queue_core: usize,
        loads: &[f64],
        repeat: u16,
    ) -> Result<()> {
        for (draw, payload) in draws(repeat) {
            let seen = self.measure(&Case {
                subject,
                steering: steering.clone(),
                queue_core,
                guests: vec![Guest::Idle; loads.len()],
                loads,
                payload,
                draw,
                repeat,
                parameters: json!({}),
            })?;
            for (number, machine) in (1..).zip(&seen.machines) {
                let sample = json!({"loss": machine.loss, "mbps": machine.mbps});
                let parameters = json!({"machine": format!("VM{number}, {}", bytes(payload))});
                self.line(subject, draw, parameters, sample)?;
            }
        }
        Ok(())
    }

    fn measure(&mut self, case: &Case<'_>) -> Result<SteeringOutcome> {
        let Case { subject, loads, payload, draw, repeat, .. } = case;
        let flow = |(number, load): (u8, &f64)| Flow {
            machine: number,
            source_port: source_port(*draw, *payload, number),
            pps: load * self.capacity_pps,
            payload_bytes: *payload,
            begins: u32::from(number - 1) * APART,
        };
        let flows: Vec<Flow> = (1..).zip(*loads).map(flow).collect();
        self.bed.steer(&case.steering, case.queue_core)?;
        let warm_up = WARM_UP + (loads.len() - 1) as u32 * APART;
        let seen = self.bed.measure(&case.guests, &flows, warm_up, self.window())?;
        let mut parameters = case.parameters.clone();
        parameters["payload"] = bytes(*payload).into();
        parameters["draw"] = (*draw).into();
        let told: Vec<String> = seen
            .machines
            .iter()
            .map(|machine| format!("{:.1} Mbit/s, {:.1} % lost", machine.mbps, machine.loss * 100.0))
            .collect();
        eprintln!("  {subject} #{} {parameters}: {}", repeat + 1, told.join("; "));
        self.recorder.line(&json!({"record": "sample", "case": format!("{} runs", self.figure.id),
            "parameters": parameters, "subject": subject, "repeat": repeat, "sample": seen,
            "flows": flows.iter().map(|flow| json!({"pps": flow.pps, "source_port": flow.source_port}))
                .collect::<Vec<_>>()}))?;
        Ok(seen)
    }

    /// Records a value to draw.
    fn line(&mut self, subject: &str, repeat: u16, parameters: Value, sample: Value) -> Result<()> {
        self.recorder.line(&json!({"record": "sample", "case": self.figure.id, "parameters": parameters,
            "subject": subject, "repeat": repeat, "sample": sample}))
    }
}

/// The setup that all tables share.
fn set_up() -> String {
    "two cores, one of them also the sender's (which goes first there; sender_cpu in the raw data is its share), veth instead of 40 \
     gigabit Ethernet; machines are threads in network namespaces; each frame is decrypted with the kernel's AES-256 where \
     it leaves the tunnel, in plain C, because this kernel has no IPsec and no AES instructions"
        .into()
}

fn picture_of(figure: &PaperFigure, x: Axis, y: Axis, ours: &str) -> Figure {
    Figure { series: Vec::new(), ..picture(figure, x, y, ours) }
}

/// A second figure: what the machine still computes.
fn computed(figure: &PaperFigure, x: Axis, ours: &str) -> Figure {
    let y = Axis::new("/sample/index", "what the machine computes, of what it does alone", "");
    let title = format!("{}: what the machine still computes", figure.paper);
    Figure { name: format!("{} index", figure.id), title, ..picture_of(figure, x, y, ours) }
}

fn rules(cores: &[&str]) -> Steering {
    Steering::Rules(cores.iter().map(|core| core.to_string()).collect())
}

fn bytes(payload: u16) -> String {
    format!("{payload} bytes")
}

/// Draws of a repeat, each with its index among the payloads. No two repeats have the same draws.
fn draws(repeat: u16) -> impl Iterator<Item = (u16, u16)> {
    let of_repeat = repeat * DRAWS..(repeat + 1) * DRAWS;
    of_repeat.flat_map(|draw| PAYLOADS.map(|payload| (draw, payload)))
}

/// Ports far apart, the same in every run (49,152 and above belong to nobody, RFC 6335). Flows with another payload are
/// other flows, because the choice for a flow is kept for ten seconds.
fn source_port(draw: u16, payload: u16, machine: u8) -> u16 {
    let place = PAYLOADS.iter().position(|of| *of == payload).unwrap_or_default() as u32;
    let number = (2 * u32::from(draw) + place) * 8 + u32::from(machine);
    49_152 + (number * 8503 % 16_000) as u16
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_draw_has_ports_of_its_own() {
        let draws: Vec<u16> = (0..4).flat_map(super::draws).map(|(draw, _)| draw).collect();
        assert_eq!(draws.iter().collect::<HashSet<_>>().len(), 20);
        let of = |(draw, payload)| (1..=3).map(move |machine| source_port(draw, payload, machine));
        let ports: HashSet<u16> = (0..4).flat_map(super::draws).flat_map(of).collect();
        assert_eq!(ports.len(), 120);
        assert!(ports.iter().all(|port| *port >= 49_152));
        assert_ne!(source_port(4999, HEAVY, 1), source_port(4999, HEAVY, 2));
    }
}
