//! Rebalances.

use super::*;

#[test]
fn a_rebalance_closes_each_surplus_at_its_part_of_the_rate() {
    let mut core = core(&[1, 2, 3, 4], "close_rate = 30");
    for (port, tunnels) in [(1, 900), (2, 600), (3, 0), (4, 0)] {
        open(&backend(&core, port), tunnels);
    }
    let dry = core.rebalance(true, None).unwrap();
    assert_eq!((dry.total, dry.rate, dry.seconds, dry.dry_run), (750, 30, 25, true));
    assert!(commands(&mut core).is_empty());
    let done = core.rebalance(false, Some(300)).unwrap();
    assert_eq!((&done.moves, done.seconds), (&dry.moves, 3));
    assert_eq!(done.moves[0], Surplus { address: address(1), tunnels: 900, close: 525 });
    assert_eq!(
        commands(&mut core),
        [
            "1 close 525 at 210/s with 1012 IdleAndOldest by None",
            "2 close 225 at 90/s with 1012 IdleAndOldest by None"
        ]
    );
}

#[test]
fn a_rebalance_leaves_connections_that_are_passed_through_alone() {
    let mut core = core(&[1, 2], "");
    let named =
        BackendConfig { passthrough: ["*".into()].into(), ..BackendConfig::new(address(3)) };
    let pool = Arc::clone(&core.pools[0].rules);
    core.enlist(&pool, named, DesiredState { api: true, ..DesiredState::default() }, at(0.0));
    open(&backend(&core, 1), 100);
    open(&backend(&core, 3), 500);
    let plan = core.rebalance(true, None).unwrap();
    assert_eq!(plan.moves, [Surplus { address: address(1), tunnels: 100, close: 50 }]);
}

/// Their clients would come back to the same backend, or to any, and be closed in vain.
#[test]
fn a_rebalance_is_refused_where_clients_do_not_come_back_by_load() {
    for (setting, parts) in [
        ("pick = \"round_robin\"", ["pick is \"round_robin\"", "write \"power_of_two\""]),
        ("pick = \"random\"", ["pick is \"random\"", "\"least_connections\""]),
        ("pick = \"rendezvous\"", ["pick is \"rendezvous\"", "\"power_of_two\""]),
        ("pick = \"ip_hash\"", ["pick is \"ip_hash\"", "\"power_of_two\""]),
        ("sticky = \"ip\"", ["sticky is \"ip\"", "write \"none\""]),
        ("sticky = { cookie = \"lb\" }", ["sticky is { cookie = \"lb\" }", "write \"none\""]),
        ("sticky = { header = \"x\" }", ["sticky is { header = \"x\" }", "write \"none\""]),
        ("sticky = { query = \"q\" }", ["sticky is { query = \"q\" }", "write \"none\""]),
    ] {
        let mut core = core(&[1, 2], setting);
        open(&backend(&core, 1), 100);
        for dry_run in [true, false] {
            let error = core.rebalance(dry_run, None).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{setting}: {error}");
        }
        assert!(core.take_commands().is_empty());
    }
    for pick in ["power_of_two", "least_connections"] {
        let mut core = core(&[1, 2], &format!("pick = \"{pick}\""));
        open(&backend(&core, 1), 100);
        assert_eq!(core.rebalance(true, None).unwrap().total, 50);
    }
}

#[test]
fn a_rebalance_leaves_those_alone_that_are_not_up() {
    let mut core = core(&[1, 2, 3], "");
    open(&backend(&core, 1), 1000);
    open(&backend(&core, 2), 10);
    core.drain(address(1), None).unwrap();
    commands(&mut core);
    let plan = core.rebalance(false, None).unwrap();
    assert_eq!(plan.moves, [Surplus { address: address(2), tunnels: 10, close: 5 }]);
    assert_eq!(commands(&mut core).len(), 1);
}
