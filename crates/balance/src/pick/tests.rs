use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::settings::{Settings, Target};

const PICKS: [Pick; 6] = [
    Pick::PowerOfTwo,
    Pick::LeastConnections,
    Pick::RoundRobin,
    Pick::Rendezvous,
    Pick::Random,
    Pick::IpHash,
];

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn address(number: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 9001 + number as u16))
}

fn target(number: usize, weight: u32) -> Target {
    Target {
        backend: Arc::new(Backend::new(address(number), weight)),
        send_proxy: false,
        tls: None,
        passthrough: Arc::default(),
        name: None,
    }
}

fn configuration(pick: Pick, weights: &[u32]) -> Pool {
    let backends = weights.iter().enumerate().map(|(number, &weight)| target(number, weight));
    let settings = Settings { pick, ..Settings::default() };
    Pool::new("default".into(), settings.pool(), backends.collect())
}

/// Typical clients: neighbours in a network.
fn client(number: u32) -> IpAddr {
    Ipv4Addr::from_bits((10 << 24) + number).into()
}

/// Returns how many of `picks` clients each backend gets. With `stay` each keeps a tunnel open.
fn counts(configuration: &Pool, seed: u64, picks: u32, stay: bool) -> Vec<u32> {
    let mut picker = Picker::new(seed);
    let mut counts = vec![0; configuration.targets.len()];
    for number in 0..picks {
        let place =
            picker.pick(configuration, Wanted::Tunnel, None, client(number), |_| true).unwrap();
        counts[place] += 1;
        if stay {
            configuration.targets[place].backend.open_tunnel();
        }
    }
    counts
}

/// Whether each count is within six standard deviations (two in a thousand million are not) of its
/// part.
fn follows(counts: &[u32], weights: &[u32]) -> bool {
    let picks = f64::from(counts.iter().sum::<u32>());
    let whole = f64::from(weights.iter().sum::<u32>());
    counts.iter().zip(weights).all(|(&count, &weight)| {
        let part = f64::from(weight) / whole;
        let deviation = (picks * part * (1.0 - part)).sqrt();
        (f64::from(count) - picks * part).abs() <= 6.0 * deviation + 1.0
    })
}

/// Weights of a few backends: many would leave each too few clients to tell chance from a bug.
fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(1u32..8, 1..8)
}

proptest! {
    #[test]
    fn clients_come_in_proportion_to_weights(weights in weights(), seed: u64) {
        for pick in [Pick::Random, Pick::Rendezvous, Pick::IpHash] {
            let counts = counts(&configuration(pick, &weights), seed, 4000, false);
            prop_assert!(follows(&counts, &weights), "{pick:?}: {counts:?} of {weights:?}");
        }
    }

    #[test]
    fn a_cycle_in_turn_is_exact(
        weights in prop_oneof![weights(), prop::collection::vec(1u32..200, 1..30)],
        seed: u64,
    ) {
        let configuration = configuration(Pick::RoundRobin, &weights);
        let mut picker = Picker::new(seed);
        for _ in 0..3 {
            let mut counts = vec![0; weights.len()];
            for _ in 0..weights.iter().sum() {
                let tunnel = picker.pick(&configuration, Wanted::Tunnel, None, CLIENT, |_| true);
                counts[tunnel.unwrap()] += 1;
            }
            prop_assert_eq!(&counts, &weights);
        }
    }

    /// No backend is above its part by more than a whole unit, and so none is far below.
    #[test]
    fn least_connections_is_as_even_as_can_be(
        weights in weights(),
        seed: u64,
        clients in 1u32..300,
    ) {
        let configuration = configuration(Pick::LeastConnections, &weights);
        let counts = counts(&configuration, seed, clients, true);
        let whole: u32 = weights.iter().sum();
        for (&count, &weight) in counts.iter().zip(&weights) {
            prop_assert!(count * whole <= clients * weight + whole, "{counts:?} of {weights:?}");
        }
    }

    /// No pick chooses a backend that is not up, or that the caller excludes; but it chooses one if
    /// there is one.
    #[test]
    fn only_backends_that_are_up_and_usable_are_picked(
        all in prop::collection::vec((1u32..5, any::<bool>(), any::<bool>(), 0u32..4), 0..10),
        seed: u64,
        key: Option<u64>,
    ) {
        let weights: Vec<_> = all.iter().map(|&(weight, ..)| weight).collect();
        let usable = |place: usize| all[place].2;
        for pick in PICKS {
            let configuration = configuration(pick, &weights);
            for (target, &(_, up, _, load)) in configuration.targets.iter().zip(&all) {
                target.backend.set_state(if up { State::Up } else { State::Down });
                (0..load).for_each(|_| target.backend.open_tunnel());
            }
            let mut picker = Picker::new(seed);
            for number in 0..20 {
                match picker.pick(&configuration, Wanted::Tunnel, key, client(number), usable) {
                    Some(place) => prop_assert!(all[place].1 && all[place].2, "{pick:?}"),
                    None => prop_assert!(!all.iter().any(|a| a.1 && a.2), "{pick:?}"),
                }
            }
        }
    }

    /// A removed backend's clients move, and no one else's; they come back with it.
    #[test]
    fn rendezvous_moves_only_clients_of_a_backend_that_left(
        weights in weights(),
        gone: prop::sample::Index,
    ) {
        let configuration = configuration(Pick::Rendezvous, &weights);
        let gone = gone.index(weights.len());
        for key in 0..200 {
            let before = pick_by_key(&configuration, key, |_| true);
            let after = pick_by_key(&configuration, key, |place| place != gone);
            if before == Some(gone) {
                prop_assert_ne!(after, before);
            } else {
                prop_assert_eq!(after, before);
            }
        }
    }

    /// A share that grows draws clients to its backend and moves none between others.
    #[test]
    fn rendezvous_in_a_slow_start_moves_clients_one_way(weights in weights(), key: u64) {
        let configuration = configuration(Pick::Rendezvous, &weights);
        let grown = &configuration.targets[0].backend;
        let pick = || pick_by_key(&configuration, key, |_| true);
        let whole = pick();
        grown.set_share(grown.share() / 10);
        let tenth = pick();
        prop_assert!(tenth == whole || whole == Some(0) && tenth != Some(0));
    }

    /// After any changes, a new backend does not wait for more than two cycles.
    #[test]
    fn turns_survive_changes(changes in prop::collection::vec((0usize..6, 1u32..5), 1..60)) {
        let mut picker = Picker::new(0);
        let mut configuration = configuration(Pick::RoundRobin, &[1, 1, 1]);
        for (number, weight) in changes {
            match configuration.position(address(number)) {
                Some(place) if configuration.targets.len() > 1 => {
                    configuration.targets.remove(place);
                }
                Some(_) => {}
                None => configuration.targets.insert(0, target(number, weight)),
            }
            picker.pick(&configuration, Wanted::Tunnel, None, CLIENT, |_| true).unwrap();
        }
        configuration.targets.push(target(6, 1));
        let newcomer = configuration.targets.len() - 1;
        let cycle: u32 = configuration.targets.iter().map(|target| target.backend.weight()).sum();
        let waited = (0..).find(|_| {
            picker.pick(&configuration, Wanted::Tunnel, None, CLIENT, |_| true) == Some(newcomer)
        });
        prop_assert!(waited.unwrap() <= 2 * cycle, "{waited:?} of {cycle}");
    }
}

#[test]
fn two_choices_are_far_more_even_than_one() {
    for seed in 0..20 {
        let most = |pick| {
            let counts = counts(&configuration(pick, &[1; 100]), seed, 10_000, true);
            counts.into_iter().max().unwrap()
        };
        // Theory for 100 on average: one choice is off by some 25, two by ln ln 100 and a bit, for
        // any number of clients.
        let (two, one) = (most(Pick::PowerOfTwo), most(Pick::Random));
        assert!(two <= 105 && one >= 115, "seed {seed}: {two} and {one}");
    }
}

#[test]
fn two_choices_follow_weights_and_what_is_already_open() {
    let weights = [1, 2, 3, 10];
    let configuration = configuration(Pick::PowerOfTwo, &weights);
    (0..100).for_each(|_| configuration.targets[3].backend.open_tunnel());
    let counts = counts(&configuration, 1, 3100, true);
    for ((count, weight), open) in counts.into_iter().zip(weights).zip([0, 0, 0, 100]) {
        let whole = weight * 200;
        assert!((count + open).abs_diff(whole) * 20 <= whole, "{count} + {open} of {whole}");
    }
}

#[test]
fn two_choices_are_two() {
    // If both could be the same backend, the full one would get a client in four.
    let configuration = configuration(Pick::PowerOfTwo, &[1, 1]);
    (0..50).for_each(|_| configuration.targets[0].backend.open_tunnel());
    assert_eq!(counts(&configuration, 7, 1000, false), [0, 1000]);
}

#[test]
fn clients_that_a_rebalance_closes_come_back_to_backends_with_too_few() {
    for pick in [Pick::LeastConnections, Pick::PowerOfTwo] {
        let configuration = configuration(pick, &[1, 1, 1, 2]);
        let [crowded, other, ..] = configuration.targets.as_slice() else { unreachable!() };
        let mut picker = Picker::new(5);
        for target in [crowded, other] {
            (0..2500).for_each(|_| target.backend.open_tunnel());
        }
        for number in 0..1500 {
            for target in [crowded, other] {
                target.backend.close_tunnel();
                let place = picker
                    .pick(&configuration, Wanted::Tunnel, None, client(number), |_| true)
                    .unwrap();
                configuration.targets[place].backend.open_tunnel();
            }
        }
        for target in &configuration.targets {
            let (tunnels, part) = (target.backend.tunnels(), 1000 * target.backend.weight());
            assert!(tunnels.abs_diff(part) * 10 <= part, "{pick:?}: {tunnels} of {part}");
        }
    }
}

#[test]
fn ties_do_not_all_go_to_the_first() {
    for pick in [Pick::LeastConnections, Pick::PowerOfTwo] {
        let counts = counts(&configuration(pick, &[1; 4]), 3, 4000, false);
        assert!(follows(&counts, &[1; 4]), "{pick:?}: {counts:?}");
    }
}

#[test]
fn an_empty_backend_in_its_slow_start_gets_no_more_than_its_share() {
    for pick in [Pick::LeastConnections, Pick::PowerOfTwo] {
        let configuration = configuration(pick, &[1, 1]);
        let [old, new] = [0, 1].map(|place| &configuration.targets[place].backend);
        (0..100).for_each(|_| old.open_tunnel());
        new.set_share(10);
        let counts = counts(&configuration, 3, 100, true);
        assert!((10..=20).contains(&counts[1]), "{pick:?}: {counts:?}");
    }
}

/// The requests that each backend gets, of clients that keep `open` in progress, picked by this
/// many shards in turn. Requests end in the order in which they began, or at random.
fn requests(
    configuration: &Pool,
    shards: u64,
    open: usize,
    in_order: bool,
    count: usize,
) -> Vec<u32> {
    let mut pickers: Vec<_> = (0..shards).map(Picker::new).collect();
    let mut random = Random::new(9);
    let mut counts = vec![0; configuration.targets.len()];
    let mut under_way = Vec::new();
    for number in 0..count {
        let picker = &mut pickers[number % shards as usize];
        let client = client(number as u32);
        let place = picker.pick(configuration, Wanted::Request, None, client, |_| true).unwrap();
        counts[place] += 1;
        assert!(configuration.targets[place].backend.begin_request(Wanted::Request));
        under_way.push(place);
        if under_way.len() == open {
            let at = if in_order { 0 } else { random.below(open as u64) as usize };
            configuration.targets[under_way.remove(at)].backend.end_request(Wanted::Request);
        }
    }
    counts
}

/// A canary gets its part, for any other load and any number of event loops.
#[test]
fn requests_follow_weights_while_little_is_open() {
    for pick in PICKS {
        for (shards, open) in [(1, 1), (1, 2), (2, 1), (4, 1), (2, 8), (1, 16)] {
            let configuration = configuration(pick, &[19, 1]);
            // Idle tunnels do not count as load for a request.
            (0..500).for_each(|_| configuration.targets[1].backend.open_tunnel());
            let counts = requests(&configuration, shards, open, true, 800);
            let case = format!("{pick:?}, {shards} shards, {open} open: {counts:?}");
            match pick {
                Pick::Rendezvous | Pick::IpHash | Pick::Random => {
                    assert!(follows(&counts, &[19, 1]), "{case}");
                }
                _ => assert!((36..=44).contains(&counts[1]), "{case}"),
            }
        }
    }
}

#[test]
fn a_canary_gets_its_part_of_tunnels_that_end_at_once_and_that_stay() {
    for pick in PICKS {
        for stay in [false, true] {
            let counts = counts(&configuration(pick, &[19, 1]), 3, 2000, stay);
            let case = format!("{pick:?}, {stay}: {counts:?}");
            match pick {
                Pick::Rendezvous | Pick::IpHash | Pick::Random => {
                    assert!(follows(&counts, &[19, 1]), "{case}");
                }
                _ => assert!((95..=105).contains(&counts[1]), "{case}"),
            }
        }
    }
}

#[test]
fn requests_follow_weights_where_they_take_different_times() {
    for pick in [Pick::PowerOfTwo, Pick::LeastConnections, Pick::RoundRobin] {
        for weights in [&[9, 1][..], &[5, 3, 1], &[1, 1, 1, 1]] {
            let configuration = configuration(pick, weights);
            let counts = requests(&configuration, 2, 6, false, 4000);
            let whole: u32 = weights.iter().sum();
            for (&count, &weight) in counts.iter().zip(weights) {
                let part = 4000 * weight / whole;
                let case = format!("{pick:?}, {weights:?}: {counts:?}");
                assert!(count.abs_diff(part) * 5 <= part, "{case}");
            }
        }
    }
}

#[test]
fn tunnels_follow_weights_and_not_the_requests_between_them() {
    for pick in [Pick::PowerOfTwo, Pick::LeastConnections, Pick::RoundRobin, Pick::Random] {
        let configuration = configuration(pick, &[1, 1]);
        let mut picker = Picker::new(1);
        let mut counts = [[0; 2]; 2];
        for number in 0..1000 {
            for wanted in [Wanted::Request, Wanted::Tunnel] {
                let place = picker.pick(&configuration, wanted, None, client(number), |_| true);
                let place = place.unwrap();
                counts[wanted as usize][place] += 1;
                if wanted == Wanted::Tunnel {
                    configuration.targets[place].backend.open_tunnel();
                }
            }
        }
        assert!(counts.iter().all(|counts| follows(counts, &[1, 1])), "{pick:?}: {counts:?}");
    }
}

#[test]
fn a_slow_backend_gets_no_more_than_its_part_of_what_is_open() {
    for pick in [Pick::PowerOfTwo, Pick::LeastConnections] {
        let configuration = configuration(pick, &[1, 1]);
        let [slow, fast] = [0, 1].map(|place| &configuration.targets[place].backend);
        (0..10).for_each(|_| assert!(slow.begin_request(Wanted::Request)));
        (0..2).for_each(|_| assert!(fast.begin_request(Wanted::Request)));
        assert_eq!(requests(&configuration, 1, 1, true, 100), [0, 100], "{pick:?}");
    }
}

#[test]
fn the_last_hope_is_shared_by_weight() {
    let configuration = configuration(Pick::PowerOfTwo, &[9, 1]);
    configuration.targets.iter().for_each(|target| target.backend.set_state(State::Down));
    let mut picker = Picker::new(3);
    let mut counts = [0; 2];
    (0..4000).for_each(|_| counts[picker.pick_down(&configuration, |_| true).unwrap()] += 1);
    assert!(follows(&counts, &[9, 1]), "{counts:?}");
}

#[test]
fn turns_are_interleaved() {
    let configuration = configuration(Pick::RoundRobin, &[5, 1, 1]);
    let mut begun = [false; 7];
    for seed in 0..1000 {
        let mut picker = Picker::new(seed);
        let mut next =
            || picker.pick(&configuration, Wanted::Tunnel, None, CLIENT, |_| true).unwrap();
        let turns = [(); 14].map(|()| next());
        let cycle = [0, 0, 1, 0, 2, 0, 0].repeat(3);
        let begin = (0..7).find(|&begin| cycle[begin..].starts_with(&turns));
        begun[begin.expect("they are in the order of the cycle")] = true;
    }
    assert_eq!(begun, [true; 7], "each picker begins somewhere else");
}

#[test]
fn credit_of_large_weights_is_soon_forgotten() {
    let next_twenty = |picker: &mut Picker, configuration: &Pool| {
        let mut counts = vec![0; configuration.targets.len()];
        for _ in 0..20 {
            counts[picker.pick(configuration, Wanted::Tunnel, None, CLIENT, |_| true).unwrap()] +=
                1;
        }
        counts
    };
    for picks in [1, 250, 500, 900, 1100] {
        let mut configuration = configuration(Pick::RoundRobin, &[1000, 1, 1, 500]);
        let mut picker = Picker::new(0);
        for _ in 0..picks {
            picker.pick(&configuration, Wanted::Tunnel, None, CLIENT, |_| true).unwrap();
        }
        configuration.targets[0].backend.set_weight(1);
        configuration.targets[3].backend.set_weight(1);
        let counts = next_twenty(&mut picker, &configuration);
        assert!(counts.iter().all(|count| (2..=8).contains(count)), "{picks}: {counts:?}");
        configuration.targets.remove(0);
        let counts = next_twenty(&mut picker, &configuration);
        assert!(counts.iter().all(|count| (4..=9).contains(count)), "{picks}: {counts:?}");
    }
}

#[test]
fn chance_is_fair_to_the_smallest_shares() {
    let configuration = configuration(Pick::Random, &[1; 4]);
    for (target, share) in configuration.targets.iter().zip([1, 2, 1, 1]) {
        target.backend.set_share(share);
    }
    let counts = counts(&configuration, 1, 4000, false);
    assert!(follows(&counts, &[1, 2, 1, 1]), "{counts:?}");
}

#[test]
fn turns_go_on_after_a_change_of_order() {
    let mut configuration = configuration(Pick::RoundRobin, &[1, 1, 1]);
    let mut picker = Picker::new(0);
    let mut next = |configuration: &Pool| {
        let place = picker.pick(configuration, Wanted::Tunnel, None, CLIENT, |_| true).unwrap();
        configuration.targets[place].backend.address()
    };
    let mut got = vec![next(&configuration)];
    configuration.targets.reverse();
    got.extend([(); 5].map(|()| next(&configuration)));
    for address in [0, 1, 2].map(address) {
        let turns = got.iter().filter(|one| **one == address).count();
        assert!((1..=3).contains(&turns), "{got:?}");
    }
}

#[test]
fn a_new_backend_gets_its_part_of_each_others_clients() {
    let mut configuration = configuration(Pick::Rendezvous, &[1; 9]);
    let place = |configuration: &_, key| pick_by_key(configuration, key, |_| true).unwrap();
    let before: Vec<_> = (0..10_000).map(|key| place(&configuration, key)).collect();
    configuration.targets.push(target(9, 1));
    let mut moved = [0; 9];
    for (key, before) in before.into_iter().enumerate() {
        let after = place(&configuration, key as u64);
        if after != before {
            assert_eq!(after, 9);
            moved[before] += 1;
        }
    }
    let all = moved.iter().sum::<u32>();
    assert!(all.abs_diff(1000) < 180 && follows(&moved, &[1; 9]), "{moved:?}");
}

#[test]
fn rendezvous_is_the_same_everywhere() {
    // Two balancers in front of the same backends agree, for any order, seed and load.
    let one = configuration(Pick::Rendezvous, &[3, 1, 2]);
    let mut other = one.clone();
    other.targets.reverse();
    one.targets[0].backend.open_tunnel();
    for key in 0..100 {
        let [first, second] = [(&one, 1), (&other, 2)].map(|(configuration, seed)| {
            let place =
                Picker::new(seed).pick(configuration, Wanted::Tunnel, Some(key), CLIENT, |_| true);
            configuration.targets[place.unwrap()].backend.address()
        });
        assert_eq!(first, second);
    }
}

#[test]
fn a_client_with_a_key_is_picked_by_it_and_else_by_address() {
    let rendezvous = configuration(Pick::Rendezvous, &[1; 16]);
    let hash = configuration(Pick::IpHash, &[1; 16]);
    let pick = |configuration, key, client| {
        Picker::new(0).pick(configuration, Wanted::Tunnel, key, client, |_| true).unwrap()
    };
    let distinct = |places: Vec<usize>| places.iter().any(|&place| place != places[0]);
    assert!(distinct((0..50).map(|key| pick(&rendezvous, Some(key), CLIENT)).collect()));
    assert!(!distinct((0..50).map(|number| pick(&rendezvous, Some(1), client(number))).collect()));
    assert!(distinct((0..50).map(|number| pick(&rendezvous, None, client(number))).collect()));
    assert!(!distinct((0..50).map(|key| pick(&hash, Some(key), CLIENT)).collect()));
    assert!(distinct((0..50).map(|number| pick(&hash, Some(1), client(number))).collect()));
}

#[test]
fn clients_are_distinguished_by_address_or_network() {
    let secret = CookieKey::default();
    let key = |text: &str| client_key(&secret, text.parse().unwrap());
    assert_eq!(key("10.0.0.1"), key("::ffff:10.0.0.1"));
    assert_ne!(key("10.0.0.1"), key("10.0.0.2"));
    assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::9"));
    assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    assert_ne!(client_key(&secret, Ipv6Addr::LOCALHOST.into()), key("127.0.0.1"));
}

#[test]
fn a_bound_client_returns_as_long_as_the_backend_is_up() {
    let mut configuration = configuration(Pick::PowerOfTwo, &[1, 1, 1]);
    let bound = Arc::clone(&configuration.targets[1].backend);
    let tag = |backend: &Backend| CookieKey::default().tag(backend.address());
    assert_eq!(pick_bound(&configuration, tag(&bound)), Some(1));
    for state in [State::Down, State::Draining, State::Removed] {
        bound.set_state(state);
        assert_eq!(pick_bound(&configuration, tag(&bound)), None);
    }
    bound.set_state(State::Up);
    configuration.targets.remove(0);
    assert_eq!(pick_bound(&configuration, tag(&bound)), Some(0));
    configuration.targets.remove(0);
    assert_eq!(pick_bound(&configuration, tag(&bound)), None);
}

#[test]
fn with_a_secret_addresses_of_one_backend_cannot_be_found_without_it() {
    use crate::config::Token;
    let of = |secret: Option<&str>, pick| {
        let mut configuration = configuration(pick, &[1; 4]);
        if let Some(secret) = secret {
            configuration.settings.cookie_key = CookieKey::of(&Token::new(secret).unwrap());
        }
        let place = |number| {
            Picker::new(0)
                .pick(&configuration, Wanted::Tunnel, None, client(number), |_| true)
                .unwrap()
        };
        (0..400).map(place).collect::<Vec<_>>()
    };
    for pick in [Pick::IpHash, Pick::Rendezvous] {
        let open = of(None, pick);
        assert_eq!(of(None, pick), open, "in every process");
        let keyed = of(Some("0123456789abcdef"), pick);
        assert_eq!(of(Some("0123456789abcdef"), pick), keyed, "in every process with the secret");
        // Clients that an attacker has chosen for backend 0.
        let chosen = || open.iter().enumerate().filter(|(_, place)| **place == 0);
        let hit = chosen().filter(|(at, _)| keyed[*at] == 0).count();
        assert!(hit * 2 < chosen().count(), "{hit} of {}", chosen().count());
        assert_ne!(of(Some("0123456789abcdeF"), pick), keyed);
    }
}
