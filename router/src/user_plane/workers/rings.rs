//! Opens, closes and hands on queues, TX rings, RX rings and slots.
//!
//! * **A new ring** is put into its slot when its worker has it.
//! * **A ring that ends**: its slot is emptied. After a grace period no packet comes to the ring. The path takes the packets
//!   in it, and it is closed.
//! * **A ring of another size**: the new ring replaces the old one in the slot. Its worker gets it when the old one is
//!   empty.
//! * **A queue whose owner ends** goes to another worker unchanged. A queue that needs other settings is closed and opened
//!   again, one queue after another.

use super::{
    control::Control,
    held::Ring,
    inner::Inner,
    plan::{PathPlan, PortPlan, WorkersPlan},
    report::{output_stand, port_name},
    thread::NotTaken,
};
use crate::{
    api::workers::OutputStand,
    linux::netns,
    user_plane::af_xdp::{Closed, Fault, OpenError, Opener, Queue, Receiver, Rings, Sender, Wanted},
};
use anyhow::{Context, Result, ensure};
use logic::{
    cores::CoreId,
    paths::{
        PathId,
        layout::{Layout, PortQueue},
    },
    plan::PortId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::fd::AsFd,
    time::Duration,
};

/// A path takes the packets in a ring that ends within this time, or never.
const DRAINS: Duration = Duration::from_secs(1);

/// Runs `task` in a port's namespace.
fn inside<T: Send>(namespace: &File, task: impl FnOnce() -> T + Send) -> Result<T> {
    netns::inside(namespace, task).context("entering the port's namespace (needs CAP_SYS_ADMIN)")
}

fn wanted(port: PortId, queue: u32, plan: &PortPlan) -> Wanted {
    let PortPlan { ifindex, zero_copy, polling, rings, .. } = *plan;
    Wanted { port, ifindex, queue, zero_copy, polling, rings }
}

/// Whether this is still a queue of the port: on the same device, in the namespace where the port is now.
fn is_of(opener: &Opener, plan: &PortPlan) -> bool {
    let Wanted { ifindex, queue, .. } = opener.wanted();
    let namespace = netns::Key::of(&plan.namespace).ok();
    (ifindex, opener.namespace()) == (plan.ifindex, namespace)
        && queue < plan.queues
        && opener.check() != Err(Fault::Gone)
}

/// Whether the queue is open as planned. RX rings are not compared, because they have sizes of their own.
fn is_as_wanted(opener: &Opener, plan: &PortPlan) -> bool {
    let now = opener.wanted();
    let but_for_rings = |wanted: Wanted| Wanted { rings: Rings { receive: 0, ..wanted.rings }, ..wanted };
    but_for_rings(now) == but_for_rings(wanted(now.port, now.queue, plan))
}

impl Control {
    /// Ends what the plan lacks, and queues of ports that were replaced or are gone.
    pub(super) fn end(&mut self, plan: &WorkersPlan, at: &BTreeMap<PathId, CoreId>) {
        let queues: BTreeSet<PortQueue> = self
            .held
            .queues
            .iter()
            .filter(|((port, _), (_, opener))| plan.ports.get(port).is_none_or(|new| !is_of(opener, new)))
            .map(|(queue, _)| *queue)
            .collect();
        let comes_by = |path: &PathId, port: PortId| {
            at.contains_key(path) && plan.paths.get(path).is_some_and(|path| path.ports.contains(&port))
        };
        let ends = |(queue, path): &Ring| queues.contains(queue) || !comes_by(path, queue.0);
        let rings: Vec<Ring> = self.held.rings.keys().filter(|ring| ends(ring)).copied().collect();
        self.end_rings(&rings);
        let paths: Vec<_> = self.held.paths.iter().filter(|(path, _)| !at.contains_key(path)).collect();
        for (path, core) in paths.into_iter().map(|(path, held)| (*path, held.core)).collect::<Vec<_>>() {
            let given = self.crew.ask(core, move |inner| inner.give_up(path));
            if self.note(given).is_some() {
                self.held.paths.remove(&path);
            }
        }
        queues.into_iter().for_each(|queue| self.end_queue(queue));
    }

    pub(super) fn empty_slot(&mut self, ring @ ((port, queue), path): Ring) -> Result<()> {
        self.slots.take(port, queue, path)?;
        self.filled.remove(&ring);
        Ok(())
    }

    fn end_rings(&mut self, rings: &[Ring]) {
        if rings.is_empty() {
            return;
        }
        for ring in rings {
            let emptied = self.empty_slot(*ring);
            self.note(emptied);
        }
        let settled = self.slots.settle();
        self.note(settled);
        for ring @ ((port, queue), path) in rings.iter().copied() {
            let Some((core, _)) = self.held.rings.get(&ring).copied() else { continue };
            self.drain(ring, core);
            let taken = self.crew.ask(core, move |inner| inner.io.take_receiver(path.into(), port, queue));
            if let Some(taken) = self.note(taken) {
                self.held.rings.remove(&ring);
                self.filled.remove(&ring);
                taken.into_iter().for_each(|receiver| self.close(receiver, path, core));
            }
        }
    }

    /// Waits until the path has taken all packets of a ring to which none come any more.
    fn drain(&mut self, ((port, queue), path): Ring, core: CoreId) {
        let is_empty =
            move |inner: &mut Inner| inner.is_stopped(path) || !inner.has_packets_of(path, port, queue);
        let drained = self.crew.until(core, DRAINS, is_empty);
        self.note(drained);
    }

    fn close(&mut self, receiver: Receiver, path: PathId, core: CoreId) {
        let ring_full = receiver.statistics().map_or(0, |statistics| statistics.receive_ring_full);
        let left = receiver.retire();
        let counted = self.crew.ask(core, move |inner| inner.count_closed(path, ring_full, left));
        self.note(counted);
    }

    /// Ends a queue on which no path has a ring any more.
    fn end_queue(&mut self, (port, queue): PortQueue) {
        let by_it = |((_, of), by): &(&(CoreId, PortId), &u32)| (*of, **by) == (port, queue);
        let outputs: Vec<CoreId> =
            self.held.outputs.iter().filter(by_it).map(|((core, _), _)| *core).collect();
        // Senders go first, because a queue waits for what they sent.
        outputs.into_iter().for_each(|core| self.end_output(core, port));
        let Some((owner, _)) = self.held.queues.get(&(port, queue)) else { return };
        let taken = self.crew.ask(*owner, move |inner| inner.take_queue(port, queue));
        if let Some(taken) = self.note(taken) {
            // The opener is dropped first, so this closes the queue.
            self.held.queues.remove(&(port, queue));
            drop(taken);
        }
    }

    fn end_output(&mut self, core: CoreId, port: PortId) {
        let marks = self.crew.ask(core, move |inner| {
            inner.release_all(None);
            inner.marks([port])
        });
        let marks = self.note(marks).unwrap_or_default();
        let name = port_name(&self.common.known_ports, port);
        self.wait_for(core, marks, &format!("port {name}"));
        let taken = self.crew.ask(core, move |inner| inner.take_output(port));
        let Some(taken) = self.note(taken) else { return };
        let by = self.held.outputs.remove(&(core, port));
        let Some(Closed { sender, counts, left }) = taken else { return };
        let all = self.closed.entry(port).or_default();
        (all.port, all.name) = (port, name.clone());
        all.add(&OutputStand { dropped_closed: left as u64, ..output_stand(port, name.clone(), counts) });
        let held = left + sender.waiting() as usize;
        let opener = by.and_then(|queue| self.held.opener((port, queue)));
        if held > 0 && opener.is_none_or(|opener| opener.check() != Err(Fault::Gone)) {
            tracing::warn!("port {name}: {held} packets of core {core} were not sent and are lost");
        }
    }

    /// Moves queues whose owner ends. Ends outputs that are not wanted, if their worker has no paths.
    pub(super) fn move_queues(&mut self, want: &Layout) {
        for ((core, port), queue) in self.held.outputs.clone() {
            let has_paths = self.held.paths.values().any(|path| path.core == core);
            if want.outputs.get(&(core, port)) != Some(&queue) && !has_paths {
                self.end_output(core, port);
            }
        }
        for (queue, from) in self.held.layout().owner {
            match want.owner.get(&queue) {
                Some(to) if *to == from => {}
                Some(to) => {
                    let moved = self.move_queue(queue, from, *to);
                    self.note(moved);
                }
                // No worker is left.
                None => self.end_queue(queue),
            }
        }
    }

    fn move_queue(&mut self, (port, queue): PortQueue, from: CoreId, to: CoreId) -> Result<()> {
        let taken = self.crew.ask(from, move |inner| inner.take_queue(port, queue))?;
        let taken: Queue = taken.context("the owner of a queue does not have it")?;
        let add = |inner: &mut Inner, queue| inner.add_queue(queue);
        if let Err(NotTaken { error, thing }) = self.crew.give(to, taken, add) {
            // Back to where it was.
            if let Some(queue) = thing {
                self.crew.give(from, queue, add).map_err(|not| not.error)?;
            }
            return Err(error);
        }
        if let Some((owner, _)) = self.held.queues.get_mut(&(port, queue)) {
            *owner = to;
        }
        Ok(())
    }

    /// Opens planned queues and TX rings that are not open.
    pub(super) fn open_ways_out(&mut self, plan: &WorkersPlan, want: &Layout) {
        for ((port, queue), owner) in &want.owner {
            if !self.held.queues.contains_key(&(*port, *queue))
                && let Some(of) = plan.ports.get(port)
            {
                let opened = self.open_queue(*port, *queue, of, *owner, want);
                self.note(opened.with_context(|| format!("port {}, queue {queue}", of.name)));
            }
        }
        for ((core, port), queue) in &want.outputs {
            if !self.held.outputs.contains_key(&(*core, *port))
                && let Some(of) = plan.ports.get(port)
            {
                let opened = self.open_output(*core, *port, *queue, of);
                self.note(opened.with_context(|| format!("port {}: a TX ring for core {core}", of.name)));
            }
        }
    }

    fn open_queue(
        &mut self,
        port: PortId,
        queue: u32,
        plan: &PortPlan,
        owner: CoreId,
        want: &Layout,
    ) -> Result<()> {
        let wanted = wanted(port, queue, plan);
        let (opened, sender) = inside(&plan.namespace, || Queue::open(&self.umem, wanted))??;
        let opener = opened.opener();
        let given = self.crew.give(owner, opened, |inner, queue| inner.add_queue(queue));
        given.map_err(|not| not.error)?;
        self.held.queues.insert((port, queue), (owner, opener));
        if want.outputs.get(&(owner, port)) == Some(&queue) && !self.held.outputs.contains_key(&(owner, port))
        {
            self.add_output(owner, port, queue, sender)?;
        }
        Ok(())
    }

    fn add_output(&mut self, core: CoreId, port: PortId, queue: u32, sender: Sender) -> Result<()> {
        let added = self.crew.give(core, sender, move |inner, sender| inner.add_output(port, sender));
        added.map_err(|not| not.error)??;
        self.held.outputs.insert((core, port), queue);
        Ok(())
    }

    fn opener(&self, queue: PortQueue) -> Result<Opener> {
        self.held.opener(queue).cloned().context("the queue is not open")
    }

    fn open_output(&mut self, core: CoreId, port: PortId, queue: u32, plan: &PortPlan) -> Result<()> {
        let opener = self.opener((port, queue))?;
        let sender = inside(&plan.namespace, || opener.sender())??;
        self.add_output(core, port, queue, sender)
    }

    /// Opens planned RX rings of these queues that are not open or have another size, and fills all empty slots.
    pub(super) fn open_rings(&mut self, plan: &WorkersPlan, want: &Layout, on: impl Fn(PortQueue) -> bool) {
        for (ring @ ((port, queue), path), core) in want.rings.iter().filter(|((queue, _), _)| on(*queue)) {
            let (Some(of), Some(on)) = (plan.paths.get(path), plan.ports.get(port)) else { continue };
            // It is not there if it could not be moved.
            let is_there = self.held.paths.get(path).is_some_and(|held| held.core == *core);
            let now = self.held.rings.get(ring).map(|(_, entries)| *entries);
            if !is_there || now == Some(of.ring) {
                continue;
            }
            let opened = self.open_ring(*ring, *core, of, on, now.is_some());
            self.note(opened.with_context(|| format!("path {}: port {}, queue {queue}", of.name, on.name)));
        }
        self.fill_slots();
    }

    fn open_ring(
        &mut self,
        ring: Ring,
        core: CoreId,
        path: &PathPlan,
        port: &PortPlan,
        replaces: bool,
    ) -> Result<()> {
        let (opener, entries) = (self.opener(ring.0)?, path.ring);
        let fill = opener.wanted().rings.fill;
        ensure!(entries.is_power_of_two() && entries >= 64, OpenError::RingSize(entries));
        ensure!(
            entries <= fill / 2,
            "a ring of {entries} packets needs a fill ring of twice as many or more; the queue's has {fill}"
        );
        let opener = opener.with_ring(entries);
        let receiver = inside(&port.namespace, || opener.receiver(ring.1.into()))??;
        if replaces {
            self.replace_ring(ring, core, receiver)?;
        } else {
            let added = self.crew.give(core, receiver, |inner, receiver| inner.io.add_receiver(receiver));
            added.map_err(|not| not.error)?;
            // The slot may still hold an older socket.
            self.filled.remove(&ring);
        }
        self.held.rings.insert(ring, (core, entries));
        Ok(())
    }

    /// Lets packets come to the new ring from now on. The path takes those in the old one first.
    fn replace_ring(
        &mut self,
        ring @ ((port, queue), path): Ring,
        core: CoreId,
        new: Receiver,
    ) -> Result<()> {
        if self.filled.remove(&ring) {
            self.slots.put(port, queue, path, new.as_fd())?;
            self.slots.settle()?;
            self.filled.insert(ring);
        }
        self.drain(ring, core);
        let swap = move |inner: &mut Inner, new| {
            let old = inner.io.take_receiver(path.into(), port, queue);
            inner.io.add_receiver(new);
            old
        };
        match self.crew.give(core, new, swap) {
            Ok(old) => old.into_iter().for_each(|old| self.close(old, path, core)),
            Err(not) => {
                // The old ring must get its slot back.
                self.filled.remove(&ring);
                return Err(not.error);
            }
        }
        Ok(())
    }

    /// Fills the slots of paths that run. Their workers have the rings by then, because packets come at once.
    fn fill_slots(&mut self) {
        let held = &self.held;
        let runs = |path: &PathId| held.paths.get(path).is_some_and(|path| !path.is_stopped);
        let is_empty = |ring: &Ring| !self.filled.contains(ring) && runs(&ring.1);
        let empty: Vec<_> =
            held.rings.iter().filter(|(ring, _)| is_empty(ring)).map(|(r, (c, _))| (*r, *c)).collect();
        for (ring, core) in empty {
            let filled = self.fill_slot(ring, core);
            self.note(filled);
        }
    }

    fn fill_slot(&mut self, ring: Ring, core: CoreId) -> Result<()> {
        let ((port, queue), path) = ring;
        let fd = self.crew.ask(core, move |inner| inner.socket_of(path, port, queue))?;
        let fd = fd.with_context(|| format!("path {path}: its ring on port {port} is gone"))?;
        self.slots.put(port, queue, path, fd.as_fd())?;
        self.filled.insert(ring);
        Ok(())
    }

    /// Closes and opens queues that need other rings or other polling, one after another, so that the others go on.
    pub(super) fn open_otherwise(&mut self, plan: &WorkersPlan, want: &Layout) {
        if self.lacks(plan).is_some() {
            // A queue that is closed might not find the memory to open again.
            return;
        }
        let is_other = |(queue, (_, opener)): &(&PortQueue, &(CoreId, Opener))| {
            plan.ports.get(&queue.0).is_some_and(|of| !is_as_wanted(opener, of))
        };
        let others: Vec<PortQueue> =
            self.held.queues.iter().filter(is_other).map(|(queue, _)| *queue).collect();
        for queue in others {
            let rings: Vec<Ring> = self.held.rings.keys().filter(|(of, _)| *of == queue).copied().collect();
            self.end_rings(&rings);
            self.end_queue(queue);
            self.open_ways_out(plan, want);
            self.open_rings(plan, want, |of| of == queue);
        }
    }
}
