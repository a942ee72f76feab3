//! A message for a thousand slow receivers is in memory once. In a separate file, because it
//! measures the process.

mod support;

use support::served::{self, dial_narrow, figure, start, stop, total};
use support::{Client, eventually};
use throng::metrics::process::resident_bytes;
use throng::prelude::*;

const CLIENTS: usize = 1000;
/// A thousand for each client.
const REFERENCES: u64 = 1_000_000;

#[test]
fn a_million_queued_references_to_a_frame_of_1_kb_cost_megabytes() {
    for policy in [SlowPolicy::Close, SlowPolicy::DropOldest] {
        let member = Ws::new().on_open(|ws, ()| {
            ws.subscribe("feed");
        });
        let rules = Backpressure::new(policy).max_backlog(2 << 20);
        let server = Server::new(served::app().ws("/", member))
            .channels(Channels::new().backpressure("feed", rules))
            .shards(2);
        let (address, running) = start(server);
        let clients: Vec<Client> = (0..CLIENTS)
            .map(|_| Client::upgrade(dial_narrow(address), "/", &[], &[]).unwrap())
            .collect();
        let hub = running.hub();
        eventually("all listen", || hub.subscribers("feed") == CLIENTS);
        let frame = Frame::binary(vec![7; 1024]);
        let publish = || {
            let delivery = total(&hub.publish("feed", &frame).unwrap());
            assert_eq!((delivery.dropped, delivery.closed), (0, 0), "all of it finds room");
            delivery.queued
        };
        let mut before = resident_bytes();
        while publish() < CLIENTS as u64 {
            // The kernel's buffers are not yet full.
            before = resident_bytes();
        }
        let mut queued = 0;
        while queued < REFERENCES {
            queued += publish();
        }
        let grown = resident_bytes().saturating_sub(before);
        let (of_all, of_each) = (grown >> 20, grown / queued);
        println!("{policy}: {of_all} MiB for a million references, {of_each} bytes each");
        assert!(grown < 150 << 20, "{policy}: {of_all} MiB, {of_each} bytes a reference");
        assert_eq!(figure(address, "feed", "slow_consumers"), 0);
        drop(clients);
        eventually("all are gone", || hub.subscribers("feed") == 0);
        stop(running);
    }
}
