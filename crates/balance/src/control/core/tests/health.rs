//! Backends that fail, are checked, and come back.

use super::*;

#[test]
fn a_dead_backend_is_down_until_its_time_is_over() {
    let mut core = core(&[1, 2], "close_rate = 50");
    fail(&mut core, 1, 2, at(0.0));
    assert_eq!((backend(&core, 1).state(), commands(&mut core)), (State::Up, vec![]));
    fail(&mut core, 1, 1, at(1.0));
    assert_eq!(backend(&core, 1).state(), State::Down);
    // Refusing new connections proves nothing about the existing ones.
    assert_eq!(commands(&mut core), [""; 0]);
    assert!(core.rows(at(1.0))[0].keeps_tunnels);
    assert!(core.take_configuration().is_some(), "who waits for it must look elsewhere");
    let row = &core.rows(at(1.0))[0];
    assert_eq!((row.state, row.source), ("down", "file"));
    assert_eq!(row.last_failure.as_ref().unwrap().text, "the backend refused the connection");
    // Nothing is due before that time, and nothing wakes the control thread.
    assert_eq!(expire(&mut core, at(2.0)), Some(at(11.0)));
    // On probation it gets few clients, and one failure is enough.
    let one = backend(&core, 1);
    assert_eq!(expire(&mut core, at(11.0)), Some(at(11.1)));
    assert_eq!(
        (one.state(), one.share(), commands(&mut core)),
        (State::Up, 10, vec!["1 keep".to_owned()])
    );
    assert_eq!((expire(&mut core, at(12.0)), one.share()), (Some(at(12.1)), 19));
    fail(&mut core, 1, 1, at(12.0));
    assert_eq!((one.state(), expire(&mut core, at(13.0))), (State::Down, Some(at(22.0))));
    // After an answer, everything is as before.
    expire(&mut core, at(22.0));
    open(&one, 1);
    assert_eq!((expire(&mut core, at(22.2)), one.share()), (None, 100));
    fail(&mut core, 1, 2, at(23.0));
    assert_eq!((one.state(), expire(&mut core, at(23.0)), one.share()), (State::Up, None, 100));
}

/// Three requests that a backend cannot answer must not end other clients' tunnels.
#[test]
fn failed_answers_send_clients_elsewhere_and_end_no_tunnel() {
    let wall = SystemTime::UNIX_EPOCH;
    let more = "close_rate = 50\n[health]\nobserve = \"answers\"\n[health.check]\nkind = \"tcp\"";
    let mut core = core(&[1, 2], more);
    let one = backend(&core, 1);
    open(&one, 1);
    for failure in [Failure::Reset, Failure::ResponseTimeout, Failure::BadResponse("a reason")] {
        core.handle_failure(&one, failure, false, at(0.0), wall);
    }
    assert_eq!((one.state(), commands(&mut core)), (State::Down, vec![]));
    // Checks, if there are any, decide whether it is dead.
    core.handle_check(&one, Err("no answer".to_owned().into()), at(1.0), wall);
    core.handle_check(&one, Ok(()), at(2.0), wall);
    core.handle_check(&one, Err("no answer".to_owned().into()), at(3.0), wall);
    core.handle_check(&one, Err("no answer".to_owned().into()), at(4.0), wall);
    assert_eq!(commands(&mut core), Vec::<String>::new());
    core.handle_check(&one, Err("no answer".to_owned().into()), at(5.0), wall);
    assert_eq!(commands(&mut core), ["1 close open at 50/s with 1012 Shuffled by None"]);
    core.handle_check(&one, Err("no answer".to_owned().into()), at(6.0), wall);
    assert_eq!(commands(&mut core), Vec::<String>::new());
}

fn fail_answers(core: &mut ControlCore, port: u16, times: usize, now: Instant) {
    let backend = backend(core, port);
    for _ in 0..times {
        core.handle_failure(&backend, Failure::Reset, false, now, SystemTime::UNIX_EPOCH);
    }
}

#[test]
fn failed_answers_are_held_against_no_backend_by_default() {
    let mut core = core(&[1, 2], "health.failures = 1");
    fail_answers(&mut core, 1, 1000, at(0.0));
    assert_eq!(states(&core), ["up", "up"]);
    let row = &core.rows(at(0.0))[0];
    assert!(row.last_failure.as_ref().unwrap().text.contains("ended the connection"));
}

#[test]
fn a_request_that_failed_elsewhere_before_is_held_against_no_other_backend() {
    let mut core = core(&[1, 2, 3], "health.failures = 1\nhealth.observe = \"answers\"");
    let (one, wall) = (backend(&core, 1), SystemTime::UNIX_EPOCH);
    core.handle_failure(&one, Failure::Reset, true, at(0.0), wall);
    assert_eq!(one.state(), State::Up);
    // A failure to connect counts: no request has been sent.
    core.handle_failure(&one, Failure::ConnectTimeout, true, at(0.0), wall);
    assert_eq!(one.state(), State::Down);
}

#[test]
fn verdicts_of_answers_leave_half_of_the_backends_up() {
    for (count, left) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        let ports: Vec<u16> = (1..=count).collect();
        let mut core = core(&ports, "health.observe = \"answers\"");
        for port in 1..=count {
            fail_answers(&mut core, port, 1000, at(0.0));
        }
        let up = states(&core).iter().filter(|state| **state == "up").count();
        assert_eq!(up, left, "of {count}");
    }
}

#[test]
fn verdicts_of_answers_are_lifted_when_others_fall() {
    let mut core = core(&[1, 2, 3, 4], "health.observe = \"answers\"");
    fail_answers(&mut core, 1, 3, at(0.0));
    fail(&mut core, 2, 3, at(0.0));
    expire(&mut core, at(0.0));
    assert_eq!(states(&core), ["down", "down", "up", "up"]);
    // Two of the three that remain after a drain.
    core.drain(address(4), None).unwrap();
    expire(&mut core, at(1.0));
    assert_eq!(states(&core), ["up", "down", "up", "draining"]);
    // It stays up after any number of failures; a backend that accepts no connections is down in
    // any case.
    fail_answers(&mut core, 1, 3, at(1.0));
    fail(&mut core, 3, 3, at(1.0));
    expire(&mut core, at(1.0));
    assert_eq!(states(&core), ["up", "down", "down", "draining"]);
}

#[test]
fn a_backend_on_probation_that_all_pass_by_gets_its_whole_share_in_time() {
    let mut core = core(&[1, 2], "health.down_for = \"4s\"");
    fail(&mut core, 1, 3, at(0.0));
    let one = backend(&core, 1);
    let shares = [4.0, 6.0, 8.0, 99.0].map(|second| {
        expire(&mut core, at(second));
        one.share()
    });
    assert_eq!(shares, [10, 55, 100, 100]);
    // A first failure on probation also counts.
    fail(&mut core, 1, 1, at(99.0));
    assert_eq!(one.state(), State::Down);
}

#[test]
fn an_answer_ends_a_probation_just_before_a_failure() {
    let mut core = core(&[1], "");
    fail(&mut core, 1, 3, at(0.0));
    expire(&mut core, at(10.0));
    let one = backend(&core, 1);
    open(&one, 1);
    fail(&mut core, 1, 2, at(10.05));
    assert_eq!(one.state(), State::Up);
    fail(&mut core, 1, 1, at(10.06));
    assert_eq!(one.state(), State::Down);
}

#[test]
fn checks_take_a_backend_down_and_up() {
    let mut core = core(&[1], "[health.check]\nkind = \"tcp\"");
    let (one, wall) = (backend(&core, 1), SystemTime::UNIX_EPOCH);
    for second in 0..3 {
        assert_eq!(one.state(), State::Up);
        core.handle_check(&one, Err("no answer".to_owned().into()), at(second.into()), wall);
    }
    assert_eq!(one.state(), State::Down);
    let row = &core.rows(at(3.0))[0];
    let text = &row.last_failure.as_ref().unwrap().text;
    assert_eq!(text, "the health check failed: no answer");
    assert_eq!(expire(&mut core, at(100.0)), None, "only a check brings it up");
    core.handle_check(&one, Ok(()), at(101.0), wall);
    core.handle_check(&one, Ok(()), at(102.0), wall);
    assert_eq!(one.state(), State::Up);
    // Reports about a backend that is not in the list are ignored.
    let other = Arc::new(Backend::new(address(1), 1));
    for _ in 0..9 {
        core.handle_check(&other, Err(String::new().into()), at(103.0), wall);
        core.handle_failure(&other, Failure::Reset, false, at(103.0), wall);
    }
    assert_eq!((one.state(), other.state()), (State::Up, State::Up));
}

#[test]
fn a_slow_start_grows_every_tenth_of_a_second() {
    let mut core = core(&[1], "slow_start = \"10s\"");
    assert_eq!(
        (backend(&core, 1).share(), expire(&mut core, at(0.0))),
        (100, None),
        "all begin whole"
    );
    core.add(BackendConfig { weight: 2, ..BackendConfig::new(address(2)) }, at(0.0)).unwrap();
    let two = backend(&core, 2);
    assert_eq!((two.share(), expire(&mut core, at(0.0))), (20, Some(at(0.1))));
    assert_eq!((expire(&mut core, at(5.0)), two.share()), (Some(at(5.1)), 110));
    assert!((core.rows(at(5.0))[1].share - 1.1).abs() < 1e-9);
    core.set_weight(address(2), 4, at(5.0)).unwrap();
    assert_eq!(two.share(), 220, "a new weight is not reached at once");
    assert_eq!((expire(&mut core, at(10.0)), two.share()), (None, 400));
    // The same after a time down, and after a drain.
    fail(&mut core, 2, 3, at(20.0));
    expire(&mut core, at(30.0));
    assert_eq!((two.state(), two.share()), (State::Up, 40));
    expire(&mut core, at(31.0));
    assert_eq!(two.share(), 76, "on probation, it has not answered yet");
    expire(&mut core, at(40.0));
    assert_eq!(two.share(), 400, "no client came by: its caches are as cold as before");
    open(&two, 1);
    assert_eq!((expire(&mut core, at(45.0)), two.share()), (Some(at(45.1)), 220));
    assert_eq!((expire(&mut core, at(50.0)), two.share()), (None, 400));
    core.drain(address(2), None).unwrap();
    core.undrain(address(2), at(51.0)).unwrap();
    assert_eq!(two.share(), 40);
    // Switched off in between.
    apply(&mut core, config(&[1], ""), at(52.0)).unwrap();
    expire(&mut core, at(52.0));
    assert_eq!(two.share(), 4 * SHARES_PER_WEIGHT);
}

/// Lets the checks of these backends fail, one after the other, or pass.
fn check(core: &mut ControlCore, ports: &[u16], passes: bool, now: f64) {
    for &port in ports {
        let backend = backend(core, port);
        let outcome = if passes { Ok(()) } else { Err("503".to_owned().into()) };
        core.handle_check(&backend, outcome, at(now), SystemTime::UNIX_EPOCH);
        expire(core, at(now));
    }
}

fn closes(core: &mut ControlCore) -> Vec<String> {
    commands(core).into_iter().filter(|command| command.contains("close")).collect()
}

/// A broker that all of them need is away: clients have nowhere to go.
#[test]
fn backends_that_fail_together_keep_their_tunnels() {
    for count in 1..6 {
        let ports: Vec<u16> = (1..=count).collect();
        let mut core = core(&ports, "[health.check]\nkind = \"tcp\"");
        core.backends().for_each(|(backend, _)| open(backend, 20));
        for second in 0..30 {
            check(&mut core, &ports, false, second.into());
        }
        assert_eq!(closes(&mut core), [""; 0], "{count} backends");
        assert_eq!((core.panic(), states(&core)), ((true, 1), vec!["down"; count.into()]));
        assert!(core.rows(at(30.0)).iter().all(|row| row.keeps_tunnels));
        // The backends recover one after the other: even the last one gets time.
        for port in &ports {
            check(&mut core, &[*port], true, 31.0);
            check(&mut core, &[*port], true, 32.0);
            let rest: Vec<u16> = ports.iter().copied().filter(|other| other > port).collect();
            check(&mut core, &rest, false, 32.0);
        }
        assert_eq!((closes(&mut core), core.panic()), (vec![], (false, 1)), "{count} backends");
    }
}

#[test]
fn one_that_stays_away_when_the_others_are_back_is_closed_once() {
    let mut core = core(&[1, 2, 3], "[health.check]\nkind = \"tcp\"");
    core.backends().for_each(|(backend, _)| open(backend, 20));
    for second in 0..9 {
        check(&mut core, &[1, 2, 3], false, second.into());
    }
    for second in 10..12 {
        check(&mut core, &[2, 3], true, second.into());
    }
    assert_eq!(closes(&mut core), [""; 0]);
    for second in 12..40 {
        check(&mut core, &[2, 3], true, second.into());
        check(&mut core, &[1], false, second.into());
    }
    assert_eq!(closes(&mut core), ["1 close open at 200/s with 1012 Shuffled by None"]);
}

/// The first to fall is closed; that ends when too few others are left.
#[test]
fn closing_ends_where_the_others_fall_too() {
    let mut core = core(&[1, 2, 3], "[health.check]\nkind = \"tcp\"");
    core.backends().for_each(|(backend, _)| open(backend, 20));
    for second in 0..3 {
        check(&mut core, &[1], false, second.into());
        check(&mut core, &[2, 3], true, second.into());
    }
    assert_eq!(closes(&mut core), ["1 close open at 200/s with 1012 Shuffled by None"]);
    for second in 3..6 {
        check(&mut core, &[1, 2, 3], false, second.into());
    }
    assert_eq!(commands(&mut core), ["1 keep"]);
    assert!(core.rows(at(6.0)).iter().all(|row| row.keeps_tunnels));
}
