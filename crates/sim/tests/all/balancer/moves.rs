//! Tunnels that move to the shard of a successor, in virtual time.

use throng_balance::{Settings, Timeouts};
use throng_sim::balance::{MoveEnd, PeerId, Script};

use super::{
    HOUR, assert_nothing_is_held, close_of_balancer, close_of_client, masked, open, secs, unmasked,
};

fn settings() -> Settings {
    let timeouts = Timeouts { tunnel: HOUR, ..Timeouts::default() };
    Settings { timeouts, ..Settings::default() }
}

/// A script with open tunnels.
fn opened(tunnels: usize) -> (Script, Vec<(PeerId, PeerId)>) {
    let mut script = Script::new(1, settings());
    let tunnels = (0..tunnels).map(|_| open(&mut script)).collect();
    (script, tunnels)
}

/// Sends a message over each tunnel, both ways.
#[track_caller]
fn talk(script: &mut Script, tunnels: &[(PeerId, PeerId)], text: &str) {
    for (client, server) in tunnels {
        script.send(*client, &masked(text));
        assert!(script.receive(*server) == masked(text), "{text}");
        script.send(*server, &unmasked(text));
        assert!(script.receive(*client) == unmasked(text), "{text}");
    }
}

#[test]
fn tunnels_move_in_the_middle_of_frames_and_end_as_before() {
    // More than one batch.
    let (mut script, tunnels) = opened(40);
    let (up, down) = (masked("up, in two parts"), unmasked("down, in two parts"));
    for (client, server) in &tunnels {
        script.send(*client, &up[..3]);
        script.send(*server, &down[..3]);
    }
    assert_eq!(script.move_to_successor(&settings(), MoveEnd::Never), 40);
    assert_eq!(script.backend(0).tunnels(), 40);
    for (client, server) in &tunnels {
        script.send(*client, &up[3..]);
        script.send(*server, &down[3..]);
        assert_eq!(script.receive(*server), up);
        assert_eq!(script.receive(*client), down);
    }
    // A new tunnel has an id that no other had, and moves as well.
    let last = open(&mut script);
    assert_eq!(script.move_to_successor(&settings(), MoveEnd::Never), 41);
    talk(&mut script, &tunnels, "after");
    talk(&mut script, &[last], "after");
    for (client, server) in tunnels.into_iter().chain([last]) {
        script.send(client, &close_of_client(1000));
        assert_eq!(script.receive(server), close_of_client(1000));
        script.close(server);
        script.close(client);
    }
    script.run(secs(60));
    assert_nothing_is_held(&mut script);
}

/// The silence of a tunnel goes on while it moves, and a frame that is cut is completed before the
/// balancer's Close frame.
#[test]
fn the_silence_of_a_tunnel_and_its_place_in_a_frame_move() {
    let (mut script, tunnels) = opened(1);
    let (client, server) = tunnels[0];
    let frame = unmasked("in two parts");
    script.send(server, &frame[..5]);
    script.run(HOUR / 2);
    assert_eq!(script.move_to_successor(&settings(), MoveEnd::Never), 1);
    assert_eq!(script.receive(client), frame[..5]);
    script.run(HOUR / 2 - secs(2));
    assert_eq!(script.receive(client), b"");
    script.run(secs(4));
    script.send(server, &frame[5..]);
    let rest = [&frame[5..], &close_of_balancer(1001)].concat();
    assert_eq!(script.receive(client), rest);
}

/// Bytes wait in each buffer: of the network, of the driver, and behind that.
#[test]
fn bytes_for_a_slow_reader_move_with_its_tunnel() {
    let (mut script, tunnels) = opened(1);
    let (client, server) = tunnels[0];
    let frame = unmasked(&"slow".repeat(200_000));
    let mut sent = script.try_send(server, &frame);
    assert!(sent < frame.len());
    let mut received = Vec::new();
    while received.len() < frame.len() {
        if received.len() < 400_000 {
            assert_eq!(script.move_to_successor(&settings(), MoveEnd::Never), 1);
        }
        received.extend(script.receive_some(client, 50_000));
        sent += script.try_send(server, &frame[sent..]);
    }
    assert!(received == frame, "bytes are missing or in another order");
    talk(&mut script, &tunnels, "after");
}

/// The messages of a batch are BATCH, TAKEN and YOURS.
#[test]
fn a_successor_that_ends_before_it_owns_a_batch_leaves_it_to_the_old_process() {
    let (mut script, tunnels) = opened(3);
    for at in 0..2 {
        for (client, _) in &tunnels {
            script.send(*client, &masked("before"));
        }
        assert_eq!(script.move_to_successor(&settings(), MoveEnd::OfSuccessor(at)), 0);
        for (_, server) in &tunnels {
            assert_eq!(script.receive(*server), masked("before"));
        }
        assert_eq!(script.backend(0).tunnels(), 3);
        talk(&mut script, &tunnels, "still here");
    }
    assert_eq!(script.move_to_successor(&settings(), MoveEnd::Never), 3);
    talk(&mut script, &tunnels, "moved");
}

#[test]
fn a_predecessor_that_ends_leaves_the_batch_under_way_to_the_successor() {
    for at in 0..3 {
        let (mut script, tunnels) = opened(3);
        for (client, _) in &tunnels {
            script.send(*client, &masked("before"));
        }
        assert_eq!(script.move_to_successor(&settings(), MoveEnd::OfPredecessor(at)), 3);
        for (_, server) in &tunnels {
            assert_eq!(script.receive(*server), masked("before"));
        }
        talk(&mut script, &tunnels, "after");
        // The slots of the old process are free, and no id is used twice.
        let more: Vec<_> = (0..10).map(|_| open(&mut script)).collect();
        talk(&mut script, &more, "new");
        talk(&mut script, &tunnels, "old");
    }
}
