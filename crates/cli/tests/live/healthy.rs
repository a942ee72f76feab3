//! Healthy servers of many kinds, on which no rule finds anything.

use std::process::Stdio;

use throng_proto::ws::Opcode;
use throng_testkit::{Client, Got};

use crate::planted::Planted;
use crate::support::{Served, throng};
use crate::{Reading, clients, compressing};

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

fn serve(words: &[&str]) -> Served {
    Served::start(&[&LISTEN[..], words].concat())
}

/// Sends so many messages by each client in turn, which all of them get.
fn chat(all: &mut [Client], rounds: usize, text: &str) {
    for _ in 0..rounds {
        for sender in 0..all.len() {
            all[sender].send_text(text);
            for client in all.iter_mut() {
                assert_eq!(client.next(), Got::Text(text.to_owned()));
            }
        }
    }
}

/// Ends sessions by the closing handshake.
fn leave(all: Vec<Client>) {
    for mut client in all {
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        assert_eq!(client.next().close_code(), Some(1000));
    }
}

#[test]
fn without_clients() {
    let served = serve(&[]);
    Reading::of(served.addresses[0]).is_healthy();
}

#[test]
fn with_many_idle_clients() {
    let served = serve(&[]);
    let reading = Reading::of(served.addresses[0]);
    let _idle = clients(served.addresses[0], "/ws/idle", 300);
    reading.is_healthy();
}

#[test]
fn with_a_chat_on_two_event_loops() {
    let served = serve(&["--set", "shards=2"]);
    let reading = Reading::of(served.addresses[0]);
    let mut all = clients(served.addresses[0], "/ws/chat?echo=1", 8);
    chat(&mut all, 5, "hello, all of you");
    reading.is_healthy();
    leave(all);
}

#[test]
fn with_publications_to_many_clients() {
    let served = serve(&[]);
    let reading = Reading::of(served.addresses[0]);
    let mut all = clients(served.addresses[0], "/ws/news", 100);
    for _ in 0..20 {
        all[0].send_text("the news of the day");
        for client in &mut all[1..] {
            assert_eq!(client.next(), Got::Text("the news of the day".to_owned()));
        }
    }
    reading.is_healthy();
    leave(all);
}

#[test]
fn with_text_that_shrinks() {
    let served = serve(&["--deflate=shared"]);
    let reading = Reading::of(served.addresses[0]);
    let mut client = compressing(served.addresses[0], "/echo");
    let text = "a text that shrinks ".repeat(400);
    // The answers are compressed, which this client does not read.
    for _ in 0..20 {
        client.send_text(&text);
    }
    reading.is_healthy();
    let stats = reading.now();
    assert_eq!(stats["deflate_input_bytes"], 20 * text.len());
}

#[test]
fn with_clients_that_come_and_leave() {
    let served = serve(&[]);
    let reading = Reading::of(served.addresses[0]);
    for _ in 0..4 {
        leave(clients(served.addresses[0], "/echo", 15));
    }
    // A few crash; others close with a code of their program.
    clients(served.addresses[0], "/echo", 5);
    for mut client in clients(served.addresses[0], "/echo", 30) {
        client.send(Opcode::Close, &4001u16.to_be_bytes());
        assert_eq!(client.next().close_code(), Some(4001));
    }
    reading.is_healthy();
}

#[test]
fn with_a_message_of_its_own_for_each_client() {
    let planted = Planted::start("each");
    let mut all = clients(planted.address, "/", 30);
    let reading = Reading::of(planted.address);
    for _ in 0..5 {
        all[0].send_text("now");
        for (number, client) in all.iter_mut().enumerate() {
            assert_eq!(client.next(), Got::Text(format!("for {number}")));
        }
    }
    reading.is_healthy();
}

#[test]
fn with_jobs_for_which_the_workers_are_enough() {
    let planted = Planted::start("workers");
    let reading = Reading::of(planted.address);
    let mut client = Client::connect(planted.address, "/");
    for _ in 0..5 {
        client.send_text("job");
        assert_eq!(client.next(), Got::Text("done".to_owned()));
    }
    reading.is_healthy();
}

#[test]
fn with_values_that_newer_ones_replace() {
    let served = serve(&["--channel", "prices.*=latest,max_backlog=64KiB"]);
    let reading = Reading::of(served.addresses[0]);
    let _silent = Client::connect(served.addresses[0], "/ws/prices.a");
    let mut publisher = Client::connect(served.addresses[0], "/ws/prices.a");
    for _ in 0..100 {
        publisher.send(Opcode::Binary, &[1; 60 << 10]);
    }
    reading.is_healthy();
}

#[test]
fn under_the_load_generator() {
    let served = serve(&["--set", "shards=2"]);
    let reading = Reading::of(served.addresses[0]);
    let url = format!("ws://{}/echo", served.addresses[0]);
    let mut bench = throng();
    bench.args(["bench", "echo", &url, "--connections", "20", "--rate", "10", "--duration", "2s"]);
    let output = bench.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    reading.is_healthy();
}

#[cfg(feature = "balance")]
mod balance {
    use super::*;
    use crate::balancer::Balancer;

    #[test]
    fn a_balancer_without_clients() {
        let balancer = Balancer::start("127.0.0.1:9");
        Reading::at(balancer.admin, "/status.json").is_healthy();
    }

    #[test]
    fn a_balancer_with_tunnels() {
        let backend = serve(&[]);
        let balancer = Balancer::start(&backend.addresses[0].to_string());
        let reading = Reading::at(balancer.admin, "/status.json");
        let mut all = clients(balancer.address, "/ws/chat?echo=1", 8);
        chat(&mut all, 5, "hello, all of you");
        reading.is_healthy();
        leave(all);
        reading.is_healthy();
    }
}
