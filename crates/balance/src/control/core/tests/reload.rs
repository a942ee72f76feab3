//! Reloads of the configuration.

use super::*;

#[test]
fn a_reload_changes_what_differs_and_nothing_else() {
    let mut core = core(&[1, 2, 3], "");
    let before: Vec<_> = [1, 2, 3].map(|port| backend(&core, port)).into();
    open(&before[2], 1);
    core.set_weight(address(1), 9, at(0.0)).unwrap();
    core.drain(address(2), None).unwrap();
    commands(&mut core);
    core.take_configuration();
    // The same file: changes by operators stay.
    let changes = apply(&mut core, config(&[1, 2, 3], ""), at(1.0)).unwrap();
    assert_eq!(changes, Changes::default());
    assert_eq!((before[0].weight(), before[1].state()), (9, State::Draining));
    // A new weight for 1, no 3, and 4.
    let text = "listen = \"127.0.0.1:99\"\nshards = 2\nretries = 0\nmax_connections = 5\n\
                backends = [{ address = \"127.0.0.1:1\", weight = 4 }, \"127.0.0.1:2\", \
                \"127.0.0.1:4\"]\n\
                [admin]\nlisten = \"127.0.0.1:98\"";
    let changed = Config::parse(text, "b.toml").unwrap();
    let changes = apply(&mut core, changed.clone(), at(2.0)).unwrap();
    let expected = Changes {
        added: vec![address(4)],
        removed: vec![RemovedBackend { address: address(3), tunnels: 1, rate: None }],
        reweighted: vec![address(1)],
        modified: Vec::new(),
        settings: true,
        needs_restart: vec!["listen", "shards", "admin.listen"],
    };
    assert_eq!(changes, expected);
    assert_eq!(core.take_configuration().unwrap().settings.retries, 0);
    assert_eq!(commands(&mut core), [""; 0], "no tunnel is closed");
    expire(&mut core, at(2.0));
    assert_eq!(ports(&core), [1, 2, 3, 4], "3 has a tunnel");
    let row = &core.rows(at(2.0))[2];
    assert_eq!((row.state, row.source, row.tunnels), ("removed", "none", 1));
    // A setting that needs a restart is reported until the restart; the rest was applied.
    let again = apply(&mut core, changed, at(3.0)).unwrap();
    let only_restart = Changes { needs_restart: expected.needs_restart, ..Changes::default() };
    assert_eq!(again, only_restart);
    // 3 comes back while its tunnel lives.
    let changes = apply(&mut core, config(&[1, 2, 3], ""), at(4.0)).unwrap();
    let four = RemovedBackend { address: address(4), tunnels: 0, rate: None };
    assert_eq!((changes.added, changes.removed), (vec![address(3)], vec![four]));
    expire(&mut core, at(4.0));
    assert_eq!((ports(&core), before[2].state()), (vec![1, 2, 3], State::Up));
    for (port, before) in (1..).zip(&before) {
        assert!(Arc::ptr_eq(before, &backend(&core, port)), "{port}");
    }
}

#[test]
fn a_backend_that_is_connected_to_in_another_way_is_modified() {
    let with = |options: &str| {
        let text = format!("backends = [\"127.0.0.1:1{options}\", \"127.0.0.1:2\"]");
        Config::parse(&text, "b.toml").unwrap()
    };
    let mut core = ControlCore::new(with(""));
    for options in [",send_proxy", ",tls", ",passthrough=a.example", ",passthrough=b.example", ""] {
        let changes = apply(&mut core, with(options), at(1.0)).unwrap();
        assert_eq!((changes.modified, changes.reweighted), (vec![address(1)], Vec::new()));
        let again = apply(&mut core, with(options), at(2.0)).unwrap();
        assert!(again.modified.is_empty(), "{options}");
    }
}

#[test]
fn a_backend_of_the_file_that_is_added_again_is_as_the_file_says() {
    let text = "backends = [\"127.0.0.1:1,passthrough=db.example.com\", \"127.0.0.1:2,tls\"]";
    let parsed = Config::parse(text, "b.toml").unwrap();
    let mut core = ControlCore::new(parsed.clone());
    for round in 0..2 {
        for port in [1, 2] {
            core.remove(address(port), None, at(0.0)).unwrap();
        }
        expire(&mut core, at(1.0));
        assert_eq!(ports(&core), [0u16; 0]);
        core.add(BackendConfig { weight: 3, ..BackendConfig::new(address(1)) }, at(2.0)).unwrap();
        core.add(BackendConfig::new(address(2)), at(2.0)).unwrap();
        let (one, two) = (&core.entries[0], &core.entries[1]);
        assert_eq!((&*one.passthrough, one.tls), (&["db.example.com".into()][..], None), "{round}");
        assert_eq!((one.backend.weight(), two.tls), (3, Some(true)));
        apply(&mut core, parsed.clone(), at(3.0)).unwrap();
    }
}

#[test]
fn a_backend_of_the_file_that_registers_after_it_was_removed_is_as_the_file_says() {
    let text = "backends = [\"127.0.0.1:1,passthrough=db.example.com,send_proxy\", \
                \"127.0.0.1:2,tls\"]";
    let mut core = ControlCore::new(Config::parse(&format!("{text}\n{TOKEN}"), "b.toml").unwrap());
    for port in [1, 2] {
        core.remove(address(port), None, at(0.0)).unwrap();
    }
    // The first of them while its drain is under way.
    core.register(address(1), 3, None, at(0.0)).unwrap();
    expire(&mut core, at(1.0));
    core.register(address(2), 1, None, at(1.0)).unwrap();
    let (one, two) = (&core.entries[0], &core.entries[1]);
    assert_eq!((&*one.passthrough, one.send_proxy), (&["db.example.com".into()][..], true));
    assert_eq!((one.backend.weight(), one.desired.source()), (3, "registered"));
    assert_eq!((two.passthrough.len(), two.tls), (0, Some(true)));
}

/// An empty or incomplete file must not drain everything.
#[test]
fn only_a_list_of_backends_changes_the_list() {
    let mut core = core(&[1, 2], TOKEN);
    core.register(address(3), 1, None, at(0.0)).unwrap();
    let parse = |text: &str| Config::parse(&format!("{text}\n{TOKEN}"), "b.toml").unwrap();
    let changes = apply(&mut core, parse("retries = 0"), at(1.0)).unwrap();
    assert_eq!((changes.settings, changes.removed), (true, vec![]));
    assert_eq!(states(&core), ["up", "up", "up"]);
    // An explicit empty list does.
    let changes = apply(&mut core, parse("backends = []"), at(2.0)).unwrap();
    assert_eq!(
        changes.removed.iter().map(|it| it.address).collect::<Vec<_>>(),
        [1, 2].map(address)
    );
    assert_eq!(states(&core), ["removed", "removed", "up"]);
}

#[test]
fn a_reload_that_leaves_no_backend_up_is_refused() {
    let mut core = core(&[1, 2], TOKEN);
    fail(&mut core, 2, 3, at(0.0));
    for ports in [&[2][..], &[]] {
        let error = apply(&mut core, config(ports, TOKEN), at(1.0)).unwrap_err();
        assert!(matches!(error, Error::NoneUp), "{error}");
        assert_eq!(states(&core), ["up", "down"]);
    }
    apply(&mut core, config(&[2, 3], TOKEN), at(1.0)).unwrap();
    // If none is up there is none to lose.
    core.drain(address(3), None).unwrap();
    apply(&mut core, config(&[2], TOKEN), at(2.0)).unwrap();
}

#[test]
fn new_backends_are_announced_before_the_old_ones_go() {
    let mut core = core(&[1], "");
    let one = backend(&core, 1);
    let mut seen = Vec::new();
    let tell = |core: &mut ControlCore| {
        let configuration = core.take_configuration().expect("there is something to tell");
        let addresses =
            configuration.pools.first().targets.iter().map(|target| target.backend.address());
        seen.extend(addresses.map(|address| address.port()));
        assert_eq!(one.state(), State::Up, "there is always one to pick");
    };
    core.apply(config(&[2], ""), at(0.0), tell).unwrap();
    assert_eq!((seen, one.state()), (vec![1, 2], State::Removed));
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let mut core = core(&[1, 2], "");
    core.set_addresses(&[([127, 0, 0, 1], 7).into()]);
    let before = core.rows(at(0.0));
    let mut twice = config(&[1, 3], "retries = 0");
    twice.backends.push(twice.backends[0].clone());
    assert!(matches!(apply(&mut core, twice, at(0.0)), Err(Error::Config(_))));
    // The balancer listens at port 0, which became a port that the file does not contain.
    let error = apply(&mut core, config(&[7, 3], "retries = 0"), at(0.0)).unwrap_err();
    assert!(error.to_string().contains("the balancer itself listens on 127.0.0.1:7"), "{error}");
    let rows = core.rows(at(0.0));
    assert_eq!(format!("{before:?}"), format!("{rows:?}"));
    assert_eq!((core.settings().retries, core.take_configuration().is_none()), (2, true));
    assert!(commands(&mut core).is_empty());
}

#[test]
fn added_backends_stay_over_reloads_and_the_file_has_priority() {
    let mut core = core(&[1], "");
    core.add(BackendConfig::new(address(2)), at(0.0)).unwrap();
    apply(&mut core, config(&[1], ""), at(1.0)).unwrap();
    assert_eq!(ports(&core), [1, 2]);
    // Now it is also in the file, and then removed from it.
    apply(&mut core, config(&[1, 2], ""), at(2.0)).unwrap();
    assert_eq!(core.rows(at(2.0))[1].source, "file");
    let changes = apply(&mut core, config(&[1], ""), at(3.0)).unwrap();
    assert_eq!((changes.removed, core.rows(at(3.0))[1].source), (vec![], "api"));
    // A removed backend is back only when the file has it.
    core.remove(address(1), None, at(0.0)).unwrap();
    expire(&mut core, at(4.0));
    assert_eq!(ports(&core), [2]);
    assert_eq!(apply(&mut core, config(&[1], ""), at(5.0)).unwrap().added, [address(1)]);
}

/// Tunnels stay through several reloads, until draining is requested by name.
#[test]
fn a_backend_that_leaves_the_file_keeps_its_tunnels() {
    let mut core = core(&[1, 2], "");
    let one = backend(&core, 1);
    open(&one, 50);
    for second in 1..4 {
        let text = format!("close_rate = 7\nretries = {second}");
        let changes = apply(&mut core, config(&[2], &text), at(second.into())).unwrap();
        assert_eq!(changes.removed.len(), usize::from(second == 1));
        expire(&mut core, at(second.into()));
        assert_eq!((one.state(), commands(&mut core)), (State::Removed, vec![]), "{second}");
    }
    let configuration = core.take_configuration().unwrap();
    assert_eq!(configuration.pools.first().targets.len(), 1, "no client looks at it");
    assert_eq!(core.checks().count(), 0);
    // An operator drains it by name, or the file does for backends that leave later.
    assert_eq!(core.drain(address(1), None).unwrap().tunnels, 50);
    assert_eq!(commands(&mut core), ["1 close all at 7/s with 1012 Shuffled by None"]);
    open(&backend(&core, 2), 3);
    let text = "close_rate = 7\nremoved = \"drain\"";
    let changes = apply(&mut core, config(&[3], text), at(5.0)).unwrap();
    let two = RemovedBackend { address: address(2), tunnels: 3, rate: Some(7) };
    assert_eq!(changes.removed, [two]);
    assert_eq!(commands(&mut core), ["2 close all at 7/s with 1012 Shuffled by None"]);
}

/// Its old tunnels and its new clients are counted together, and TLS is for new ones.
#[test]
fn a_backend_comes_back_with_tls_while_its_tunnels_live() {
    let with_tls = |tls| {
        let text =
            format!("backends = [{{ address = \"127.0.0.1:1\", tls = {tls} }}, \"127.0.0.1:2\"]");
        Config::parse(&text, "b.toml").unwrap()
    };
    let mut core = ControlCore::new(with_tls(false));
    let one = backend(&core, 1);
    open(&one, 5);
    apply(&mut core, config(&[2], ""), at(1.0)).unwrap();
    apply(&mut core, with_tls(true), at(2.0)).unwrap();
    expire(&mut core, at(2.0));
    let entry = &core.entries[core.position(DEFAULT_POOL, address(1)).unwrap()];
    assert_eq!((entry.tls, entry.backend.tunnels(), one.state()), (Some(true), 5, State::Up));
    assert!(Arc::ptr_eq(&entry.backend, &one));
    assert!(!commands(&mut core).iter().any(|command| command.contains("close")));
}

/// A dead backend's tunnels are closed; a removal then keeps the rest.
#[test]
fn a_removal_ends_the_closing_of_a_dead_backends_tunnels() {
    let check = "[health.check]\nkind = \"tcp\"";
    let mut core = core(&[1, 2, 3], check);
    let one = backend(&core, 1);
    open(&one, 5);
    for second in 0..3 {
        let gone = Err("gone".to_owned().into());
        core.handle_check(&one, gone, at(second.into()), SystemTime::UNIX_EPOCH);
    }
    assert_eq!(commands(&mut core), ["1 close open at 200/s with 1012 Shuffled by None"]);
    apply(&mut core, config(&[2, 3], check), at(3.0)).unwrap();
    assert_eq!((one.state(), commands(&mut core)), (State::Removed, vec!["1 keep".to_owned()]));
}

#[test]
fn backends_with_nothing_but_tunnels_keep_no_others_out() {
    let all: Vec<u16> = (1..=MAX_BACKENDS as u16).collect();
    let mut core = core(&all, "");
    core.backends().for_each(|(backend, _)| backend.open_tunnel());
    apply(&mut core, config(&[5000], ""), at(0.0)).unwrap();
    expire(&mut core, at(0.0));
    assert_eq!(ports(&core).len(), MAX_BACKENDS + 1);
    core.add(BackendConfig::new(address(5001)), at(1.0)).unwrap();
}

/// Requests that are looping contain it.
#[test]
fn the_drawn_id_of_a_balancer_stays_over_reloads_unless_one_is_set() {
    let mut core = ControlCore::new(config(&[1], ""));
    let id = |core: &mut ControlCore| core.take_configuration().unwrap().loop_id.to_string();
    let drawn = id(&mut core);
    apply(&mut core, config(&[1], ""), at(0.0)).unwrap();
    assert_eq!(id(&mut core), drawn);
    apply(&mut core, config(&[1], "loop_id = \"edge-1\""), at(0.0)).unwrap();
    assert_eq!(id(&mut core), "edge-1");
    apply(&mut core, config(&[1], ""), at(0.0)).unwrap();
    assert_eq!(id(&mut core), drawn);
    assert_ne!(id(&mut ControlCore::new(config(&[1], ""))), drawn);
}
