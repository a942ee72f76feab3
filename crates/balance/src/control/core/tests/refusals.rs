//! Refused operations.

use super::*;

#[test]
fn every_refusal_names_a_remedy() {
    let mut core = core(&[1, 2], "");
    let now = at(0.0);
    let new = BackendConfig::new;
    let cases = [
        (
            core.add(new(address(1)), now),
            "there is a backend 127.0.0.1:1 already (source: file): change its weight",
        ),
        (
            core.add(BackendConfig { weight: 0, ..new(address(3)) }, now),
            "weight is 0: write 1 to 1000",
        ),
        (
            core.add(new("0.0.0.0:1".parse().unwrap()), now),
            "address is 0.0.0.0:1: it is not the address of one machine",
        ),
        (
            core.set_weight(address(3), 1, now).map(drop),
            "there is no backend 127.0.0.1:3: there are 127.0.0.1:1, 127.0.0.1:2",
        ),
        (core.set_weight(address(1), 1001, now).map(drop), "weight is 1001: write 1 to 1000"),
        (core.drain(address(3), None).map(drop), "there is no backend 127.0.0.1:3"),
        (
            core.undrain(address(1), now),
            "127.0.0.1:1 is not draining, but up: there is nothing to end",
        ),
        (core.remove(address(3), None, at(0.0)).map(drop), "there is no backend 127.0.0.1:3"),
        (core.rebalance(false, Some(0)).map(drop), "rate is 0: write how many tunnels"),
        (
            core.deregister(address(1)),
            "127.0.0.1:1 is not registered, or its time ran out: register it again",
        ),
        (
            core.heartbeat(address(1), now),
            "backends cannot register themselves here: add a [register] table",
        ),
    ];
    for (outcome, expected) in cases {
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}\n{expected}");
    }
    assert!(commands(&mut core).is_empty() && core.take_configuration().is_none());
    core.end();
    assert!(matches!(core.add(new(address(3)), now), Err(Error::ShuttingDown)));
    assert!(matches!(core.drain(address(1), None), Err(Error::ShuttingDown)));
    assert!(matches!(apply(&mut core, config(&[1], ""), now), Err(Error::ShuttingDown)));
}

#[test]
fn there_is_an_end_to_the_list() {
    let all: Vec<u16> = (1..=MAX_BACKENDS as u16).collect();
    let mut core = core(&all, TOKEN);
    let one_more = address(5000);
    assert!(matches!(core.add(BackendConfig::new(one_more), at(0.0)), Err(Error::TooMany { .. })));
    assert!(matches!(core.register(one_more, 1, None, at(0.0)), Err(Error::TooMany { .. })));
    core.remove(address(1), None, at(0.0)).unwrap();
    expire(&mut core, at(0.0));
    core.add(BackendConfig::new(one_more), at(0.0)).unwrap();
    let error = apply(&mut core, config(&all, ""), at(0.0)).unwrap_err();
    assert!(matches!(error, Error::TooMany { .. }), "{error}");
    assert_eq!(ports(&core).len(), MAX_BACKENDS);
}
