//! Backends that register themselves.

use super::*;

#[test]
fn a_registration_lasts_as_long_as_its_heartbeats() {
    let mut core = core(&[1], &format!("close_rate = 5\n{TOKEN}"));
    let time = core.register(address(2), 3, None, at(0.0)).unwrap();
    assert_eq!(time, Duration::from_secs(10));
    let two = backend(&core, 2);
    open(&two, 1);
    assert_eq!(core.rows(at(4.0))[1].expires_in_seconds, Some(6.0));
    assert_eq!((core.rows(at(4.0))[1].source, two.weight()), ("registered", 3));
    assert_eq!(expire(&mut core, at(4.0)), Some(at(10.0)));
    core.heartbeat(address(2), at(9.0)).unwrap();
    assert_eq!(expire(&mut core, at(10.0)), Some(at(19.0)));
    // A reload does not know it, and leaves it alone.
    apply(&mut core, config(&[1], &format!("close_rate = 5\n{TOKEN}")), at(11.0)).unwrap();
    assert_eq!((ports(&core), two.state()), (vec![1, 2], State::Up));
    assert!(matches!(core.remove(address(2), None, at(0.0)), Err(Error::RegistersItself { .. })));
    commands(&mut core);
    expire(&mut core, at(19.0));
    // No new clients, but its tunnel stays: a silent backend may be healthy.
    assert_eq!(two.state(), State::Down);
    assert_eq!(commands(&mut core), [""; 0]);
    assert!(
        core.rows(at(19.0))[1].last_failure.as_ref().unwrap().text.contains("no heartbeat for 10s")
    );
    assert!(matches!(core.heartbeat(address(2), at(20.0)), Err(Error::NotRegistered { .. })));
    // It comes back, and is the same.
    core.register(address(2), 1, Some(Duration::from_secs(2)), at(21.0)).unwrap();
    assert!(Arc::ptr_eq(&backend(&core, 2), &two));
    assert_eq!(
        (two.state(), two.weight(), commands(&mut core)),
        (State::Up, 1, vec!["2 keep".to_owned()])
    );
    // It deregisters.
    core.deregister(address(2)).unwrap();
    assert_eq!(two.state(), State::Draining);
    assert!(matches!(core.deregister(address(2)), Err(Error::NotRegistered { .. })));
    close(&two, 1);
    expire(&mut core, at(22.0));
    assert_eq!(ports(&core), [1]);
}

#[test]
fn a_registration_of_a_configured_backend_changes_neither_weight_nor_drain() {
    let mut core = core(&[1], TOKEN);
    core.drain(address(1), None).unwrap();
    core.register(address(1), 7, None, at(0.0)).unwrap();
    let one = backend(&core, 1);
    assert_eq!((one.weight(), one.state()), (1, State::Draining));
    expire(&mut core, at(60.0));
    assert_eq!((ports(&core), core.rows(at(60.0))[0].source), (vec![1], "file"));
    // The failures of the last process must not count for a new one.
    core.undrain(address(1), at(60.0)).unwrap();
    fail(&mut core, 1, 3, at(60.0));
    assert_eq!(one.state(), State::Down);
    core.register(address(1), 7, None, at(61.0)).unwrap();
    assert_eq!(one.state(), State::Up);
}

#[test]
fn registration_is_refused_with_a_reason() {
    let mut off = core(&[1], "");
    assert!(matches!(off.register(address(2), 1, None, at(0.0)), Err(Error::RegistrationIsOff)));
    assert!(matches!(off.heartbeat(address(2), at(0.0)), Err(Error::RegistrationIsOff)));
    let mut on = core(&[1], TOKEN);
    on.set_addresses(&[([127, 0, 0, 1], 8080).into()]);
    on.set_admin_address(([127, 0, 0, 1], 8081).into());
    for (port, weight, time, expected) in [
        (2, 0, None, "weight is 0: write 1 to 1000; to send a backend nothing"),
        (2, 1001, None, "weight is 1001: write 1 to 1000"),
        (0, 1, None, "address is 127.0.0.1:0: port 0"),
        (8080, 1, None, "the balancer itself listens on 127.0.0.1:8080"),
        (8081, 1, None, "the balancer itself listens on 127.0.0.1:8081"),
        (2, 1, Some(0), "time_to_live is 0ns: write 1 second to 1 hour"),
        (2, 1, Some(3601), "time_to_live is 3601s: write 1 second to 1 hour"),
    ] {
        let time = time.map(Duration::from_secs);
        let error = on.register(address(port), weight, time, at(0.0)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(ports(&on), [1]);
}

#[test]
fn an_address_that_became_the_balancers_own_is_not_registered_again() {
    let mut core = core(&[1], TOKEN);
    core.register(address(8080), 1, None, at(0.0)).unwrap();
    core.set_addresses(&["0.0.0.0:8080".parse().unwrap()]);
    let error = core.register(address(8080), 1, None, at(1.0)).unwrap_err().to_string();
    assert!(error.contains("the balancer itself listens on 0.0.0.0:8080"), "{error}");
}

#[test]
fn backends_register_from_the_networks_that_they_may() {
    let mut core = core(&[1], TOKEN);
    let at_once = at(0.0);
    let metadata = "169.254.169.254:80".parse().unwrap();
    let error = core.register(metadata, 1, None, at_once).unwrap_err().to_string();
    assert!(error.contains("register.networks"), "{error}");
    for metadata in [
        "[fe80::1]:80",
        "[fd00:ec2::254]:80",
        "[fd20:ce::254]:80",
        "[64:ff9b::a9fe:a9fe]:80",
        "[::ffff:169.254.169.254]:80",
        "168.63.129.16:80",
        "100.100.100.200:80",
    ] {
        assert!(core.register(metadata.parse().unwrap(), 1, None, at_once).is_err(), "{metadata}");
    }
    assert!(core.register("[64:ff9b::a00:1]:80".parse().unwrap(), 1, None, at_once).is_ok());
    assert!(core.register("10.0.0.1:80".parse().unwrap(), 1, None, at_once).is_ok());
    let only = format!("{TOKEN}networks = [\"127.0.0.0/8\"]\n");
    apply(&mut core, config(&[1], &only), at_once).unwrap();
    assert!(core.register("10.0.0.2:80".parse().unwrap(), 1, None, at_once).is_err());
    assert!(core.register(address(2), 1, None, at_once).is_ok());
}

#[test]
fn a_silent_backend_is_asked_itself_and_goes_when_it_does_not_answer() {
    let mut core = core(&[1], &format!("close_rate = 5\n{TOKEN}"));
    core.register(address(2), 1, None, at(0.0)).unwrap();
    let (two, wall) = (backend(&core, 2), SystemTime::UNIX_EPOCH);
    assert_eq!(core.checks().count(), 0, "none are configured");
    open(&two, 1);
    core.take_configuration();
    expire(&mut core, at(10.0));
    assert!(core.take_configuration().is_some(), "checks get it, too");
    let asked: Vec<_> =
        core.checks().map(|(target, check, _)| (target.backend.address(), check)).collect();
    assert_eq!(asked, [(address(2), Check::new(CheckKind::Tcp))]);
    // It answers: it stays for as long as it does, with tunnels and without.
    for second in 11..100 {
        let wrong = Err("cannot connect".to_owned().into());
        let outcome = if second % 3 == 0 { Ok(()) } else { wrong };
        core.handle_check(&two, outcome, at(second.into()), wall);
        if second == 50 {
            close(&two, 1);
        }
        expire(&mut core, at(second.into()));
    }
    assert_eq!(
        (ports(&core), two.state(), commands(&mut core).len()),
        (vec![1, 2], State::Down, 0)
    );
    open(&two, 1);
    for second in 100..103 {
        assert_eq!(commands(&mut core), [""; 0]);
        core.handle_check(&two, Err("gone".to_owned().into()), at(second.into()), wall);
    }
    assert_eq!(commands(&mut core), ["2 close open at 5/s with 1012 Shuffled by None"]);
    expire(&mut core, at(103.0));
    assert_eq!(ports(&core), [1, 2]);
    close(&two, 1);
    expire(&mut core, at(104.0));
    assert_eq!(ports(&core), [1]);
}

#[test]
fn operators_may_drain_and_remove_a_silent_backend() {
    for remove in [false, true] {
        let mut core = core(&[1], TOKEN);
        core.register(address(2), 1, None, at(0.0)).unwrap();
        expire(&mut core, at(10.0));
        assert_eq!(ports(&core), [1, 2]);
        match remove {
            false => drop(core.drain(address(2), None).unwrap()),
            true => drop(core.remove(address(2), None, at(0.0)).unwrap()),
        }
        expire(&mut core, at(11.0));
        assert_eq!(ports(&core), [1]);
    }
}
