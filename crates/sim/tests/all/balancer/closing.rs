//! Close frames of the balancer, and simultaneous data or ends from either side.

use throng_balance::shard_over_driver::BalanceCommand;
use throng_balance::{CloseOrder, Closing, Settings, State, Timeouts};
use throng_sim::balance::{PeerEnd, PeerId, Script};

use super::{
    HOUR, assert_nothing_is_held, close_of_balancer, close_of_client, masked, open, secs, unmasked,
};

/// Runs `test` with an open tunnel: its client and its server. No timeout ends it.
fn with_tunnel(test: impl FnOnce(&mut Script, PeerId, PeerId)) {
    let timeouts = Timeouts { close: 100 * HOUR, half_closed: 100 * HOUR, ..Timeouts::default() };
    let mut script = Script::new(1, Settings { timeouts, ..Settings::default() });
    let (client, server) = open(&mut script);
    test(&mut script, client, server);
    script.close(client);
    script.close(server);
    script.run(secs(1));
    assert_nothing_is_held(&mut script);
}

/// Orders the close of all tunnels, or of so many.
fn order_closing(script: &mut Script, order: CloseOrder, most: Option<u32>) {
    let backend = script.backend(0).clone();
    let closing = Closing { code: 1012, rate: 1000, order, deadline: None, later: true };
    let most = most.map(|most| std::sync::Arc::new(most.into()));
    script.command(BalanceCommand::CloseTunnels { backend, closing, most });
}

#[track_caller]
fn assert_finished(script: &mut Script, peers: [PeerId; 2]) {
    for peer in peers {
        assert_eq!(script.end(peer), Some(PeerEnd::Finished));
    }
}

/// The end of the stream must not overtake the rest of a Close frame.
#[test]
fn a_close_frame_in_pieces_reaches_the_backend_whole() {
    with_tunnel(|script, client, server| {
        order_closing(script, CloseOrder::Shuffled, None);
        assert_eq!(script.receive(client), close_of_balancer(1012));
        let answer = close_of_client(1012);
        for byte in &answer {
            script.send(client, &[*byte]);
            script.run(secs(1));
        }
        assert_eq!(script.receive(server), answer);
        assert_finished(script, [server, client]);
    });
}

/// The client has sent its Close before it gets the balancer's: there is no other answer to wait
/// for.
#[test]
fn a_close_that_crosses_the_clients_own_needs_no_other_answer() {
    with_tunnel(|script, client, server| {
        script.send(client, &close_of_client(1000));
        assert_eq!(script.receive(server), close_of_client(1000));
        order_closing(script, CloseOrder::Shuffled, None);
        assert_eq!(script.receive(client), close_of_balancer(1012));
        assert_finished(script, [server, client]);
    });
}

/// A backend that ends its stream after the balancer's Close to its client may still receive.
#[test]
fn a_backend_that_ends_its_stream_still_gets_the_clients_last_messages() {
    with_tunnel(|script, client, server| {
        order_closing(script, CloseOrder::Shuffled, None);
        assert_eq!(script.receive(client), close_of_balancer(1012));
        script.send(server, &[0x88, 2, 0x03, 0xe8]);
        script.finish(server);
        script.run(secs(1));
        let last = [masked("sent before"), close_of_client(1012)].concat();
        script.send(client, &last);
        assert_eq!(script.receive(server), last);
        assert_finished(script, [server, client]);
    });
}

/// A client ends its stream right after its answer, while its backend is slow.
#[test]
fn a_slow_backend_gets_all_that_came_before_the_answer_to_a_close() {
    with_tunnel(|script, client, server| {
        order_closing(script, CloseOrder::Shuffled, None);
        assert_eq!(script.receive(client), close_of_balancer(1012));
        let all = [masked(&"x".repeat(1 << 20)), close_of_client(1012)].concat();
        let (mut sent, mut received) = (0, Vec::new());
        while sent < all.len() {
            sent += script.try_send(client, &all[sent..]);
            script.run(secs(60));
            received.extend(script.receive_some(server, 10_000));
        }
        script.finish(client);
        script.run(secs(60));
        received.extend(script.receive(server));
        assert!(received == all);
        assert_finished(script, [server, client]);
    });
}

/// The Close frame goes between two frames of the backend, and never into the middle of a frame.
#[test]
fn a_close_waits_for_the_end_of_a_frame_and_drops_the_next() {
    with_tunnel(|script, client, server| {
        script.send(server, &[0x81, 4, b'h', b'a']);
        order_closing(script, CloseOrder::Shuffled, None);
        script.run(HOUR);
        assert_eq!(script.receive(client), [0x81, 4, b'h', b'a']);
        script.send(server, &[b'l', b'f', 0x81, 1, b'x']);
        assert_eq!(script.receive(client), [b"lf", &close_of_balancer(1012)[..]].concat());
        let last = [masked("sent before"), close_of_client(1012)].concat();
        script.send(client, &last);
        assert_eq!(script.receive(server), last);
        assert_finished(script, [server, client]);
    });
}

#[test]
fn an_order_closes_so_many_a_second() {
    let mut script = Script::new(1, Settings::default());
    let pairs: Vec<_> = (0..10).map(|_| open(&mut script)).collect();
    let backend = script.backend(0).clone();
    let closing =
        Closing { code: 1012, rate: 10, order: CloseOrder::Shuffled, deadline: None, later: true };
    script.command(BalanceCommand::CloseTunnels { backend, closing, most: None });
    let mut closed = Vec::new();
    for _ in 0..4 {
        closed.push(script.metrics().closed);
        script.run(secs(1) / 2);
    }
    assert!(closed[0] <= 1 && (4..=6).contains(&closed[1]), "{closed:?}");
    assert_eq!(closed[3], 10, "{closed:?}");
    for (client, _) in pairs {
        assert_eq!(script.receive(client), close_of_balancer(1012));
    }
}

#[test]
fn an_order_for_some_closes_so_many_and_the_longest_silent_first() {
    let mut script = Script::new(1, Settings::default());
    let pairs: Vec<_> = (0..6).map(|_| open(&mut script)).collect();
    script.run(secs(1));
    for &(client, server) in [&pairs[..2], &pairs[3..5]].concat().iter() {
        script.send(server, &unmasked("not idle"));
        script.receive(client);
    }
    order_closing(&mut script, CloseOrder::IdleAndOldest, Some(2));
    script.run(secs(1));
    let closed = pairs.iter().filter(|(client, _)| !script.receive(*client).is_empty()).count();
    assert_eq!((closed, script.metrics().closed), (2, 2));
    for &(client, server) in [&pairs[..2], &pairs[3..5]].concat().iter() {
        script.send(client, &masked("still here"));
        assert_eq!(script.receive(server), masked("still here"));
    }
}

/// A partial Close frame does not count: an orderly end after it would hide the loss of the
/// backend.
#[test]
fn a_backend_that_is_lost_in_its_close_frame_ends_with_a_reset() {
    for ends_stream in [true, false] {
        let mut script = Script::new(1, Settings::default());
        let (client, server) = open(&mut script);
        script.send(server, &[0x88, 2, 0x03]);
        match ends_stream {
            true => script.finish(server),
            false => script.close(server),
        }
        script.run(secs(2));
        assert_eq!(script.end(client), Some(PeerEnd::Reset));
    }
}

/// A backend fails its checks, and its tunnels are closed. Clients that return to it, because it is
/// the only backend, keep their new tunnels.
#[test]
fn one_verdict_closes_a_client_once() {
    let mut script = Script::new(1, Settings::default());
    let before: Vec<_> = (0..3).map(|_| open(&mut script)).collect();
    let backend = script.backend(0).clone();
    backend.set_state(State::Down);
    let (order, rate) = (CloseOrder::Shuffled, 1000);
    let closing = Closing { code: 1012, rate, order, deadline: None, later: false };
    script.command(BalanceCommand::CloseTunnels { backend, closing, most: None });
    script.run(secs(1));
    for (client, _) in before {
        assert_eq!(script.receive(client), close_of_balancer(1012));
        script.close(client);
    }
    let again: Vec<_> = (0..3).map(|_| open(&mut script)).collect();
    script.run(secs(60));
    for (client, server) in again {
        script.send(server, &unmasked("stays"));
        assert_eq!(script.receive(client), unmasked("stays"));
    }
    assert_eq!((script.metrics().closed, script.audit().close_jobs), (3, 0));
}
