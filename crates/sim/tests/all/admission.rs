//! New clients from an address that is at its connection limit, in virtual time.

use throng_engine::Limit;
use throng_sim::{Ask, Do, End, Expect, SECOND, SimPlan, World};

use super::support::MILLI;

const PROXY_HEADER: &[u8] = b"PROXY TCP4 198.51.100.7 127.0.0.1 1000 80\r\n";

/// Two silent connections from one address, and three new clients before and after the silent
/// connections have reached the minimum age.
fn plan(proxied: bool) -> SimPlan {
    let mut plan = SimPlan::calm(7);
    plan.proxy_protocol = proxied;
    plan.limits.max_connections_per_address = Limit::AtMost(2);
    let header = if proxied { PROXY_HEADER } else { b"" };
    for (start, at) in [(b"GET / HT".as_slice(), 0), (b"", 200 * MILLI)] {
        let bytes = [header, start].concat();
        let script = vec![Do::Write(bytes), Do::Pause(60 * SECOND), Do::Reset];
        let peer = plan.add_http_client("silent", Expect::Anything, Vec::new(), script);
        plan.parts[peer].at = at;
    }
    for at in [900, 1100, 1110] {
        let ask = Ask { close: true, ..Ask::new(plan.parts.len() as u32, 0, 50) };
        let script = vec![Do::Write([header, &ask.request(0)].concat())];
        let peer = plan.add_http_client("newcomer", Expect::Anything, vec![ask], script);
        plan.parts[peer].at = at * MILLI;
    }
    plan.parts.iter_mut().for_each(|part| part.address = 7);
    plan
}

/// The oldest connection ends in favour of a new one, after it had a second for its request, and
/// gets an answer with the reason. This also holds for clients whose address comes from a PROXY
/// header.
#[test]
fn a_silent_connection_makes_room_for_its_address_from_its_minimum_age_on() {
    for proxied in [false, true] {
        let mut world = World::new(plan(proxied));
        while world.step() {}
        let end_of = |peer: usize| {
            let peer = world.peer(peer);
            let (end, at) = peer.end.expect("it has ended");
            (peer.reader.statuses.clone(), end, at / (100 * MILLI))
        };
        let seen: Vec<_> = (0..5).map(end_of).collect();
        assert_eq!(
            seen,
            [
                (vec![408], End::Finished, 11),
                // The connection had its time, and sent no request.
                (vec![], End::Finished, 110),
                (vec![429], End::Finished, 9),
                (vec![200], End::Finished, 11),
                // The first newcomer's place is free again.
                (vec![200], End::Finished, 11),
            ],
            "proxied: {proxied}"
        );
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    }
}
