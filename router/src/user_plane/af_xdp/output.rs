//! A TX ring with the auxiliary queue of P3. Packets that find the ring full wait, and are sent before any newer packet. Their number is
//! bounded.

use super::{
    Fault, OpenError,
    buffer::{Buffer, Packet},
    descriptor::SHORTEST,
    sender::Sender,
    umem::{Promise, Umem},
};
use std::{collections::VecDeque, sync::Arc};

/// Packets by what happened to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputCounts {
    /// Given to the kernel.
    pub sent_packets: u64,
    /// Packets that waited in the auxiliary queue. They were sent, still wait, or were lost with the port.
    pub delayed_packets: u64,
    /// Dropped because the auxiliary queue was full too.
    pub dropped_full: u64,
    /// Dropped because they had no whole Ethernet header, or because their frame belongs to another memory.
    pub dropped_unfit: u64,
    /// Dropped because the port is gone. Packets that were in its TX ring are in [`OutputCounts::sent_packets`] instead.
    pub dropped_gone: u64,
    /// Dropped because the port has no TX queue of that number.
    pub dropped_no_queue: u64,
}

/// The packets that were given to an output up to a moment.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Packets that were sent, or waited to be sent.
    given: u64,
    /// Once the kernel has taken them all: how many frames all senders of the queue had given to it by then.
    sent: Option<u64>,
}

/// An output to one port. Waiting packets belong to no pool any more, so that another worker can go on with them.
pub struct Output {
    auxiliary: Auxiliary,
    counts: OutputCounts,
    /// The last call reported that the port is gone: the kernel will not take packets from the TX ring.
    gone: bool,
    sender: Sender,
}

/// The auxiliary queue of P3. When it is dropped, its frames go to the depot.
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
    /// An output in which `most` packets may wait.
    ///
    /// # Errors
    /// There are too few frames for them.
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

    /// Packets may still leave: from the auxiliary queue, or from the TX ring of a port that is not gone.
    pub fn has_waiting(&self) -> bool {
        !self.auxiliary.packets.is_empty() || !self.gone && self.sender.waiting() > 0
    }

    /// The last call reported that the port is gone.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Sends packets after all earlier ones. `packets` is empty then: those that find no room wait, or are dropped and counted.
    ///
    /// # Errors
    /// The port is down; then packets wait as far as there is room. Or it is gone or has no such TX queue; then they are dropped.
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

    /// Sends waiting packets. It is called by timer, in case no new packets come.
    ///
    /// # Errors
    /// Like [`Output::send`].
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

    /// Marks all packets that it was given until now.
    pub fn mark(&self) -> Mark {
        Mark { given: self.counts.sent_packets + self.waiting() as u64, sent: None }
    }

    /// Whether the marked packets have left, or cannot leave because the port is gone, down, or without a carrier or TX queue. It must be
    /// called repeatedly.
    ///
    /// Completions do not name a sender. But a device completes packets in the order in which the kernel took them. `mark.sent` is what all
    /// senders of the queue had given when the kernel had taken ours. When as many are completed, ours are among them.
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

/// Sends packets as long as the kernel takes some and there are more. `packets` keeps those that found no room.
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
        // There are no more packets, or the kernel took none.
        if pushed < room || sender.room(1) == 0 {
            return Ok(());
        }
    }
}
