//! A TX ring with the auxiliary queue of P3: what finds the ring full waits, is sent before any newer packet, and there is an end to it.

use super::{
    Fault, OpenError,
    buffer::{Buffer, Packet},
    descriptor::SHORTEST,
    sender::Sender,
    umem::{Promise, Umem},
};
use std::{collections::VecDeque, sync::Arc};

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputCounts {
    /// Given to the kernel.
    pub sent_packets: u64,
    /// Had to wait in the auxiliary queue; they are sent, or wait, or were lost with the port.
    pub delayed_packets: u64,
    /// Dropped as the auxiliary queue was full too.
    pub dropped_full: u64,
    /// Dropped as they had no whole Ethernet header, or their frame is of another memory.
    pub dropped_unfit: u64,
    /// Dropped as the port is gone. What its TX ring has then is in [`OutputCounts::sent_packets`], and is not counted here.
    pub dropped_gone: u64,
    /// Dropped as the port has no TX queue of that number.
    pub dropped_no_queue: u64,
}

/// What was given to an output until a moment.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Packets that were sent, or waited to be.
    given: u64,
    /// Once the kernel has taken them all: what all senders of the queue had given to it by then.
    sent: Option<u64>,
}

/// A way out by one port. What waits is of no pool any more, so that another worker can go on with it.
pub struct Output {
    auxiliary: Auxiliary,
    counts: OutputCounts,
    /// The kernel said so last: nobody will take what the TX ring has.
    gone: bool,
    sender: Sender,
}

/// The queue of P3. Frames that are dropped with it go to the depot.
struct Auxiliary {
    packets: VecDeque<Packet>,
    most: usize,
    umem: Arc<Umem>,
    _promise: Promise,
}

impl Auxiliary {
    fn new(umem: &Arc<Umem>, most: usize) -> Result<Auxiliary, OpenError> {
        let needed = u32::try_from(most).unwrap_or(u32::MAX);
        let promise = umem.promise("packets that wait for a TX ring", needed)?;
        Ok(Auxiliary { packets: VecDeque::with_capacity(most), most, umem: umem.clone(), _promise: promise })
    }

    fn clear(&mut self) {
        let mut free = self.packets.drain(..).map(|packet| packet.frame).collect();
        self.umem.put(&mut free, 0);
    }
}

impl Drop for Auxiliary {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Output {
    /// `most` packets may wait.
    ///
    /// # Errors
    /// There are too few frames for those.
    pub(super) fn new(sender: Sender, most: usize) -> Result<Output, OpenError> {
        let auxiliary = Auxiliary::new(sender.umem(), most)?;
        Ok(Output { auxiliary, counts: OutputCounts::default(), gone: false, sender })
    }

    pub fn counts(&self) -> OutputCounts {
        self.counts
    }

    /// Packets that wait in the auxiliary queue.
    pub fn waiting(&self) -> usize {
        self.auxiliary.packets.len()
    }

    /// There are packets that may leave yet: in the auxiliary queue, or in the TX ring of a port that is not gone.
    pub fn has_waiting(&self) -> bool {
        !self.auxiliary.packets.is_empty() || !self.gone && self.sender.waiting() > 0
    }

    /// The kernel said so last.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Sends these after all earlier ones. `packets` is empty then: those that find no room wait, or are dropped and counted.
    ///
    /// # Errors
    /// The port is down, and packets wait as far as there is room; or it is gone or has no such TX queue, and they are dropped.
    pub(super) fn send(&mut self, packets: &mut Vec<Buffer>) -> Result<(), Fault> {
        if let Err(fault) = self.sender.has_queue() {
            self.counts.dropped_no_queue += packets.len() as u64;
            packets.clear();
            return Err(fault);
        }
        let mut result = self.flush();
        let all = packets.len();
        let umem = self.sender.umem();
        packets.retain(|packet| packet.len() >= usize::from(SHORTEST) && packet.is_of(umem));
        self.counts.dropped_unfit += (all - packets.len()) as u64;
        let mut rest = packets.drain(..);
        if result != Err(Fault::Gone) && self.auxiliary.packets.is_empty() {
            let mut packets = rest.by_ref().map(Buffer::into_packet);
            result = transmit(&mut self.sender, &mut self.counts, &mut packets);
            self.gone = result == Err(Fault::Gone);
        }
        if result == Err(Fault::Gone) {
            self.counts.dropped_gone += rest.len() as u64;
            return result;
        }
        for packet in rest {
            if self.auxiliary.packets.len() < self.auxiliary.most {
                self.auxiliary.packets.push_back(packet.into_packet());
                self.counts.delayed_packets += 1;
            } else {
                self.counts.dropped_full += 1;
            }
        }
        result
    }

    /// Sends what waits; by timer, where there are no new packets to do it.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub(super) fn flush(&mut self) -> Result<(), Fault> {
        self.sender.collect();
        if self.auxiliary.packets.is_empty() && self.sender.waiting() == 0 {
            return Ok(());
        }
        let waiting = &mut self.auxiliary.packets;
        let result =
            transmit(&mut self.sender, &mut self.counts, &mut std::iter::from_fn(|| waiting.pop_front()));
        self.gone = result == Err(Fault::Gone);
        if self.gone {
            self.counts.dropped_gone += self.waiting() as u64;
            self.auxiliary.clear();
        }
        result
    }

    /// All that it was given until now.
    pub fn mark(&self) -> Mark {
        Mark { given: self.counts.sent_packets + self.waiting() as u64, sent: None }
    }

    /// Has it left, or can it not, as the port is gone, down, without a carrier or a TX queue? To be asked again and again.
    ///
    /// Completions do not say whose they are. But a device completes what the kernel takes in that order: when as many are completed as all senders
    /// of the queue gave to it until the kernel had taken ours, ours are among them.
    pub(super) fn has_left(&self, mark: &mut Mark) -> bool {
        let taken = self.counts.sent_packets.saturating_sub(self.sender.waiting().into());
        if taken >= mark.given {
            let sent = *mark.sent.get_or_insert_with(|| self.sender.sent());
            // The owner of the queue may sleep.
            self.sender.collect_all();
            if self.sender.completed() >= sent {
                return true;
            }
        }
        self.gone || self.sender.check().is_err()
    }

    pub(super) fn into_sender(self) -> Sender {
        self.sender
    }
}

/// As long as the kernel takes some and there are more. `packets` keeps those there was no room for.
fn transmit(
    sender: &mut Sender,
    counts: &mut OutputCounts,
    packets: &mut impl Iterator<Item = Packet>,
) -> Result<(), Fault> {
    loop {
        let room = sender.room(u32::MAX);
        let pushed = sender.push(packets, room);
        counts.sent_packets += u64::from(pushed);
        sender.kick()?;
        // It stopped for want of packets, or the kernel took none.
        if pushed < room || sender.room(1) == 0 {
            return Ok(());
        }
    }
}
