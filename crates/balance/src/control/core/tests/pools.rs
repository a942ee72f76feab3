//! Pools that change under tunnels.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> Config {
    Config::parse(text, "b.toml").unwrap()
}

/// A file with these pools, each with backends at its ports, and `more` settings before them.
fn file(more: &str, pools: &[(&str, &[u16])]) -> Config {
    let pool = |(name, ports): &(&str, &[u16])| {
        let backends: Vec<_> = ports.iter().map(|port| format!("\"{}\"", address(*port))).collect();
        match *name {
            DEFAULT_POOL => format!("backends = [{}]\n", backends.join(", ")),
            name => format!("[[pool]]\nname = \"{name}\"\nbackends = [{}]\n", backends.join(", ")),
        }
    };
    let tables: String = pools.iter().map(pool).collect();
    parsed(&format!("{more}\n{tables}"))
}

fn started(config: Config) -> ControlCore {
    let mut core = ControlCore::new(config);
    assert!(core.take_configuration().is_some());
    core
}

fn of(core: &ControlCore, pool: &str, port: u16) -> Arc<Backend> {
    let at = core.position(pool, address(port)).expect("it is in the list");
    Arc::clone(&core.entries[at].backend)
}

/// All backends: their pool, port, state and tunnels.
fn all(core: &ControlCore) -> Vec<(String, u16, &'static str, u32)> {
    let row = |row: Row| (row.pool, row.address.port(), row.state, row.tunnels);
    let mut all: Vec<_> = core.rows(at(0.0)).into_iter().map(row).collect();
    all.sort();
    all
}

fn row(
    pool: &str,
    port: u16,
    state: &'static str,
    tunnels: u32,
) -> (String, u16, &'static str, u32) {
    (pool.to_owned(), port, state, tunnels)
}

#[test]
fn a_renamed_pool_keeps_its_backends_with_weights_drains_and_tunnels() {
    let mut core = started(file("", &[("a", &[1, 2, 3]), ("x", &[9])]));
    let backends = [1, 2, 3].map(|port| of(&core, "a", port));
    backends.iter().for_each(|backend| open(backend, 5));
    core.set_weight(address(1), 7, at(0.0)).unwrap();
    core.drain(address(2), None).unwrap();
    fail(&mut core, 3, 3, at(0.0));
    commands(&mut core);
    let changes = apply(&mut core, file("", &[("b", &[1, 2, 3]), ("x", &[9])]), at(1.0)).unwrap();
    assert!(changes.added.is_empty() && changes.removed.is_empty(), "{changes:?}");
    assert!(commands(&mut core).is_empty());
    let after = [1, 2, 3].map(|port| of(&core, "b", port));
    assert!(backends.iter().zip(&after).all(|(one, other)| Arc::ptr_eq(one, other)));
    assert_eq!(after[0].weight(), 7);
    let expected = [
        row("b", 1, "up", 5),
        row("b", 2, "draining", 5),
        row("b", 3, "down", 5),
        row("x", 9, "up", 0),
    ];
    assert_eq!(all(&core), expected);
    let configuration = core.take_configuration().unwrap();
    assert!(configuration.pools.named("a").is_none());
    assert_eq!(configuration.pools.named("b").unwrap().targets.len(), 3);
}

#[test]
fn backends_outside_of_pools_become_a_pool_and_back() {
    let mut core = started(file("", &[(DEFAULT_POOL, &[1, 2])]));
    open(&of(&core, DEFAULT_POOL, 1), 3);
    for (pool, other) in [("a", DEFAULT_POOL), (DEFAULT_POOL, "a")] {
        let changes = apply(&mut core, file("", &[(pool, &[1, 2])]), at(1.0)).unwrap();
        assert!(changes.added.is_empty() && changes.removed.is_empty(), "{changes:?}");
        assert_eq!(all(&core), [row(pool, 1, "up", 3), row(pool, 2, "up", 0)]);
        assert!(core.position(other, address(1)).is_none());
    }
    assert!(commands(&mut core).is_empty());
}

#[test]
fn split_and_merged_pools_keep_all_tunnels_whatever_the_setting() {
    for more in ["", "removed = \"drain\""] {
        let mut core = started(file(more, &[("a", &[1, 2])]));
        [1, 2].iter().for_each(|port| open(&of(&core, "a", *port), 4));
        let split = file(more, &[("b", &[1]), ("c", &[1, 2])]);
        let changes = apply(&mut core, split, at(1.0)).unwrap();
        assert_eq!((changes.added, changes.removed), (vec![address(1)], vec![]));
        let expected = [row("b", 1, "up", 4), row("c", 1, "up", 0), row("c", 2, "up", 4)];
        assert_eq!(all(&core), expected);
        open(&of(&core, "c", 1), 6);
        let changes = apply(&mut core, file(more, &[("d", &[1, 2])]), at(2.0)).unwrap();
        let removed = RemovedBackend { address: address(1), tunnels: 4, rate: None };
        assert_eq!((changes.added, changes.removed), (vec![], vec![removed]));
        // The one with the most tunnels goes on, and the other keeps its own.
        let expected = [row("b", 1, "removed", 4), row("d", 1, "up", 6), row("d", 2, "up", 4)];
        assert_eq!(all(&core), expected);
        assert!(commands(&mut core).is_empty(), "{more}");
        close(&core.entries.iter().find(|it| it.is_in("b")).unwrap().backend.clone(), 4);
        expire(&mut core, at(3.0));
        assert_eq!(all(&core).len(), 2);
    }
}

#[test]
fn backends_of_a_removed_pool_keep_their_tunnels_or_are_drained_as_it_said() {
    for (setting, command) in [("keep", None), ("drain", Some("1 close all at 9/s"))] {
        let pool = format!(
            "[[pool]]\nname = \"a\"\nbackends = [\"127.0.0.1:1\"]\nremoved = \"{setting}\"\n\
             close_rate = 9\n"
        );
        let mut core = started(parsed(&format!("backends = [\"127.0.0.1:2\"]\n{pool}")));
        open(&of(&core, "a", 1), 2);
        let changes = apply(&mut core, file("", &[(DEFAULT_POOL, &[2])]), at(1.0)).unwrap();
        let rate = command.map(|_| 9);
        let removed = RemovedBackend { address: address(1), tunnels: 2, rate };
        assert_eq!(changes.removed, [removed]);
        let commands = commands(&mut core);
        assert_eq!(commands.len(), usize::from(command.is_some()), "{commands:?}");
        assert!(command.is_none_or(|command| commands[0].starts_with(command)), "{commands:?}");
    }
}

#[test]
fn a_backend_with_other_tls_is_another_one() {
    let with = |pool: &str, tls: &str| {
        parsed(&format!("[[pool]]\nname = \"{pool}\"\nbackends = [\"127.0.0.1:1\"]\n{tls}"))
    };
    let mut core = started(with("a", ""));
    let before = of(&core, "a", 1);
    open(&before, 1);
    apply(&mut core, with("b", "tls = { verify = false }\n"), at(1.0)).unwrap();
    assert!(!Arc::ptr_eq(&before, &of(&core, "b", 1)));
    assert_eq!(all(&core), [row("a", 1, "removed", 1), row("b", 1, "up", 0)]);
    let again = of(&core, "b", 1);
    apply(&mut core, with("c", "tls = { verify = false }\n"), at(2.0)).unwrap();
    assert!(Arc::ptr_eq(&again, &of(&core, "c", 1)));
    // Its tunnels are still there, and so it is the same one.
    apply(&mut core, with("a", ""), at(3.0)).unwrap();
    assert!(Arc::ptr_eq(&before, &of(&core, "a", 1)));
}

#[test]
fn pools_have_their_own_health() {
    let check = "health.check = { kind = \"tcp\", fall = 1 }\n";
    let pools = file(check, &[("a", &[1, 2]), ("b", &[3, 4, 5])]);
    let mut core = started(pools);
    [1, 3].iter().for_each(|port| open(&backend(&core, *port), 1));
    let failed = || Err(crate::checks::CheckFailure::Backend("away".to_owned()));
    let check = |core: &mut ControlCore, port| {
        let backend = backend(core, port);
        core.handle_check(&backend, failed(), at(1.0), SystemTime::UNIX_EPOCH);
        expire(core, at(1.0));
    };
    // Both of a are down: all its tunnels stay. Most of b is up: tunnels of the dead one end.
    [2, 1, 3].into_iter().for_each(|port| check(&mut core, port));
    assert_eq!(core.panic(), (true, 1));
    let commands = commands(&mut core);
    assert!(commands.iter().any(|command| command.starts_with("3 close")), "{commands:?}");
    assert!(!commands.iter().any(|command| command.starts_with("1 close")), "{commands:?}");
    assert!(
        core.drain(address(2), None).unwrap().last && !core.drain(address(4), None).unwrap().last
    );
}

#[test]
fn operators_reach_a_backend_by_its_address_in_any_pool() {
    let mut core =
        started(file("", &[(DEFAULT_POOL, &[1]), ("a", &[1, 2]), ("b", &[3]), ("c", &[3])]));
    core.set_weight(address(1), 5, at(0.0)).unwrap();
    assert_eq!((of(&core, DEFAULT_POOL, 1).weight(), of(&core, "a", 1).weight()), (5, 1));
    core.set_weight(address(2), 6, at(0.0)).unwrap();
    assert_eq!(of(&core, "a", 2).weight(), 6);
    let error = core.drain(address(3), None).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:3 is in the pools b, c"), "{error}");
    assert!(matches!(core.drain(address(9), None), Err(Error::Unknown { .. })));
    // Its only pool: the other one has tunnels there, but gives it no clients.
    open(&of(&core, "b", 3), 1);
    apply(&mut core, file("", &[(DEFAULT_POOL, &[1]), ("c", &[3])]), at(1.0)).unwrap();
    core.drain(address(3), None).unwrap();
    assert_eq!(of(&core, "c", 3).state(), State::Draining);
}

#[test]
fn a_rebalance_evens_out_each_pool() {
    let mut core = started(file("", &[("a", &[1, 2]), ("b", &[3, 4])]));
    for (port, tunnels) in [(1, 100), (2, 0), (3, 20), (4, 10)] {
        open(&backend(&core, port), tunnels);
    }
    let plan = core.rebalance(true, None).unwrap();
    let moves: Vec<_> = plan.moves.iter().map(|of| (of.address.port(), of.close)).collect();
    assert_eq!((moves, plan.total, plan.spread_before), (vec![(1, 50), (3, 5)], 55, 1.0));
}

#[test]
fn a_successor_takes_backends_over_by_pool() {
    let two = || file("", &[("a", &[1, 2]), ("b", &[1, 2])]);
    let mut core = started(two());
    let at_b = |core: &ControlCore, port| core.position("b", address(port)).unwrap();
    let place = at_b(&core, 1);
    core.weigh(place, 4, at(0.0));
    let place = at_b(&core, 2);
    core.start_drain(place, None);
    of(&core, "b", 1).totals().connects.fetch_add(3, Relaxed);
    let text = serde_json::to_string(&core.carried(Instant(0))).unwrap();
    let mut next = started(two());
    next.take_over(serde_json::from_str(&text).unwrap(), at(0.0));
    assert_eq!((of(&next, "a", 1).weight(), of(&next, "b", 1).weight()), (1, 4));
    let states = |pool| [1, 2].map(|port| of(&next, pool, port).state().word());
    assert_eq!((states("a"), states("b")), (["up", "up"], ["up", "draining"]));
    // Its file has another name for a pool.
    let mut renamed = started(file("", &[("z", &[1]), ("b", &[2])]));
    renamed.take_over(serde_json::from_str(&text).unwrap(), at(0.0));
    assert_eq!(of(&renamed, "b", 2).state(), State::Draining);
}

/// Pools by their names: the ports of their backends.
type Plan = BTreeMap<&'static str, BTreeSet<u16>>;

#[derive(Clone, Debug)]
enum Step {
    Reload(Plan),
    /// A tunnel to one of the backends that take clients.
    Open(prop::sample::Index),
    /// The end of an open one.
    Close(prop::sample::Index),
}

fn plans() -> impl Strategy<Value = Plan> {
    let names = prop::sample::select(vec![DEFAULT_POOL, "a", "b", "c"]);
    let ports = prop::collection::btree_set(1u16..5, 1..4);
    prop::collection::btree_map(names, ports, 1..4)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => plans().prop_map(Step::Reload),
        4 => any::<prop::sample::Index>().prop_map(Step::Open),
        1 => any::<prop::sample::Index>().prop_map(Step::Close),
    ];
    prop::collection::vec(step, 1..30)
}

fn planned(more: &str, plan: &Plan) -> Config {
    let pools: Vec<(&str, Vec<u16>)> =
        plan.iter().map(|(name, ports)| (*name, ports.iter().copied().collect())).collect();
    // Values outside of tables come first.
    let (mut first, rest): (Vec<_>, Vec<_>) =
        pools.iter().partition(|(name, _)| *name == DEFAULT_POOL);
    first.extend(rest);
    let pools: Vec<(&str, &[u16])> =
        first.iter().map(|(name, ports)| (*name, ports.as_slice())).collect();
    file(more, &pools)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Pools are renamed, split, merged, and removed, backends moved: no tunnel is closed, and each
    /// counts once at a backend that is in the list.
    #[test]
    fn no_reload_of_pools_closes_a_tunnel(first in plans(), steps in steps()) {
        let mut core = started(planned("", &first));
        let mut plan = first;
        let mut tunnels: Vec<Arc<Backend>> = Vec::new();
        for (second, step) in steps.into_iter().enumerate() {
            let now = at(second as f64);
            match step {
                Step::Reload(next) => {
                    apply(&mut core, planned("", &next), now).unwrap();
                    plan = next;
                }
                Step::Open(which) => {
                    let up: Vec<_> =
                        core.entries.iter().filter(|it| it.backend.state() == State::Up).collect();
                    let backend = &which.get(&up).backend;
                    backend.open_tunnel();
                    tunnels.push(Arc::clone(backend));
                }
                Step::Close(which) if !tunnels.is_empty() => {
                    tunnels.swap_remove(which.index(tunnels.len())).close_tunnel();
                }
                Step::Close(_) => {}
            }
            expire(&mut core, now);
            let mut commands = core.take_commands().into_iter();
            let closing = commands.find(|it| matches!(it, ControlCommand::Close(..)));
            prop_assert!(closing.is_none(), "{closing:?}");
            let listed = core.entries.iter().map(|entry| entry.backend.tunnels()).sum::<u32>();
            prop_assert_eq!(listed as usize, tunnels.len());
            prop_assert!(tunnels.iter().all(|held| core.place(held).is_some()));
            let up = core.entries.iter().filter(|entry| entry.backend.state() == State::Up);
            let mut up: Vec<_> =
                up.map(|it| (it.pool.name.to_string(), it.backend.address().port())).collect();
            up.sort();
            let mut wanted: Vec<_> = plan
                .iter()
                .flat_map(|(name, ports)| ports.iter().map(|port| ((*name).to_owned(), *port)))
                .collect();
            wanted.sort();
            prop_assert_eq!(up, wanted);
        }
    }
}
