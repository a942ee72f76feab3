//! Ends that cross: our Close frame and what either side says or does at the same moment. The
//! simulation (`crates/sim/tests/balance.rs`) found what was wrong with them.

mod support;

use std::net::Shutdown;
use std::time::Duration;

use support::{Balancer, Peer, Scripted};
use throng_balance::{CloseOrder, Closing, Settings, Timeouts};

/// Longer than any test waits: what only a timeout would end fails.
const CLOSE: Duration = Duration::from_secs(3600);

fn settings() -> Settings {
    let timeouts = Timeouts { close: CLOSE, half_closed: CLOSE, ..Timeouts::default() };
    Settings { timeouts, ..Settings::default() }
}

/// Runs `test` with an open tunnel: its client and its server. No timeout ends it.
fn with_tunnel(test: impl FnOnce(&Balancer, &mut Peer, &mut Peer)) {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], settings());
    std::thread::scope(|scope| {
        let server = scope.spawn(|| backend.open());
        let mut client = balancer.open();
        let mut server = server.join().unwrap();
        test(&balancer, &mut client, &mut server);
    });
    balancer.assert_nothing_is_held();
}

fn order_closing(balancer: &Balancer) {
    let closing = Closing { code: 1012, rate: 1000, order: CloseOrder::Shuffled, deadline: None };
    balancer.shards.close_tunnels(&balancer.backends[0], &closing, None);
}

/// The end of the stream overtook the rest of a Close frame of which only the first byte had come.
#[test]
fn a_close_frame_in_pieces_reaches_the_backend_whole() {
    with_tunnel(|balancer, client, server| {
        order_closing(balancer);
        assert_eq!(client.close_code(), 1012);
        for byte in [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xf4] {
            client.send(&[byte]);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(server.frame(), (8, vec![0x03, 0xf4]));
        assert!(server.is_at_end());
        assert!(client.is_at_end());
    });
}

/// The client had said its Close before it got ours: its answer was waited for in vain, until it
/// was reset.
#[test]
fn a_close_that_crosses_the_clients_own_needs_no_other_answer() {
    with_tunnel(|balancer, client, server| {
        client.send_close(1000);
        assert_eq!(server.frame().0, 8);
        // It thinks about its answer, and is drained meanwhile.
        order_closing(balancer);
        assert_eq!(client.close_code(), 1012);
        assert!(client.is_at_end());
        assert!(server.is_at_end());
    });
}

/// A backend that ends its stream after our Close to its client may read on: what the client said
/// was lost.
#[test]
fn a_backend_that_ends_its_stream_still_gets_the_clients_last_words() {
    with_tunnel(|balancer, client, server| {
        order_closing(balancer);
        assert_eq!(client.close_code(), 1012);
        server.send(&[0x88, 2, 0x03, 0xe8]);
        server.stream.shutdown(Shutdown::Write).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        client.send_text("sent before I knew");
        client.send_close(1012);
        assert_eq!(server.text(), "sent before I knew");
        assert_eq!(server.frame().0, 8);
        assert!(server.is_at_end());
        assert!(client.is_at_end());
    });
}

/// A client that ends its stream at once behind its answer, while its backend is behind.
#[test]
fn a_slow_backend_gets_all_that_came_before_the_answer_to_our_close() {
    with_tunnel(|balancer, client, server| {
        order_closing(balancer);
        assert_eq!(client.close_code(), 1012);
        let text = "x".repeat(8 << 20);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                (server.text().len(), server.frame().0, server.is_at_end())
            });
            client.send_text(&text);
            client.send_close(1012);
            client.stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(reader.join().unwrap(), (text.len(), 8, true));
        });
        assert!(client.is_at_end());
    });
}
