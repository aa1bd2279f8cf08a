//! Follows packets through all rules that they pass, and proves that each of them is accepted, with no effect that
//! anybody else could see.
//!
//! If the result of a comparison is not known, the walk follows both results. A proof needs every one of these ways
//! to end in "accept". The first rule that prevents this is the [`Obstacle`]. So a proof never depends on a guess,
//! and an obstacle may be one that no packet meets.

use super::{
    bits::{Answer, Bits, Mark, Registers},
    extension,
    ruleset::{
        Base, Chain, Comparison, Devices, Element, Expression, Family, Header, Hook, Into, Register, Rule,
        Ruleset, Set, Table, Value, Verdict,
    },
    traffic::{Device, Loaded, NAT_DESTINATION, NAT_SOURCE, Place, Scope, Traffic, UNMARKED, Version},
};
use crate::cause::Code;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

/// The most steps of a proof. The limit bounds the time that rules of other parties can cost.
const MOST_STEPS: u32 = 1_000_000;
/// `NFT_JUMP_STACK_SIZE`
const MOST_JUMPS: usize = 16;
/// The most ranges of addresses that a proof for all packets may leave out.
const MOST_EXCEPTIONS: usize = 16;

/// All packets of the traffic are accepted, except those of `except`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Flow tables to which rules try to add the connection on every packet.
    pub flow_tables: BTreeSet<String>,
    /// The proof holds until this time of CLOCK_MONOTONIC, when an element of a set may expire; `None`: until rules change.
    pub holds_until: Option<Duration>,
    /// Linux decides about packets with these addresses. Only [`Scope::All`] has any.
    pub except: Vec<Exception>,
}

impl Proof {
    pub fn ends_before(&self, time: Duration) -> bool {
        self.holds_until.is_some_and(|until| until < time)
    }
}

/// Addresses from `low` to `high`, both included, in network byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    pub part: AddressPart,
    pub low: Vec<u8>,
    pub high: Vec<u8>,
}

impl Exception {
    /// Does it cover all addresses of the other, regardless of `part`?
    pub fn contains(&self, other: &Exception) -> bool {
        self.low.len() == other.low.len() && self.low <= other.low && self.high >= other.high
    }

    /// A single address. `None`: it is of the other version.
    pub fn of_address(address: IpAddr, version: Version) -> Option<Exception> {
        let bytes = match (address, version) {
            (IpAddr::V4(address), Version::V4) => address.octets().to_vec(),
            (IpAddr::V6(address), Version::V6) => address.octets().to_vec(),
            _ => return None,
        };
        Some(Exception { part: AddressPart::Source, low: bytes.clone(), high: bytes })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressPart {
    Source,
    Destination,
}

/// The rule that prevented a proof. All names are foreign text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub family: Family,
    pub table: String,
    pub chain: String,
    /// `None`: the chain itself.
    pub handle: Option<u64>,
    pub why: Why,
}

impl Obstacle {
    /// A rule of a chain; without `handle`, the chain itself.
    pub fn new(table: &Table, chain: &str, handle: Option<u64>, why: Why) -> Obstacle {
        Obstacle { family: table.family, table: table.name.clone(), chain: chain.to_owned(), handle, why }
    }

    /// What kind of cause it is.
    pub fn code(&self) -> Code {
        match self.why {
            Why::Translates(_) => Code::Nat,
            Why::TooMuch => Code::FirewallTooLarge,
            _ => Code::FirewallRule,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It may drop a packet.
    Drops,
    /// The policy of the chain drops packets that no rule accepts.
    Policy,
    /// It has this statement or match, which has effects or is not understood.
    Does(String),
    /// It asks a map of verdicts that packets can change.
    AsksChangingMap(String),
    /// It names something that is not there, or jumps are nested too deeply.
    Malformed,
    /// The proof would take too many steps.
    TooMuch,
    /// It is hooked where this version knows no hook.
    UnknownHook,
    /// It looks at frames of a device below, with their VLAN tags.
    BelowVlan,
    /// This statement may translate connections to any address.
    Translates(String),
    /// It is too long to be read.
    Hidden,
}

/// Proves that all packets of this traffic are accepted.
pub fn prove(ruleset: &Ruleset, traffic: &Traffic) -> Result<Proof, Obstacle> {
    Prover::new(ruleset, traffic.version).prove(traffic, MOST_STEPS).0
}

/// Makes proofs about traffic of one version.
pub struct Prover<'a> {
    /// The base chains that packets pass, in this order.
    chains: Vec<Hooked<'a>>,
    until: Duration,
}

/// A base chain, with its table and its name.
type Hooked<'a> = (&'a Table, &'a str, &'a Chain, &'a Base);

impl<'a> Prover<'a> {
    pub fn new(ruleset: &'a Ruleset, version: Version) -> Prover<'a> {
        let mut chains: Vec<_> = ruleset
            .tables
            .iter()
            .filter(|table| !table.dormant && table.family.concerns(version))
            .flat_map(|table| table.chains.iter().map(move |(name, chain)| (&**table, name.as_str(), chain)))
            .filter_map(|(table, name, chain)| Some((table, name, chain, chain.base.as_ref()?)))
            .collect();
        chains.sort_by_key(|(.., base)| place(base));
        Prover { chains, until: Duration::ZERO }
    }

    /// Proofs hold at least until this time of CLOCK_MONOTONIC. Elements of sets that expire before may be there or not.
    pub fn holding_until(self, until: Duration) -> Prover<'a> {
        Prover { until, ..self }
    }

    /// Proves that all packets of this traffic are accepted, in at most so many steps. Also returns the steps taken.
    pub fn prove(&self, traffic: &Traffic, steps: u32) -> (Result<Proof, Obstacle>, u32) {
        let is_asked = |base: &Base| !base.nat || traffic.scope == Scope::All;
        self.follow(traffic, steps, Mark::known(UNMARKED), is_asked)
    }

    /// The same, that NAT translates no packet of this traffic, whatever other rules do.
    pub fn prove_untranslated(&self, traffic: &Traffic, steps: u32) -> (Result<Proof, Obstacle>, u32) {
        self.follow(traffic, steps, Mark::unknown(), |base| base.nat)
    }

    /// Follows the packets, which come with this mark, through some of the chains.
    fn follow(
        &self,
        traffic: &Traffic,
        steps: u32,
        mark: Mark,
        is_asked: impl Fn(&Base) -> bool,
    ) -> (Result<Proof, Obstacle>, u32) {
        let steps = steps.min(MOST_STEPS);
        let mut walk =
            Walk { traffic, proof: Proof::default(), until: self.until, steps_left: steps, certain: true };
        let chains: Vec<_> = self.chains.iter().copied().filter(|(.., base)| is_asked(base)).collect();
        let result = chains.chunk_by(|(.., one), (.., other)| place(one) == place(other)).try_fold(
            mark,
            |mark, together| {
                let after = walk.place(together, mark)?;
                // Only the first packet of a connection passes chains of NAT.
                Ok(if together.iter().any(|(.., base)| base.nat) { after.join(mark) } else { after })
            },
        );
        (result.map(|_| walk.proof), steps - walk.steps_left)
    }
}

/// Where a chain stands. Chains of NAT run inside the kernel's own hooks of NAT, whatever their priorities are.
fn place(base: &Base) -> (Hook, i32) {
    let priority = match (base.nat, base.hook) {
        (true, Hook::Prerouting) => NAT_DESTINATION,
        (true, _) => NAT_SOURCE,
        _ => base.priority,
    };
    (base.hook, priority)
}

/// How a rule or a chain can end, and what is known of the packet's mark then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ends {
    /// The next rule follows; of a chain: the caller goes on.
    next: Option<Mark>,
    accepts: Option<Mark>,
    /// The chain ends without a verdict.
    returns: Option<Mark>,
}

impl Ends {
    fn next(mark: Mark) -> Ends {
        Ends { next: Some(mark), ..Ends::default() }
    }

    fn or(self, other: Ends) -> Ends {
        Ends {
            next: either(self.next, other.next),
            accepts: either(self.accepts, other.accepts),
            returns: either(self.returns, other.returns),
        }
    }
}

/// The mark of a packet that may have come either way.
fn either(one: Option<Mark>, other: Option<Mark>) -> Option<Mark> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.join(other)),
        (one, other) => one.or(other),
    }
}

/// Where the walk is.
struct Position<'a> {
    table: &'a Table,
    chain: &'a str,
    handle: Option<u64>,
    place: Place,
    depth: usize,
}

impl Position<'_> {
    fn obstacle(&self, why: Why) -> Obstacle {
        Obstacle::new(self.table, self.chain, self.handle, why)
    }

    fn does<T>(&self, what: &str) -> Result<T, Obstacle> {
        Err(self.obstacle(Why::Does(what.to_owned())))
    }
}

/// The registers of a rule, which address of the packet was loaded last, and the packet's mark.
#[derive(Clone)]
struct State {
    registers: Registers,
    address: Option<LoadedAddress>,
    mark: Mark,
}

/// The first bytes of an address in a register.
#[derive(Clone)]
struct LoadedAddress {
    part: AddressPart,
    register: Register,
    mask: Vec<u8>,
}

/// Packets that a step of a rule possibly does not match.
struct Miss {
    mark: Mark,
    /// The packets that it matches have these addresses.
    except: Option<Vec<Exception>>,
}

struct Walk<'a> {
    traffic: &'a Traffic,
    proof: Proof,
    /// As in [`Prover::holding_until`].
    until: Duration,
    steps_left: u32,
    /// All packets come to this step.
    certain: bool,
}

/// Chains that were followed before, by name and by the mark of packets that come to them.
type Known<'a> = BTreeMap<(&'a str, Mark), Ends>;

impl Walk<'_> {
    /// Follows the chains of one hook and priority. Linux runs them in an order that is not known, so packets can come
    /// to each with a mark that any other has set. Returns the mark that they leave with.
    fn place(&mut self, chains: &[Hooked<'_>], mark: Mark) -> Result<Mark, Obstacle> {
        if let [one] = chains {
            return self.base(*one, mark);
        }
        let flow_tables = self.proof.flow_tables.clone();
        let any = chains.iter().try_fold(mark, |any, chain| Ok(any.join(self.base(*chain, mark)?)))?;
        if any == mark {
            return Ok(mark);
        }
        self.proof.flow_tables = flow_tables;
        self.place(chains, any)
    }

    fn base(&mut self, (table, name, chain, base): Hooked<'_>, mark: Mark) -> Result<Mark, Obstacle> {
        let place = Place { hook: base.hook, priority: base.priority };
        let at = Position { table, chain: name, handle: None, place, depth: 0 };
        match self.device(base) {
            _ if base.hook == Hook::Unknown => return Err(at.obstacle(Why::UnknownHook)),
            Some(Bound::Elsewhere) => return Ok(mark),
            Some(Bound::Below) if chain.rules.is_empty() && base.accepts => return Ok(mark),
            Some(Bound::Below) => return Err(at.obstacle(Why::BelowVlan)),
            Some(Bound::Here) | None => (),
        }
        self.certain = true;
        let ends = self.chain(&at, chain, mark, &mut Known::new())?;
        match ends.returns.is_some() && !base.accepts {
            true => Err(at.obstacle(Why::Policy)),
            // A chain always ends in some way.
            false => Ok(either(ends.accepts, ends.returns).unwrap_or(mark)),
        }
    }

    /// `None`: the chain is not bound to devices.
    fn device(&self, base: &Base) -> Option<Bound> {
        let sides = match base.hook {
            Hook::Ingress => &self.traffic.input,
            Hook::Egress => &self.traffic.output,
            _ => return None,
        };
        Some(match &base.devices {
            Devices::All | Devices::Unknown => Bound::Here,
            Devices::Named(names) => bound(names, sides),
        })
    }

    /// Follows a chain; the result has no `next`.
    fn chain<'a>(
        &mut self,
        at: &Position<'a>,
        chain: &'a Chain,
        mark: Mark,
        known: &mut Known<'a>,
    ) -> Result<Ends, Obstacle> {
        let key = (at.chain, mark);
        if let Some(ends) = known.get(&key) {
            return Ok(*ends);
        }
        let mut ends = Ends::next(mark);
        for rule in &chain.rules {
            let Some(mark) = ends.next.take() else { break };
            self.spend(at, 1)?;
            let at = Position { handle: Some(rule.handle), ..*at };
            let state = State { registers: Registers::unknown(), address: None, mark };
            ends = ends.or(self.rule(&at, rule, 0, state, known)?);
        }
        let ends = Ends { next: None, returns: either(ends.returns, ends.next), ..ends };
        known.insert(key, ends);
        Ok(ends)
    }

    /// Follows a rule from this step on.
    fn rule<'a>(
        &mut self,
        at: &Position<'a>,
        rule: &'a Rule,
        first: usize,
        state: State,
        known: &mut Known<'a>,
    ) -> Result<Ends, Obstacle> {
        let certain = self.certain;
        let mut misses = Vec::new();
        let matches = self.steps(at, rule, first, state, known, &mut misses);
        if misses.is_empty() {
            return matches;
        }
        let goes_on = matches.as_ref().map_or(true, |ends| ends.accepts.or(ends.returns).is_none());
        self.certain = certain && goes_on;
        let mut ends = match matches {
            Ok(ends) => ends,
            Err(obstacle) => loop {
                // Packets that match this step are left out, so none comes to the steps behind it.
                let Some(miss) = misses.pop() else { return Err(obstacle) };
                if miss.except.is_some_and(|except| self.leave_out(&except)) {
                    break Ends::next(miss.mark);
                }
            },
        };
        misses.iter().for_each(|miss| ends = ends.or(Ends::next(miss.mark)));
        Ok(ends)
    }

    /// Follows the steps of a rule, and notes those that may not match. Their number is not bounded by the stack.
    fn steps<'a>(
        &mut self,
        at: &Position<'a>,
        rule: &'a Rule,
        first: usize,
        mut state: State,
        known: &mut Known<'a>,
        misses: &mut Vec<Miss>,
    ) -> Result<Ends, Obstacle> {
        for (i, step) in rule.expressions.iter().enumerate().skip(first) {
            self.spend(at, 1)?;
            let matched = match step {
                Expression::Verdict(verdict) => match self.verdict(at, verdict, state.mark, known)? {
                    Some(ends) => return Ok(ends),
                    None => Answer::Yes,
                },
                Expression::Lookup { from, set, into: Into::Verdict, .. } => {
                    return self.verdict_map(at, rule, i, state, *from, set, known);
                }
                _ => self.step(at, step, &mut state)?,
            };
            match matched {
                Answer::Yes => (),
                Answer::No => return Ok(Ends::next(state.mark)),
                Answer::Maybe => {
                    misses.push(Miss { mark: state.mark, except: self.exceptions(at, step, &state) });
                    self.certain = false;
                }
            }
        }
        Ok(Ends::next(state.mark))
    }

    fn spend(&mut self, at: &Position<'_>, steps: usize) -> Result<(), Obstacle> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        match self.steps_left.checked_sub(steps) {
            Some(left) => {
                self.steps_left = left;
                Ok(())
            }
            None => {
                self.steps_left = 0;
                Err(at.obstacle(Why::TooMuch))
            }
        }
    }

    /// `None`: the rule goes on.
    fn verdict<'a>(
        &mut self,
        at: &Position<'a>,
        verdict: &'a Verdict,
        mark: Mark,
        known: &mut Known<'a>,
    ) -> Result<Option<Ends>, Obstacle> {
        let (name, is_jump) = match verdict {
            Verdict::Accept => return Ok(Some(Ends { accepts: Some(mark), ..Ends::default() })),
            Verdict::Drop => return Err(at.obstacle(Why::Drops)),
            Verdict::Continue => return Ok(None),
            Verdict::Break => return Ok(Some(Ends::next(mark))),
            Verdict::Return => return Ok(Some(Ends { returns: Some(mark), ..Ends::default() })),
            Verdict::Other => return at.does("queue"),
            Verdict::Jump(name) => (name, true),
            Verdict::Goto(name) => (name, false),
        };
        let Some(chain) = at.table.chains.get(name).filter(|_| at.depth < MOST_JUMPS) else {
            return Err(at.obstacle(Why::Malformed));
        };
        let below = Position { chain: name, handle: None, depth: at.depth + 1, ..*at };
        let ends = self.chain(&below, chain, mark, known)?;
        Ok(Some(match is_jump {
            true => Ends { next: ends.returns, accepts: ends.accepts, returns: None },
            false => ends,
        }))
    }

    /// A map of verdicts: follows each verdict that the map can return for the key.
    #[expect(clippy::too_many_arguments)]
    fn verdict_map<'a>(
        &mut self,
        at: &Position<'a>,
        rule: &'a Rule,
        step: usize,
        state: State,
        from: Register,
        name: &str,
        known: &mut Known<'a>,
    ) -> Result<Ends, Obstacle> {
        let found = self.look_up(at, &state, from, name)?;
        if found.changing {
            return Err(at.obstacle(Why::AsksChangingMap(name.to_owned())));
        }
        let mut ends = if found.is_there == Answer::Yes { Ends::default() } else { Ends::next(state.mark) };
        self.certain &= found.is_there != Answer::Maybe && found.values.len() < 2;
        for value in found.values {
            let Value::Verdict(verdict) = value else { return Err(at.obstacle(Why::Malformed)) };
            ends = ends.or(match self.verdict(at, verdict, state.mark, known)? {
                Some(ends) => ends,
                None if at.depth == MOST_JUMPS => return Err(at.obstacle(Why::TooMuch)),
                None => {
                    let deeper = Position { depth: at.depth + 1, ..*at };
                    self.rule(&deeper, rule, step + 1, state.clone(), known)?
                }
            });
        }
        Ok(ends)
    }

    /// A step that is neither a verdict nor a map of them: does it match?
    fn step(&mut self, at: &Position<'_>, step: &Expression, state: &mut State) -> Result<Answer, Obstacle> {
        let registers = &mut state.registers;
        let (loaded, into) = match step {
            Expression::Meta { key, into } => (self.traffic.meta(*key, at.place, state.mark), *into),
            Expression::Ct { key, direction, into } => (self.traffic.ct(*key, *direction, at.place), *into),
            Expression::Payload { header, offset, bytes, into } => {
                let loaded = self.traffic.payload(*header, *offset, *bytes, at.place);
                store(registers, *into, &loaded);
                state.address = self.address(*header, *offset, *bytes, *into);
                return Ok(matched(&loaded));
            }
            Expression::DestinationType { into } => match self.traffic.destination_type(at.place) {
                Some(kind) => (Loaded::Value(Bits::known(&u32::from(kind).to_ne_bytes())), *into),
                None => (Loaded::Unsure(Bits::unknown(4)), *into),
            },
            Expression::Load { bytes, into } => (Loaded::Unsure(Bits::unknown(*bytes as usize)), *into),
            Expression::Constant { value, into } => (Loaded::Value(Bits::known(value)), *into),
            Expression::Mask { from, into, mask, xor } => {
                let masked = registers.load(*from, mask.len()).masked(mask, xor);
                registers.store(*into, &masked);
                let address =
                    state.address.take().filter(|a| a.register == *from && xor.iter().all(|x| *x == 0));
                state.address = address.map(|a| {
                    let loaded = a.mask.iter().chain(std::iter::repeat(&0));
                    let mask = mask.iter().zip(loaded).map(|(mask, loaded)| mask & loaded).collect();
                    LoadedAddress { register: *into, mask, ..a }
                });
                return Ok(Answer::Yes);
            }
            Expression::Swap { from, into, bytes, unit } => {
                let swapped = registers.load(*from, *bytes as usize).swapped(*unit as usize);
                (Loaded::Value(swapped), *into)
            }
            Expression::Compare { from, by, value } => {
                return Ok(registers.load(*from, value.len()).compare(*by, value));
            }
            Expression::Range { from, outside, low, high } => {
                return Ok(registers.load(*from, low.len()).between(low, high).inverted(*outside));
            }
            Expression::Lookup { from, set, absent, into } => {
                let found = self.look_up(at, state, *from, set)?;
                if let Into::Register(into) = into {
                    let values = found.values.iter().map(|value| match value {
                        Value::Bytes(bytes) => Bits::known(bytes),
                        _ => Bits::unknown(REGISTER_VALUE),
                    });
                    let joined = values.reduce(|a, b| a.join(&b)).filter(|_| !found.changing);
                    state.registers.store(*into, &joined.unwrap_or(Bits::unknown(REGISTER_VALUE)));
                    state.address = None;
                }
                return Ok(found.is_there.inverted(*absent));
            }
            Expression::SetMeta { key: META_MARK, from } => {
                state.mark = Mark::of(&registers.load(*from, 4));
                return Ok(Answer::Yes);
            }
            Expression::ChangeMark { keep, flip } => {
                state.mark = state.mark.changed(*keep, *flip);
                return Ok(Answer::Yes);
            }
            // Conntrack sets helpers of new connections only (nft_ct_helper_obj_eval).
            Expression::SetHelper
                if self.traffic.scope != Scope::All && at.place.has_connection() == Answer::Yes =>
            {
                return Ok(Answer::Yes);
            }
            Expression::SetHelper => return at.does("ct helper set"),
            Expression::Translate { name, .. } => return at.does(name),
            Expression::SetMeta { .. } => return at.does("meta set"),
            Expression::Count => return Ok(Answer::Yes),
            Expression::AddFlow(name) => {
                if self.certain {
                    self.proof.flow_tables.insert(name.clone());
                }
                // A packet that the flow table does not take ends the rule (nft_flow_offload_eval).
                return Ok(Answer::Maybe);
            }
            Expression::Update { set } => return at.does(&format!("update @{set}")),
            Expression::Match(extension) => {
                return match extension::matches(extension, self.traffic, at.place, state.mark) {
                    Some(answer) => Ok(answer),
                    None => at.does(&format!("-m {}", extension.name)),
                };
            }
            Expression::Maybe(_) => return Ok(Answer::Maybe),
            Expression::Hidden => return Err(at.obstacle(Why::Hidden)),
            Expression::Other(name) => return at.does(name),
            Expression::Verdict(_) => return Err(at.obstacle(Why::Malformed)),
        };
        store(registers, into, &loaded);
        state.address = None;
        Ok(matched(&loaded))
    }

    /// The address that a load has put into a register.
    fn address(&self, header: Header, offset: u32, bytes: u32, register: Register) -> Option<LoadedAddress> {
        let (source, destination, length) = match self.traffic.version {
            Version::V4 => (12, 16, 4),
            Version::V6 => (8, 24, 16),
        };
        let part = match offset {
            _ if header != Header::Network || bytes > length => return None,
            _ if offset == source => AddressPart::Source,
            _ if offset == destination => AddressPart::Destination,
            _ => return None,
        };
        Some(LoadedAddress { part, register, mask: vec![0xff; bytes as usize] })
    }

    /// The addresses for which this step matches, if it depends on nothing else. NAT could change addresses, so only
    /// a proof about all packets can leave some out.
    fn exceptions(&self, at: &Position<'_>, step: &Expression, state: &State) -> Option<Vec<Exception>> {
        let address = state.address.as_ref().filter(|_| self.traffic.scope == Scope::All)?;
        let whole = if self.traffic.version == Version::V4 { 4 } else { 16 };
        let range = |low: &[u8], high: &[u8]| {
            let fill = |bytes: &[u8], with: u8| {
                let mask = address.mask.iter().chain(std::iter::repeat(&0));
                let bytes = bytes.iter().chain(std::iter::repeat(&0));
                mask.zip(bytes).take(whole).map(|(mask, byte)| byte & mask | with & !mask).collect()
            };
            Exception { part: address.part, low: fill(low, 0), high: fill(high, 0xff) }
        };
        if !is_prefix(&address.mask) {
            return None;
        }
        match step {
            Expression::Compare { from, by: Comparison::Equal, value }
                if *from == address.register && value.len() == address.mask.len() =>
            {
                Some(vec![range(value, value)])
            }
            Expression::Range { from, outside: false, low, high }
                if *from == address.register && low.len() == address.mask.len() =>
            {
                Some(vec![range(low, high)])
            }
            Expression::Lookup { from, set, absent: false, into: Into::Nowhere }
                if *from == address.register =>
            {
                let set = at.table.sets.get(set)?;
                let fits = !set.changing && set.otherwise.is_none() && set.key_bytes() == address.mask.len();
                let elements =
                    Some(&set.elements).filter(|elements| fits && elements.len() <= MOST_EXCEPTIONS)?;
                Some(elements.iter().map(|element| range(&element.low, &element.high)).collect())
            }
            _ => None,
        }
    }

    /// Leaves these addresses out of the proof, if there is room.
    fn leave_out(&mut self, except: &[Exception]) -> bool {
        let new: Vec<_> = except.iter().filter(|e| !self.proof.except.contains(e)).cloned().collect();
        let fits = self.proof.except.len() + new.len() <= MOST_EXCEPTIONS;
        if fits {
            self.proof.except.extend(new);
        }
        fits
    }

    fn look_up<'s>(
        &mut self,
        at: &Position<'s>,
        state: &State,
        from: Register,
        name: &str,
    ) -> Result<Found<'s>, Obstacle> {
        let Some(set) = at.table.sets.get(name) else { return Err(at.obstacle(Why::Malformed)) };
        let key = state.registers.load(from, set.key_bytes());
        let candidates = candidates(set, &key);
        // Elements with several parts can overlap, and the kernel may take any of them.
        let is_alone = set.parts.len() == 1;
        let mut found = Found { is_there: Answer::No, values: Vec::new(), changing: set.changing };
        for element in candidates {
            self.spend(at, 1 + found.values.len())?;
            let covers = match element.covers(set, &key) {
                Answer::Yes if element.expires_at.is_some_and(|at| at < self.until) => Answer::Maybe,
                covers => covers,
            };
            match covers {
                Answer::No => continue,
                Answer::Maybe if found.is_there == Answer::No => found.is_there = Answer::Maybe,
                Answer::Maybe => (),
                Answer::Yes => {
                    found.is_there = Answer::Yes;
                    self.proof.holds_until = earlier(self.proof.holds_until, element.expires_at);
                    if is_alone {
                        found.values = vec![&element.value];
                        break;
                    }
                }
            }
            if !found.values.contains(&&element.value) {
                found.values.push(&element.value);
            }
        }
        if let Some(value) = set.otherwise.as_ref().filter(|_| found.is_there != Answer::Yes) {
            found.is_there = Answer::Yes;
            found.values.push(value);
        }
        if set.changing {
            found.is_there = Answer::Maybe;
        }
        match set.effects && found.is_there != Answer::No {
            true => at.does(&format!("statements of @{name}")),
            false => Ok(found),
        }
    }
}

/// The earlier one of two times; `None`: never.
pub(crate) fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    [one, other].into_iter().flatten().min()
}

/// The longest value of a map, in bytes.
const REGISTER_VALUE: usize = 64;
/// `NFT_META_MARK`. Neither policy rules nor tc filters test marks here: Millrace leaves routers that have such rules
/// to Linux.
const META_MARK: u32 = 3;

enum Bound {
    Here,
    Below,
    Elsewhere,
}

fn bound(names: &[String], device: &Device) -> Bound {
    match names {
        _ if names.iter().any(|name| device.below.contains(name)) => Bound::Below,
        _ if names.contains(&device.name) => Bound::Here,
        _ => Bound::Elsewhere,
    }
}

/// What a set has for a key.
struct Found<'a> {
    is_there: Answer,
    /// Each value that it may have.
    values: Vec<&'a Value>,
    changing: bool,
}

/// The elements that may cover a key. For a known key of one part, only the last element that begins at or before the
/// key can cover it.
fn candidates<'a>(set: &'a Set, key: &Bits) -> &'a [Element] {
    if set.parts.len() != 1 || !key.is_known() {
        return &set.elements;
    }
    let begins =
        |e: &Element| key.compare(Comparison::GreaterOrEqual, &e.low[..e.low.len().min(key.bytes())]);
    let after = set.elements.partition_point(|e| begins(e) == Answer::Yes);
    &set.elements[after.saturating_sub(1)..after]
}

impl Element {
    fn covers(&self, set: &Set, key: &Bits) -> Answer {
        let mut all = Answer::Yes;
        for (at, length) in set.layout() {
            let (Some(low), Some(high)) = (self.low.get(at..at + length), self.high.get(at..at + length))
            else {
                return Answer::Maybe;
            };
            all = all.and(key.part(at, length).between(low, high));
        }
        all
    }
}

fn store(registers: &mut Registers, into: Register, loaded: &Loaded) {
    match loaded {
        Loaded::Value(bits) | Loaded::Unsure(bits) => registers.store(into, bits),
        Loaded::Nothing => (),
    }
}

fn matched(loaded: &Loaded) -> Answer {
    match loaded {
        Loaded::Value(_) => Answer::Yes,
        Loaded::Unsure(_) => Answer::Maybe,
        Loaded::Nothing => Answer::No,
    }
}

/// Ones, then zeros?
fn is_prefix(mask: &[u8]) -> bool {
    let mut bits = mask.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
    bits.by_ref().find(|bit| *bit == 0);
    bits.all(|bit| bit == 0)
}
