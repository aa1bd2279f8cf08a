//! The properties of the division, and shares in a fluid model of a core, period by period.

use super::*;
use proptest::prelude::*;

const PERIOD: Duration = Duration::from_millis(10);
const HOST: RouterId = 2;

fn wants() -> impl Strategy<Value = Vec<Want>> {
    let want = (1_u16..100, prop_oneof![Just(0.0), 0.0..3.0_f64]);
    prop::collection::vec(want, 1..20)
        .prop_map(|all| all.into_iter().map(|(w, amount)| Want { weight: f64::from(w), amount }).collect())
}

proptest! {
    /// Nobody gets more than it wants, or less than its part unless it wants less. Nothing is left over that somebody
    /// wants.
    #[test]
    fn division_is_max_min_fair(wants in wants(), capacity in 0.0..2.0_f64) {
        let shares = fill(capacity, &wants);
        let sum: f64 = shares.iter().sum();
        let wanted: f64 = wants.iter().map(|want| want.amount).sum();
        prop_assert!((sum - capacity.min(wanted)).abs() < 1e-9, "{sum} of {capacity}, {wanted} wanted");
        let weights: f64 = wants.iter().map(|want| want.weight).sum();
        for (share, want) in shares.iter().zip(&wants) {
            prop_assert!(*share <= want.amount);
            let part = capacity * want.weight / weights;
            prop_assert!(*share >= part.min(want.amount) - 1e-9, "{share} of a part of {part}");
            // A router that gets less than it wants has no less for its weight than any other.
            if *share < want.amount {
                let most = shares.iter().zip(&wants).map(|(s, w)| s / w.weight).fold(0.0, f64::max);
                prop_assert!(share / want.weight >= most - 1e-9);
            }
        }
    }

    #[test]
    fn more_weight_is_never_less(mut wants in wants(), which in any::<prop::sample::Index>(), more in 1.0..50.0_f64) {
        let which = which.index(wants.len());
        let before = fill(0.9, &wants)[which];
        wants[which].weight += more;
        prop_assert!(fill(0.9, &wants)[which] >= before - 1e-9);
    }

    /// For any rates and any costs of packets: after a while the core keeps up with all packets, unless it cannot even
    /// cut them. Then routers within their share lose nothing, the others have their share, and no time is wasted.
    #[test]
    fn routers_within_their_share_lose_nothing(
        sent in prop::collection::vec((1_u16..5, 10_000.0..2.5e6_f64, 0.0..0.1_f64), 2..5),
        costs in (200e-9..400e-9_f64, 0.4..0.75_f64, 2.0..4.0_f64),
    ) {
        let routers = sent.iter().map(|&(weight, rate, own)| Router { weight, rate: rate * (1.0 - own), own: rate * own });
        let mut core = Core::new(routers.collect(), costs);
        // No cutting helps beyond that.
        let wanted: Vec<Want> = core.wants().collect();
        let fair = fill(TARGET, &wanted);
        prop_assume!(core.shed_each().zip(&fair).all(|(shed, fair)| shed < 0.8 * fair));
        core.run(100);
        for _ in 0..20 {
            core.run(1);
            if !core.sharer.is_sharing {
                prop_assert!(core.lost == 0.0 || alike_by(&wanted, 1.6), "lost {} unnoticed: {wanted:?}", core.lost);
                continue;
            }
            prop_assert_eq!(core.lost, 0.0, "{:?} {:?}", core.busy, wanted);
            prop_assert!(core.busy > 0.78, "{} busy", core.busy);
            for (i, (want, fair)) in wanted.iter().zip(&fair).enumerate() {
                if want.amount < 0.7 * fair {
                    prop_assert_eq!(core.cut[i], 0.0, "router {} wants {} of {}", i, want.amount, fair);
                }
                prop_assert!(core.took[i] > 0.75 * fair.min(want.amount), "router {i} has {} of {fair}", core.took[i]);
            }
        }
    }
}

fn alike_by(wants: &[Want], times: f64) -> bool {
    let each = || wants.iter().map(|want| want.amount / want.weight);
    each().fold(0.0, f64::max) <= times * each().fold(f64::INFINITY, f64::min)
}

#[derive(Clone, Copy)]
struct Router {
    weight: u16,
    /// Packets per second to be forwarded, and for itself.
    rate: f64,
    own: f64,
}

/// A core, and a ring before it that holds nothing. Packets that the core cannot do are lost, the same part for all
/// routers.
struct Core {
    routers: Vec<Router>,
    /// The true costs: of a forwarded packet, in seconds, and of a cut and a passed one relative to that.
    packet_s: f64,
    cut_cost: f64,
    up_cost: f64,
    sharer: Sharer,
    rings: Vec<BTreeSet<RouterId>>,
    now: Duration,
    decision: Decision,
    /// The state in the last period: the load, the fraction of all packets lost in the ring, and the fraction of each
    /// router's that was cut.
    busy: f64,
    lost: f64,
    cut: Vec<f64>,
    took: Vec<f64>,
}

impl Core {
    fn new(routers: Vec<Router>, (packet_s, cut_cost, up_cost): (f64, f64, f64)) -> Core {
        let none = vec![0.0; routers.len()];
        let (sharer, decision) = (Sharer::default(), Decision::default());
        let (cut, took) = (none.clone(), none);
        let now = Duration::ZERO;
        let rings = vec![(0..routers.len() as RouterId).collect()];
        Core {
            routers,
            packet_s,
            cut_cost,
            up_cost,
            sharer,
            rings,
            now,
            decision,
            busy: 0.0,
            lost: 0.0,
            cut,
            took,
        }
    }

    fn wants(&self) -> impl Iterator<Item = Want> + '_ {
        let amount = |r: &Router| (r.rate + r.own * self.up_cost) * self.packet_s;
        self.routers.iter().map(move |r| Want { weight: f64::from(r.weight), amount: amount(r) })
    }

    /// The cost of cutting all packets of each router.
    fn shed_each(&self) -> impl Iterator<Item = f64> + '_ {
        self.routers.iter().map(|r| (r.rate + r.own) * self.cut_cost * self.packet_s)
    }

    fn run(&mut self, periods: u32) {
        for _ in 0..periods {
            self.period();
        }
    }

    fn period(&mut self) {
        let part = |admit: u32| if admit == 0 { 1.0 } else { f64::from(admit) / 2_f64.powi(32) };
        let grant = |i: usize| self.decision.grants.get(&(i as RouterId)).copied().unwrap_or(Grant::ALL);
        let time: Vec<f64> = (0..)
            .zip(&self.routers)
            .map(|(i, r)| {
                let (admit, own) = (part(grant(i).admit), part(grant(i).own_admit));
                let transit = r.rate * (admit + (1.0 - admit) * self.cut_cost);
                (transit + r.own * (own * self.up_cost + (1.0 - own) * self.cut_cost)) * self.packet_s
            })
            .collect();
        let wanted: f64 = time.iter().sum();
        let got = if wanted > 1.0 { 1.0 / wanted } else { 1.0 };
        (self.busy, self.lost) = (wanted.min(1.0), 1.0 - got);
        self.took = time.iter().map(|time| time * got).collect();
        let count = |packets: f64| (packets * got * PERIOD.as_secs_f64()).round() as u64;
        let counted = (0..).zip(&self.routers).map(|(i, r)| {
            let (admit, own) = (part(grant(usize::from(i)).admit), part(grant(usize::from(i)).own_admit));
            Counted {
                router: i,
                weight: r.weight,
                forwarded: count(r.rate * admit),
                cut: count(r.rate * (1.0 - admit)),
                own: count(r.own * own),
                own_cut: count(r.own * (1.0 - own)),
                other: 0,
            }
        });
        let counted: Vec<Counted> = counted.collect();
        self.cut = counted.iter().map(|c| (c.cut + c.own_cut) as f64 / offered(c).max(1) as f64).collect();
        self.now += PERIOD;
        let counted = if self.decision.counting { &counted[..] } else { &[] };
        let period =
            Period { length: PERIOD, busy: self.busy, counted, rings: &self.rings, host: Some(HOST) };
        self.decision = self.sharer.decide(self.now, &period);
    }
}

fn transit(rate: f64) -> Router {
    Router { weight: 1, rate, own: 0.0 }
}

/// A core with costs as measured on veth.
fn veth(routers: &[Router]) -> Core {
    Core::new(routers.to_vec(), (290e-9, 0.6, 3.0))
}

/// The victim is the first router. Returns after how many periods it loses nothing any more, and the part of the
/// neighbour's packets that is forwarded.
fn settles(neighbour: f64) -> (u32, f64) {
    let mut core = veth(&[transit(200e3), transit(neighbour)]);
    let mut last_loss = 0;
    for period in 1..=300 {
        core.period();
        if core.lost > 0.0 || core.cut[0] > 0.0 {
            last_loss = period;
        }
    }
    (last_loss, 1.0 - core.cut[1])
}

#[test]
fn a_step_is_answered_within_a_few_periods() {
    // The first two full periods are ignored. A few more are needed to see how much arrives.
    for (neighbour, periods, least, most) in
        [(3.5e6, 3, 0.5, 0.9), (4e6, 3, 0.3, 0.6), (4.5e6, 4, 0.1, 0.4), (4.9e6, 5, 0.02, 0.2)]
    {
        let (settled, forwarded) = settles(neighbour);
        assert!(settled <= periods, "{neighbour}: {settled} periods");
        assert!((least..most).contains(&forwarded), "{neighbour}: {forwarded} forwarded");
    }
}

#[test]
fn more_than_a_core_can_cut_is_reported() {
    let mut core = veth(&[transit(200e3), transit(7e6)]);
    core.run(50);
    assert!(core.decision.beyond && core.lost > 0.0);
    assert_eq!(core.cut[0], 0.0, "the router within its share is not cut in addition");
    assert!((0.001..0.1).contains(&(1.0 - core.cut[1])), "{}", core.cut[1]);
}

#[test]
fn a_core_with_time_left_cuts_and_counts_nothing() {
    let mut core = veth(&[transit(200e3), transit(2.9e6)]);
    core.run(100);
    assert_eq!((core.decision.clone(), core.cut), (Decision::default(), vec![0.0, 0.0]));
}

#[test]
fn one_router_alone_and_routers_that_want_alike_are_not_cut() {
    for routers in [vec![transit(6e6)], vec![transit(2.4e6), transit(2.5e6)], vec![transit(1e6); 8]] {
        let mut core = veth(&routers);
        core.run(100);
        assert!(core.decision.counting && core.lost > 0.0);
        assert!(core.cut.iter().all(|cut| *cut == 0.0), "{:?}", core.cut);
    }
}

/// As in M table 1: one router gets more than the core can carry, the other its part. (The core here has one ring, so
/// the test does not look at what each loses.)
#[test]
fn routers_on_rings_of_their_own_are_not_cut() {
    let cut = |rings: &[&[RouterId]]| {
        let mut core = veth(&[transit(3.9e6), transit(1.3e6)]);
        core.rings = rings.iter().map(|ring| ring.iter().copied().collect()).collect();
        core.run(50);
        assert!(core.decision.counting);
        core.cut[0]
    };
    assert_eq!(cut(&[&[0], &[1]]), 0.0);
    assert!(cut(&[&[0, 1]]) > 0.3 && cut(&[&[0], &[0, 1]]) > 0.3);
}

/// All ports belong to the host, which gets occasional packets. Other routers with occasional packets may be in the way
/// of one with too much.
#[test]
fn the_hosts_few_packets_join_no_rings() {
    let cut = |rings: &[BTreeSet<RouterId>], every: u32| {
        let routers = [transit(3.9e6), transit(1.3e6), transit(0.0), transit(0.0)];
        let mut core = veth(&routers);
        core.rings = rings.to_vec();
        let mut cut = 0.0;
        for period in 0..200 {
            let rate = if period % every == 0 { 100.0 } else { 0.0 };
            let last = if rings[0].contains(&HOST) { usize::from(HOST) } else { 3 };
            core.routers[last].rate = rate;
            core.period();
            cut = if period < 100 { 0.0 } else { core.cut[0].max(cut) };
        }
        cut
    };
    let of_host = [[0, HOST].into(), [1, HOST].into()];
    assert_eq!(cut(&of_host, 5), 0.0);
    assert!(cut(&of_host, 1) > 0.3, "steady packets may be lost in rings with too many others");
    assert!(cut(&[[0, 3].into(), [1].into()], 5) > 0.3, "a router that has few packets loses them there");
    assert_eq!(cut(&[[0].into(), [1, 3].into()], 5), 0.0, "and not here");
}

#[test]
fn when_the_overload_ends_nothing_is_cut_and_then_nothing_counted() {
    for rings in [vec![[0, 1].into()], vec![]] {
        let mut core = veth(&[transit(200e3), transit(4e6)]);
        core.rings = rings;
        core.run(50);
        assert!(core.cut[1] > 0.3);
        core.routers[1].rate = 2e6;
        core.run(12);
        assert_eq!(core.cut, [0.0, 0.0]);
        core.run(110);
        assert_eq!(core.decision, Decision::default());
    }
}

#[test]
fn an_idle_routers_part_goes_to_the_others_and_comes_back_at_once() {
    let mut core = veth(&[transit(1.4e6), transit(3e6)]);
    core.run(50);
    let beside = core.took[1];
    core.routers[0].rate = 10e3;
    core.run(50);
    assert!(core.took[1] > beside + 0.3, "{} after {beside}", core.took[1]);
    core.routers[0].rate = 1.4e6;
    core.run(6);
    assert!(core.lost == 0.0 && core.cut[0] == 0.0, "{} {:?}", core.lost, core.cut);
}

#[test]
fn weights_count() {
    let heavy = Router { weight: 3, ..transit(2.4e6) };
    let mut core = veth(&[heavy, transit(2.4e6)]);
    core.run(60);
    let ratio = core.took[0] / core.took[1];
    assert!(core.cut[1] > core.cut[0], "{:?}", core.cut);
    assert!((1.0..3.2).contains(&ratio), "{ratio}");
}

/// The neighbour sends for 20 ms each time. The victim does not lose packets whenever it comes back.
#[test]
fn a_neighbour_that_comes_and_goes_counts_with_its_highest_rate() {
    for low in [3.4e6, 1e6, 0.0] {
        let mut core = veth(&[transit(200e3), transit(4.2e6)]);
        core.run(30);
        for wobble in 0..50 {
            core.routers[1].rate = if wobble % 2 == 0 { low } else { 4.2e6 };
            for _ in 0..2 {
                core.period();
                assert_eq!((core.lost, core.cut[0]), (0.0, 0.0), "{low}, {wobble}");
            }
        }
    }
}

/// Packets for the neighbour itself are answered first, but not at the victim's cost.
#[test]
fn a_flood_to_the_box_counts_against_its_router() {
    let flooded = |own: f64, rate: f64| {
        let mut core = veth(&[transit(200e3), Router { weight: 1, rate, own }]);
        core.run(100);
        (core.lost, core.cut[0], core.decision.grants[&1])
    };
    let (lost, victim_cut, grant) = flooded(20e3, 4e6);
    assert_eq!((lost, victim_cut, grant.own_admit), (0.0, 0.0, 0), "a few packets for the box are not cut");
    assert!(grant.admit > 0);
    let (lost, victim_cut, grant) = flooded(2e6, 0.0);
    assert_eq!((lost, victim_cut), (0.0, 0.0));
    assert!(grant.own_admit > 0);
}

#[test]
fn the_busiest_queue_shows_how_full_its_core_is() {
    let busy = |queues: &[(f64, f64)]| busy(queues.iter().copied());
    assert_eq!(busy(&[]), 0.0);
    assert!((busy(&[(0.3, 0.1), (0.4, 0.0)]) - 0.7).abs() < 1e-9);
    assert_eq!(busy(&[(0.5, 0.5), (0.1, 0.0)]), 1.0, "one never slept");
    assert_eq!(busy(&[(0.9, 0.3), (0.4, 0.0)]), 1.0);
}

/// Packets that were all forwarded.
fn forwarded(router: RouterId, weight: u16, packets: u64) -> Counted {
    Counted { router, weight, forwarded: packets, ..Counted::default() }
}

/// Periods without a core: what is counted and how busy the core is does not depend on the decisions.
#[derive(Default)]
struct Fixed {
    sharer: Sharer,
    now: Duration,
    rings: Vec<BTreeSet<RouterId>>,
}

impl Fixed {
    fn decide(&mut self, busy: f64, counted: &[Counted]) -> Decision {
        self.now += PERIOD;
        let period = Period { length: PERIOD, busy, counted, rings: &self.rings, host: None };
        self.sharer.decide(self.now, &period)
    }
}

#[test]
fn the_first_full_period_counts_and_the_second_in_a_row_shares() {
    let counted = [forwarded(0, 1, 500), forwarded(1, 1, 10_000)];
    let counting = Decision { counting: true, ..Decision::default() };
    let mut core = Fixed::default();
    assert_eq!(core.decide(FULL - 0.001, &counted), Decision::default());
    // What was counted before counting began is no measurement.
    assert_eq!(core.decide(FULL, &counted), counting);
    let shares = core.decide(FULL, &counted);
    assert!(shares.grants[&0] == Grant::ALL && shares.grants[&1].admit > 0, "{shares:?}");
    let mut core = Fixed::default();
    for busy in [1.0, 0.5, 1.0] {
        let decision = core.decide(busy, &counted);
        assert!(decision.counting && decision.grants.values().all(|grant| *grant == Grant::ALL));
    }
    core.now += HOLD - PERIOD;
    assert_eq!(core.decide(0.5, &counted), Decision::default());
    assert_eq!(core.decide(1.0, &counted), counting, "nothing is left of the time before");
}

#[test]
fn without_a_price_nothing_is_cut() {
    let mut core = Fixed::default();
    core.decide(1.0, &[]);
    let decision = core.decide(0.0, &[forwarded(0, 1, 500), forwarded(1, 1, 10_000)]);
    assert_eq!(decision.grants, [(0, Grant::ALL), (1, Grant::ALL)].into());
    assert_eq!(decision.taken, [(0, 0.0), (1, 0.0)].into());
}

#[test]
fn all_packets_of_a_router_count() {
    let mut sharer = Sharer::default();
    let counted = [
        Counted { weight: 2, other: 200, cut: 200, ..forwarded(0, 2, 600) },
        Counted { router: 1, weight: 1, own: 100, own_cut: 300, ..Counted::default() },
        Counted { router: 2, weight: 1, cut: 100, ..Counted::default() },
        Counted { router: 3, weight: 1, other: 1, ..Counted::default() },
        forwarded(4, 1, 0),
    ];
    let mut take_in = |now, counted: &[Counted]| {
        let period = Period { length: PERIOD, busy: 0.5, counted, rings: &[], host: None };
        let taken = sharer.take_in(now, &period);
        let demand = |(router, seen): (&RouterId, &RouterDemand)| {
            (*router, seen.weight, seen.rate.get(), seen.own_rate.get(), seen.cost)
        };
        (taken, sharer.routers.iter().map(demand).collect::<Vec<_>>(), sharer.costs.price().cut)
    };
    let (taken, demands, cut) = take_in(PERIOD, &counted);
    let expected =
        [(0, 2.0, 1e5, 0.0, 1.5), (1, 1.0, 0.0, 4e4, 1.0), (2, 1.0, 1e4, 0.0, 1.0), (3, 1.0, 100.0, 0.0, UP)];
    assert_eq!(demands, expected);
    let work = [1200.0 + 200.0 * cut, 300.0 + 300.0 * cut, 100.0 * cut, 3.0, 0.0];
    for (router, work_of) in (0..).zip(work) {
        let part = 0.5 * work_of / work.iter().sum::<f64>();
        assert!((taken[&router] - part).abs() < 1e-9, "{router}: {taken:?}");
    }
    // The demand is remembered for as long as it may come back.
    assert_eq!(take_in(PERIOD + HOLD - Duration::from_nanos(1), &[]).1, expected);
    assert_eq!(take_in(PERIOD + HOLD, &[]).1, []);
}

#[test]
fn only_the_known_packets_of_a_router_must_fit_its_share() {
    // The core is full, so half as many again may be hidden.
    let grants = |counted: &[Counted], rings: &[BTreeSet<RouterId>]| {
        let mut core = Fixed { rings: rings.to_vec(), ..Fixed::default() };
        core.decide(1.0, &[]);
        core.decide(1.0, counted).grants.into_values().map(|grant| grant.admit > 0).collect::<Vec<_>>()
    };
    // Each may have 0.46 of the core.
    assert_eq!(grants(&[forwarded(0, 1, 4000), forwarded(1, 1, 6000)], &[]), [false, true]);
    assert_eq!(grants(&[forwarded(0, 1, 4700), forwarded(1, 1, 6300)], &[]), [false, true]);
    // The turns of two rings are alike, although the shares are not.
    let rings = [[0].into(), [1].into()];
    assert_eq!(grants(&[forwarded(0, 3, 4000), forwarded(1, 1, 6000)], &rings), [false, false]);
    assert_eq!(grants(&[forwarded(0, 3, 5000), forwarded(1, 1, 5000)], &rings), [false, true]);
}

#[test]
fn the_divided_part_falls_while_the_core_is_full() {
    let mut sharer = Sharer::default();
    let mut correct = |is_sharing, is_full, times| {
        sharer.is_sharing = is_sharing;
        (0..times).for_each(|_| sharer.correct(is_full));
        sharer.aim
    };
    assert_eq!(correct(false, true, 3), TARGET);
    assert!((correct(true, true, 3) - (TARGET - 0.03)).abs() < 1e-9);
    assert!((correct(true, false, 10) - (TARGET - 0.029)).abs() < 1e-9);
    assert_eq!(correct(true, true, 100), LEAST_AIM);
    assert_eq!(correct(true, false, 10_000), TARGET);
}

#[test]
fn a_core_is_beyond_help_if_it_cannot_cut_enough_for_a_while() {
    let light = [forwarded(0, 1, 1000), forwarded(1, 1, 10_000)];
    let heavy = [forwarded(0, 1, 500), Counted { cut: 14_000, ..forwarded(1, 1, 1000) }];
    // Cutting alone is possible, but not together with the packets of the other router.
    let both = [forwarded(0, 1, 3000), Counted { cut: 9000, ..forwarded(1, 1, 1000) }];
    for (counted, is_too_much) in [(light, false), (heavy, true), (both, true)] {
        let mut core = Fixed::default();
        for period in 1..15 {
            let decision = core.decide(1.0, &counted);
            assert_eq!(decision.beyond, is_too_much && period >= SURE, "{period}: {decision:?}");
        }
    }
}

#[test]
fn more_is_carried_out_in_steps() {
    let mut core = Fixed::default();
    for _ in 0..3 {
        core.decide(1.0, &[forwarded(0, 1, 500), Counted { cut: 14_000, ..forwarded(1, 1, 1000) }]);
    }
    let light = [forwarded(0, 1, 1000), forwarded(1, 1, 10_000)];
    let admitted: Vec<u32> = (0..20).map(|_| core.decide(0.96, &light).grants[&1].admit).collect();
    assert!(admitted.windows(2).all(|of| of[1] <= of[0] + EASE), "{admitted:?}");
    assert!(admitted[19] > admitted[0] + EASE, "{admitted:?}");
}

#[test]
fn grants_are_raised_in_steps_and_lowered_at_once() {
    let eased = |now, before| {
        let grant = Grant { admit: now, own_admit: 0 }.eased(Grant { admit: before, own_admit: 0 });
        let own = Grant { admit: 0, own_admit: now }.eased(Grant { admit: 0, own_admit: before });
        assert_eq!((own.own_admit, own.admit, grant.own_admit), (grant.admit, 0, 0));
        grant.admit
    };
    assert_eq!((eased(0, 0), eased(5, 0)), (0, 5), "nothing was cut before");
    assert_eq!((eased(50, 100), eased(500, 100)), (50, 500));
    assert_eq!((eased(u32::MAX, 100), eased(0, 100)), (100 + EASE, 100 + EASE));
    assert_eq!((eased(u32::MAX, u32::MAX), eased(0, u32::MAX - EASE)), (u32::MAX, u32::MAX));
    assert_eq!(eased(0, u32::MAX - EASE + 1), 0, "all");
}

#[test]
fn a_router_is_steady_that_sends_in_a_quarter_of_the_periods() {
    let is_steady = |periods: usize, with_packets: usize| {
        let of = |own: bool| {
            let mut seen = RouterDemand::default();
            for period in 0..periods {
                let rate = if period < with_packets { 1.0 } else { 0.0 };
                seen.rate.add(if own { 0.0 } else { rate });
                seen.own_rate.add(if own { rate } else { 0.0 });
            }
            seen.is_steady()
        };
        assert_eq!(of(false), of(true));
        of(true)
    };
    assert!(is_steady(1, 1) && is_steady(4, 1) && is_steady(8, 2) && is_steady(10, 3) && is_steady(10, 10));
    assert!(!is_steady(5, 1) && !is_steady(9, 2) && !is_steady(10, 2) && !is_steady(10, 0));
}

#[test]
fn wants_are_alike_up_to_a_quarter_more_by_weight() {
    let alike = |wants: &[(f64, f64)]| {
        alike(&wants.iter().map(|&(weight, amount)| Want { weight, amount }).collect::<Vec<_>>())
    };
    assert!(alike(&[(1.0, 1.0), (1.0, 1.25)]) && alike(&[(2.0, 2.0), (1.0, 1.0)]) && alike(&[(1.0, 0.0)]));
    assert!(!alike(&[(1.0, 1.0), (1.0, 1.26)]) && !alike(&[(2.0, 1.0), (1.0, 1.0)]));
}
