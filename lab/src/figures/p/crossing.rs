//! Packets from one core to another, one by one and in order. One-phase forwarding does without this. The ring holds
//! pointers; an empty slot is a null pointer, so that both sides share nothing but the slots (Giacomoni et al.,
//! FastForward, PPoPP 2008). A crossing cannot cost less. `unsafe` is needed here to turn a pointer into a box again.

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{
            AtomicPtr,
            Ordering::{Acquire, Release},
        },
    },
};

use router::user_plane::calibrate::Buffer;

use super::bed::Packet;

struct Ring(Box<[AtomicPtr<Buffer>]>);

/// Puts packets in. There is one sender.
pub(super) struct Sender {
    ring: Arc<Ring>,
    at: usize,
}

/// Takes packets out. There is one receiver.
pub(super) struct Receiver {
    ring: Arc<Ring>,
    at: usize,
}

/// A ring with room for this many packets.
pub(super) fn crossing(slots: usize) -> (Sender, Receiver) {
    let ring = Arc::new(Ring((0..slots.max(1)).map(|_| AtomicPtr::default()).collect()));
    (Sender { ring: ring.clone(), at: 0 }, Receiver { ring, at: 0 })
}

impl Sender {
    /// `Err`: the ring is full.
    pub fn send(&mut self, packet: Packet) -> Result<(), Packet> {
        let slot = &self.ring.0[self.at];
        if !slot.load(Acquire).is_null() {
            return Err(packet);
        }
        slot.store(Box::into_raw(packet), Release);
        self.at = (self.at + 1) % self.ring.0.len();
        Ok(())
    }
}

impl Receiver {
    /// Takes the oldest packet.
    pub fn receive(&mut self) -> Option<Packet> {
        let slot = &self.ring.0[self.at];
        let packet = slot.load(Acquire);
        if packet.is_null() {
            return None;
        }
        slot.store(ptr::null_mut(), Release);
        self.at = (self.at + 1) % self.ring.0.len();
        // SAFETY: the pointer was a box when the only sender put it there. This only receiver read it before it emptied
        // the slot, and nobody reads it again: the next pointer there is another one.
        Some(unsafe { Box::from_raw(packet) })
    }

    /// Is the ring empty?
    pub fn is_empty(&self) -> bool {
        self.ring.0[self.at].load(Acquire).is_null()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for slot in &mut self.0 {
            let packet = *slot.get_mut();
            if !packet.is_null() {
                // SAFETY: see `receive`; both ends are gone.
                drop(unsafe { Box::from_raw(packet) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::worker::Frame;
    use std::{hint::spin_loop, thread};

    fn numbered(number: u16) -> Packet {
        let mut packet = Box::new(Buffer::new(2));
        packet.parts_mut().0.copy_from_slice(&number.to_be_bytes());
        packet.set_range(0..2);
        packet
    }

    #[test]
    fn packets_come_in_order_and_none_is_lost_or_left() {
        let (mut to, mut from) = crossing(8);
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..10_000 {
                    let mut packet = numbered(number);
                    while let Err(again) = to.send(packet) {
                        packet = again;
                        spin_loop();
                    }
                }
            });
            for number in 0..9_995u16 {
                let packet = loop {
                    match from.receive() {
                        Some(packet) => break packet,
                        None => spin_loop(),
                    }
                };
                assert_eq!(packet.data(), number.to_be_bytes());
            }
        });
        // The rest is freed with the ring.
        assert!(!from.is_empty());
    }

    #[test]
    fn a_full_ring_gives_the_packet_back() {
        let (mut to, mut from) = crossing(2);
        assert!(from.is_empty() && from.receive().is_none());
        assert!(to.send(numbered(1)).is_ok() && to.send(numbered(2)).is_ok());
        assert_eq!(to.send(numbered(3)).unwrap_err().data(), [0, 3]);
        assert_eq!(from.receive().unwrap().data(), [0, 1]);
        assert!(to.send(numbered(3)).is_ok());
    }
}
