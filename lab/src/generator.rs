//! The packet generator: a thread on its own core, in the generator's namespace, that keeps the kernel running
//! generator.bpf.c. What to send is in maps; counters are read while it runs.

use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use libbpf_rs::{
    ErrorKind, MapCore, MapFlags, MapHandle, ProgramInput,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    addresses::{GENERATOR_MAC, GENERATOR4, GENERATOR6},
    bpf::{self, Value, generator as skeleton},
    namespace::Namespace,
    packet::Target,
    sys,
};

/// `BPF_F_TEST_XDP_LIVE_FRAMES`
const LIVE_FRAMES: u32 = 2;
/// Most targets at once: size of the map `targets`.
pub const MAX_TARGETS: usize = 1 << 20;
/// Longest frame without FCS: one page less headroom and the tail the kernel keeps.
pub const MAX_FRAME: u16 = 3400;

/// How to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Frame length without FCS.
    pub frame_bytes: u16,
    /// Packets per second; `None`: flat out.
    pub rate_pps: Option<u64>,
}

enum Order {
    Run { frame_bytes: u16, packets: Option<u32> },
    End,
}

/// A generator, idle or running. Dropped, it stops.
pub struct Generator {
    orders: mpsc::Sender<Order>,
    done: mpsc::Receiver<Result<()>>,
    stop: Arc<AtomicBool>,
    running: bool,
    thread: Option<JoinHandle<()>>,
    maps: Maps,
    targets: Vec<Target>,
    thread_id: i32,
}

struct Maps {
    load: MapHandle,
    generated: MapHandle,
    targets: MapHandle,
}

impl Generator {
    /// Starts the idle thread on `core`; it will send out of `device` of `namespace`.
    pub fn start_thread(namespace: &Namespace, device: &str, core: usize) -> Result<Self> {
        sys::handle_wake();
        let stop = Arc::new(AtomicBool::new(false));
        let (orders, inbox) = mpsc::channel();
        let (outbox, done) = mpsc::channel();
        let (maps_out, maps_in) = mpsc::channel();
        let (file, device, stop_flag) = (namespace.handle()?, device.to_owned(), stop.clone());
        let thread = thread::Builder::new().name("generator".into()).spawn(move || {
            let work = || -> Result<()> {
                sys::enter_network_namespace(file.as_fd()).context("generator's namespace")?;
                sys::set_affinity(0, &[core]).context("pinning the generator")?;
                let skeleton = load_program(&device)?;
                let maps = Maps {
                    load: MapHandle::try_from(&skeleton.maps.load)?,
                    generated: MapHandle::try_from(&skeleton.maps.generated)?,
                    targets: MapHandle::try_from(&skeleton.maps.targets)?,
                };
                let _ = maps_out.send(Ok((maps, sys::thread_id())));
                while let Ok(Order::Run { frame_bytes, packets }) = inbox.recv() {
                    let result = run(&skeleton, frame_bytes, packets, &stop_flag);
                    let _ = outbox.send(result);
                }
                Ok(())
            };
            if let Err(error) = work() {
                let _ = maps_out.send(Err(error));
            }
        })?;
        let (maps, thread_id) = maps_in.recv().map_err(|_| anyhow!("the generator's thread died"))??;
        Ok(Self {
            orders,
            done,
            stop,
            running: false,
            thread: Some(thread),
            maps,
            targets: Vec::new(),
            thread_id,
        })
    }

    /// What to send to, in this order, again and again.
    pub fn set_targets(&mut self, targets: Vec<Target>, frame_bytes: u16) -> Result<()> {
        ensure!(!self.running, "the generator is running");
        ensure!((1..=MAX_TARGETS).contains(&targets.len()), "{} targets: 1 to {MAX_TARGETS}", targets.len());
        let shortest = targets.iter().map(Target::min_frame).max().unwrap_or_default();
        ensure!(
            (shortest..=MAX_FRAME).contains(&frame_bytes),
            "{frame_bytes}-byte frames: {shortest} to {MAX_FRAME}"
        );
        let keys: Vec<u8> = (0..targets.len() as u32).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> = targets.iter().flat_map(|t| t.value(frame_bytes).bytes().to_vec()).collect();
        self.maps.targets.update_batch(&keys, &values, targets.len() as u32, MapFlags::ANY, MapFlags::ANY)?;
        self.targets = targets;
        Ok(())
    }

    /// Before all normal threads (but after the caller, who is to measure on time), or after them.
    pub fn go_first(&self, first: bool) -> Result<()> {
        const NICE: i32 = 19;
        let level = |level| first.then_some(level);
        sys::set_realtime(self.thread_id, level(1)).context("priority of the generator")?;
        sys::set_realtime(0, level(2)).context("priority of the measuring thread")?;
        sys::set_nice(self.thread_id, if first { 0 } else { NICE }).context("priority of the generator")
    }

    /// As set.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Sends until [`Generator::stop`].
    pub fn start(&mut self, load: Load) -> Result<()> {
        self.order(load, None)
    }

    /// Sends exactly so many packets, as fast as it can, and returns when they are on the wire.
    pub fn send(&mut self, frame_bytes: u16, packets: u32) -> Result<()> {
        self.order(Load { frame_bytes, rate_pps: None }, Some(packets))?;
        self.wait()
    }

    fn order(&mut self, load: Load, packets: Option<u32>) -> Result<()> {
        ensure!(!self.running, "the generator is running");
        ensure!(!self.targets.is_empty(), "the generator has no targets");
        let value = skeleton::types::load {
            smac: GENERATOR_MAC,
            frame_bytes: load.frame_bytes,
            source4: u32::from_ne_bytes(GENERATOR4.octets()),
            target_count: self.targets.len() as u32,
            source6: GENERATOR6.octets(),
            rate: load.rate_pps.map_or(0, per_2_30_ns),
            limit: packets.map_or(0, u64::from),
        };
        bpf::write(&self.maps.load, 0, &value)?;
        bpf::write(&self.maps.generated, 0, &skeleton::types::generated::default())?;
        self.stop.store(false, Ordering::Relaxed);
        self.orders
            .send(Order::Run { frame_bytes: load.frame_bytes, packets })
            .map_err(|_| anyhow!("the generator's thread died"))?;
        self.running = true;
        Ok(())
    }

    /// Stops; what was sent is on the wire. Does nothing when idle.
    pub fn stop(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(20);
        while self.running {
            // Woken again and again: a wake-up just before the system call begins is lost.
            if let (true, Some(thread)) = (self.stop.load(Ordering::Relaxed), &self.thread) {
                sys::wake(thread);
            }
            match self.done.recv_timeout(Duration::from_millis(2)) {
                Ok(result) => {
                    self.running = false;
                    return result;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the generator's thread died"),
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(mpsc::RecvTimeoutError::Timeout) => bail!("the generator does not stop"),
            }
        }
        Ok(())
    }

    /// Packets handed to the port since the start of this run. Its ring may have been full: see [`crate::losses`].
    pub fn packets(&self) -> Result<u64> {
        Ok(self.generated()?.packets)
    }

    /// Packets since the start of this run that were due but not sent, because somebody else had the core.
    pub fn skipped(&self) -> Result<u64> {
        Ok(self.generated()?.skipped)
    }

    fn generated(&self) -> Result<skeleton::types::generated> {
        bpf::read(&self.maps.generated, 0)
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.stop();
        let _ = self.orders.send(Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn per_2_30_ns(pps: u64) -> u64 {
    ((u128::from(pps) << 30) / 1_000_000_000).max(1) as u64
}

fn load_program(device: &str) -> Result<skeleton::GeneratorSkel<'static>> {
    let skeleton = skeleton::GeneratorSkelBuilder::default()
        .open(bpf::storage())?
        .load()
        .context("generator program")?;
    let index = sys::interface_index(device).with_context(|| format!("no device {device}"))?;
    let mut value = index.to_ne_bytes().to_vec();
    value.extend([0; 4]);
    skeleton.maps.out.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY).context("generator's port")?;
    Ok(skeleton)
}

/// Runs the program until told to stop, or once for each of `packets`.
fn run(
    skeleton: &skeleton::GeneratorSkel<'_>,
    frame_bytes: u16,
    packets: Option<u32>,
    stop: &AtomicBool,
) -> Result<()> {
    let frame = vec![0; frame_bytes.into()];
    while !stop.load(Ordering::Relaxed) {
        let input = ProgramInput {
            data_in: Some(&frame),
            flags: LIVE_FRAMES,
            // Setting up and tearing down takes about 20 ms, so it is one call, ended by a signal (EINTR).
            repeat: packets.unwrap_or(i32::MAX as u32),
            ..Default::default()
        };
        match skeleton.progs.generate.test_run(input) {
            Ok(_) if packets.is_some() => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(error).context("generator (BPF_F_TEST_XDP_LIVE_FRAMES needs Linux 5.18)");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pacing_is_exact_enough() {
        for pps in [10_000u64, 100_000, 2_000_000] {
            let sent_in_a_second = (1_000_000_000 * per_2_30_ns(pps)) >> 30;
            assert!(sent_in_a_second.abs_diff(pps) * 1000 <= pps, "{pps}: {sent_in_a_second}");
        }
    }
}
