//! Drains and removals.

use super::*;

#[test]
fn a_drain_closes_at_its_rate_and_can_be_ended() {
    let mut core = core(&[1, 2], "close_rate = 10");
    let one = backend(&core, 1);
    open(&one, 1000);
    let draining = core.drain(address(1), Some(Duration::from_secs(20))).unwrap();
    assert_eq!((draining.tunnels, draining.rate, draining.last), (1000, 50, false));
    assert_eq!(one.state(), State::Draining);
    assert_eq!(commands(&mut core), ["1 close all at 50/s with 1012 Shuffled by Some(20s)"]);
    close(&one, 400);
    let drain = core.rows(at(8.0))[0].drain.unwrap();
    assert_eq!((drain.left, drain.closed, drain.seconds_left), (600, 400, 12));
    // Neither its health nor time brings it back.
    fail(&mut core, 1, 5, at(8.0));
    assert_eq!((one.state(), commands(&mut core)), (State::Draining, vec![]));
    expire(&mut core, at(100.0));
    assert_eq!(one.state(), State::Draining);
    // A window overrides a rate, which would end it sooner.
    let draining = core.drain(address(1), Some(Duration::from_secs(1200))).unwrap();
    assert_eq!((draining.rate, commands(&mut core).len()), (1, 1));
    assert_eq!(core.rows(at(8.0))[0].drain.unwrap().seconds_left, 1200);
    // A second drain replaces the first, and continues its count.
    core.drain(address(1), None).unwrap();
    assert_eq!(commands(&mut core), ["1 close all at 10/s with 1012 Shuffled by None"]);
    assert_eq!(core.rows(at(8.0))[0].drain.unwrap().closed, 400);
    close(&one, 599);
    expire(&mut core, at(101.0));
    core.undrain(address(1), at(101.0)).unwrap();
    assert_eq!((one.state(), one.tunnels()), (State::Up, 1));
    assert_eq!(commands(&mut core), ["1 keep"]);
    assert!(core.rows(at(101.0))[0].drain.is_none());
    assert!(matches!(
        core.undrain(address(1), at(101.0)),
        Err(Error::NotDraining { state: "up", .. })
    ));
    assert!(core.drain(address(2), None).is_ok_and(|draining| !draining.last));
    assert!(core.drain(address(1), None).is_ok_and(|draining| draining.last));
}

#[test]
fn a_window_of_nothing_is_at_once() {
    let mut core = core(&[1], "");
    open(&backend(&core, 1), 3);
    let draining = core.drain(address(1), Some(Duration::ZERO)).unwrap();
    assert_eq!((draining.rate, draining.last), (u32::MAX, true));
}

#[test]
fn a_removed_backend_goes_with_its_last_tunnel() {
    let mut core = core(&[1, 2], "");
    let one = backend(&core, 1);
    open(&one, 1);
    assert!(one.begin_request(Wanted::Request));
    core.remove(address(1), None, at(0.0)).unwrap();
    assert_eq!(expire(&mut core, at(0.0)), Some(at(0.25)));
    assert_eq!((one.state(), core.rows(at(0.0))[0].source), (State::Removed, "none"));
    assert!(matches!(core.undrain(address(1), at(0.0)), Err(Error::BeingRemoved { .. })));
    close(&one, 1);
    expire(&mut core, at(1.0));
    assert_eq!(ports(&core), [1, 2], "a request is under way");
    one.end_request(Wanted::Request);
    commands(&mut core);
    assert_eq!(expire(&mut core, at(2.0)), None);
    assert_eq!((ports(&core), one.state()), (vec![2], State::Removed));
    assert_eq!(commands(&mut core), ["1 keep"], "shards forget the order");
    // A connection still uses it: it is the same backend when it comes back.
    core.add(BackendConfig { weight: 5, ..BackendConfig::new(address(1)) }, at(3.0)).unwrap();
    assert!(Arc::ptr_eq(&backend(&core, 1), &one));
    assert_eq!((one.state(), one.weight(), core.rows(at(3.0))[1].source), (State::Up, 5, "api"));
    // The last one may also be removed.
    assert!(!core.remove(address(1), None, at(0.0)).unwrap().last);
    assert!(core.remove(address(2), None, at(0.0)).unwrap().last);
    expire(&mut core, at(4.0));
    assert_eq!(ports(&core), [0u16; 0]);
    let error = core.remove(address(2), None, at(0.0)).unwrap_err().to_string();
    assert_eq!(error, "there is no backend 127.0.0.1:2: there is none at all; add it first");
}

#[test]
fn a_removed_backend_that_is_added_again_keeps_its_tunnels() {
    let mut core = core(&[1, 2], "");
    let one = backend(&core, 1);
    open(&one, 7);
    core.remove(address(1), None, at(0.0)).unwrap();
    expire(&mut core, at(0.0));
    commands(&mut core);
    core.add(BackendConfig::new(address(1)), at(1.0)).unwrap();
    assert_eq!((one.state(), commands(&mut core)), (State::Up, vec!["1 keep".to_owned()]));
    assert!(Arc::ptr_eq(&backend(&core, 1), &one));
    assert_eq!(expire(&mut core, at(1.0)), None);
}

#[test]
fn a_removal_keeps_or_closes_tunnels_as_it_says() {
    let close = "1 close all at 200/s with 1012 Shuffled by None";
    for (setting, drain, expected) in [
        ("keep", None, None),
        ("keep", Some(true), Some(200)),
        ("drain", None, Some(200)),
        ("drain", Some(false), None),
    ] {
        let mut core = core(&[1, 2], &format!("removed = \"{setting}\""));
        open(&backend(&core, 1), 4);
        let removal = core.remove(address(1), drain, at(0.0)).unwrap();
        assert_eq!((removal.tunnels, removal.rate, removal.last), (4, expected, false));
        let closes = if expected.is_some() { vec![close.to_owned()] } else { vec![] };
        assert_eq!(commands(&mut core), closes, "{setting}, {drain:?}");
        let state = if expected.is_some() { State::Draining } else { State::Removed };
        assert_eq!(backend(&core, 1).state(), state);
        // A second removal may drain the tunnels that the first one kept.
        let removal = core.remove(address(1), Some(true), at(1.0)).unwrap();
        assert_eq!((removal.tunnels, removal.rate), (4, Some(200)));
        expire(&mut core, at(1.0));
        assert_eq!(ports(&core), [1, 2]);
    }
}
