//! Bounds the peers that wait before a listener, and those that come in, so that an idle peer keeps nobody out.
//!
//! A guest is a peer that was accepted. It waits until its request or handshake is complete; then it is inside. Both
//! numbers are bounded, for each source and in total. If too many wait, the longest waiting guest of the source with
//! the most guests is sent away. A source that floods therefore sends away its own guests. Others meet a full room only
//! if as many sources flood.
//!
//! Nothing here waits or reads a clock. The server of a guest gives it a deadline, and closes it when it is sent away.

use crate::base::guard::locked;
use std::{
    collections::HashMap,
    hash::Hash,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::oneshot;

/// Ends when a guest must go.
pub type Gone = oneshot::Receiver<()>;

/// The numbers of guests allowed.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub waiting: usize,
    pub waiting_of_a_source: usize,
    pub inside: usize,
    pub inside_of_a_source: usize,
}

/// The source that a connection from an address counts for. With IPv6 this is a /64, because a host that has one address usually
/// has 2^64.
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// The time between two attempts to listen on an address that was taken at the start.
pub const AGAIN: Duration = Duration::from_secs(3);

/// May an address that could not be listened on be free later, or come to this machine?
pub fn may_pass(error: &anyhow::Error) -> bool {
    let passes =
        |error: &io::Error| matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable);
    error.root_cause().downcast_ref().is_some_and(passes)
}

/// Why a port is not listened on, and what to do. `key`: the key of the configuration.
pub fn advice(key: &str, port: u16, error: &anyhow::Error) -> String {
    let is_taken = |error: &io::Error| error.kind() == ErrorKind::AddrInUse;
    let wanted = match error.root_cause().downcast_ref().is_some_and(is_taken) {
        true => format!("stop the program that has the port (`ss -ltnp 'sport = :{port}'` names it)"),
        false => "give the address to this machine".into(),
    };
    let seconds = AGAIN.as_secs();
    format!("{error:#}; {wanted}, or change {key} and reload; the daemon tries again every {seconds} s")
}

/// A door. Cloning it is cheap.
pub struct Door<S>(Arc<Mutex<Guests<S>>>);

impl<S> Clone for Door<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Guests<S> {
    room: Room,
    next: u64,
    /// In the order of arrival.
    waiting: Vec<Waiting<S>>,
    inside: HashMap<S, usize>,
}

struct Waiting<S> {
    id: u64,
    source: S,
    /// Dropping it sends the guest away.
    stays: oneshot::Sender<()>,
}

/// The place of a guest. Dropping it frees the place.
pub struct Pass<S: Hash + Eq + Clone> {
    door: Door<S>,
    source: S,
    id: u64,
    /// The sender of a guest that is inside: nothing sends it away.
    inside: Option<oneshot::Sender<()>>,
}

impl<S: Hash + Eq + Clone> Door<S> {
    pub fn new(room: Room) -> Self {
        let guests = Guests { room, next: 0, waiting: Vec::new(), inside: HashMap::new() };
        Self(Arc::new(Mutex::new(guests)))
    }

    /// Takes a place for a new guest, which waits. Another guest may have to go for it.
    pub fn knock(&self, source: S) -> (Pass<S>, Gone) {
        let mut guests = locked(&self.0);
        let of_source = guests.waiting.iter().filter(|guest| guest.source == source).count();
        if of_source >= guests.room.waiting_of_a_source {
            guests.send_away(&source);
        } else if guests.waiting.len() >= guests.room.waiting
            && let Some(busiest) = guests.busiest()
        {
            guests.send_away(&busiest);
        }
        let id = guests.next;
        guests.next += 1;
        let (stays, gone) = oneshot::channel();
        guests.waiting.push(Waiting { id, source: source.clone(), stays });
        (Pass { door: self.clone(), source, id, inside: None }, gone)
    }
}

impl<S: Hash + Eq + Clone> Guests<S> {
    /// The source with the most waiting guests. On a tie, the one whose guest has waited longest.
    fn busiest(&self) -> Option<S> {
        let mut counted: HashMap<&S, usize> = HashMap::new();
        self.waiting.iter().for_each(|guest| *counted.entry(&guest.source).or_default() += 1);
        let most = *counted.values().max()?;
        self.waiting.iter().map(|guest| &guest.source).find(|source| counted[source] == most).cloned()
    }

    fn send_away(&mut self, source: &S) {
        if let Some(oldest) = self.waiting.iter().position(|guest| guest.source == *source) {
            self.waiting.remove(oldest);
        }
    }
}

impl<S: Hash + Eq + Clone> Pass<S> {
    /// Lets the guest in. Returns false if there is no room inside, or if the guest was sent away. With `reserved`, only
    /// guests of its own source count.
    pub fn enter(&mut self, reserved: bool) -> bool {
        let mut guests = locked(&self.door.0);
        let of_source = guests.inside.get(&self.source).copied().unwrap_or(0);
        let is_full = !reserved && guests.inside.values().sum::<usize>() >= guests.room.inside;
        let found = guests.waiting.iter().position(|guest| guest.id == self.id);
        let Some(at) = found.filter(|_| !is_full && of_source < guests.room.inside_of_a_source) else {
            return self.inside.is_some();
        };
        self.inside = Some(guests.waiting.remove(at).stays);
        *guests.inside.entry(self.source.clone()).or_default() += 1;
        true
    }
}

impl<S: Hash + Eq + Clone> Drop for Pass<S> {
    fn drop(&mut self) {
        let mut guests = locked(&self.door.0);
        if self.inside.is_none() {
            guests.waiting.retain(|guest| guest.id != self.id);
        } else if let Some(left) = guests.inside.get_mut(&self.source) {
            *left -= 1;
            if *left == 0 {
                guests.inside.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { waiting: 6, waiting_of_a_source: 4, inside: 3, inside_of_a_source: 2 };
    type Guest = (Pass<u8>, Gone);

    fn is_sent_away(guest: &mut Guest) -> bool {
        guest.1.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    fn sent_away(guests: &mut [Guest]) -> Vec<usize> {
        (0..guests.len()).filter(|i| is_sent_away(&mut guests[*i])).collect()
    }

    #[test]
    fn a_source_that_floods_sends_away_its_own() {
        let door = Door::new(ROOM);
        let mut other = [door.knock(2), door.knock(3)];
        let mut flood: Vec<_> = (0..10).map(|_| door.knock(1)).collect();
        assert_eq!(sent_away(&mut flood), [0, 1, 2, 3, 4, 5]);
        assert!(sent_away(&mut other).is_empty());
        // The room is full: one more guest of the busiest source goes.
        let mut late = door.knock(4);
        assert_eq!(sent_away(&mut flood), [0, 1, 2, 3, 4, 5, 6]);
        assert!(!flood[0].0.enter(false), "a guest that was sent away does not come in");
        assert!(!is_sent_away(&mut late) && late.0.enter(false) && other[0].0.enter(false));
        assert!(!is_sent_away(&mut late), "a guest that is inside is not sent away");
    }

    #[test]
    fn of_many_sources_the_one_that_waited_longest_goes() {
        let door = Door::new(ROOM);
        let mut all: Vec<_> = (0..8).map(|source| door.knock(source)).collect();
        assert_eq!(sent_away(&mut all), [0, 1]);
    }

    #[test]
    fn places_inside_are_bounded_and_free_at_once() {
        let door = Door::new(ROOM);
        let mut first: Vec<_> = (0..3).map(|_| door.knock(1)).collect();
        let entered: Vec<_> = first.iter_mut().map(|guest| guest.0.enter(false)).collect();
        assert_eq!(entered, [true, true, false]);
        let (mut second, mut third) = (door.knock(2), door.knock(3));
        assert!(second.0.enter(false) && !third.0.enter(false) && third.0.enter(true));
        drop(first.remove(0));
        assert!(!first[1].0.enter(false), "three are inside, one of them by reservation");
        drop(second);
        assert!(first[1].0.enter(false) && first[1].0.enter(false));
        let mut flood: Vec<_> = (0..20).map(|_| door.knock(1)).collect();
        assert_eq!(sent_away(&mut flood).len(), 16);
        drop((first, third, flood));
        let guests = locked(&door.0);
        assert!(guests.waiting.is_empty() && guests.inside.is_empty());
    }
}
