//! Servers with a fault in their handlers, each in a process of its own: statistics of threads and
//! descriptors are of a process.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng::prelude::*;
use throng::server::Observe;
use throng::workers::WorkerSettings;
use throng_testkit::hold_up;

/// The variable that names the server.
const NAME: &str = "THRONG_TEST_PLANTED";

/// This program again, which runs one of these servers until it is dropped.
pub(crate) struct Planted {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Planted {
    pub(crate) fn start(name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "planted::server", "--nocapture"]).env(NAME, name);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = process.unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            Some(line.split_once("listens on ")?.1.parse().unwrap())
        });
        Self { process, address: address.unwrap() }
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the server that the variable names until its input ends; nothing without it.
#[test]
fn server() {
    let Ok(name) = std::env::var(NAME) else { return };
    let bound = of_name(&name).bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = bound.local_addr();
    let _running = bound.start().unwrap();
    println!("\nlistens on {address}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

fn of_name(name: &str) -> Server {
    let of = |ws: Ws<()>| App::new().ws("/", ws).route("/stats.json", throng::metrics::stats());
    let holding = |time: u64| {
        Ws::new().on_message(move |ws, (), message| {
            hold_up(Duration::from_millis(time));
            ws.send(message);
        })
    };
    match name {
        "blocking" => Server::new(of(holding(70))).shards(1),
        "unwatched" => {
            Server::new(of(holding(1200))).shards(1).observe(Observe::new().stall_warning(None))
        }
        "workers" => {
            let blocking = Ws::new().on_message_blocking(|replies, (), _| {
                hold_up(Duration::from_millis(200));
                replies.send("done");
            });
            let workers = WorkerSettings::default().pool_size(2).queue_size(4096);
            Server::new(of(blocking)).shards(1).workers(workers)
        }
        "computing" => {
            let computing = Ws::new().on_message(|_, (), _| {
                let sum =
                    (0..200_000u64).fold(0u64, |sum, it| sum.wrapping_mul(31) ^ black_box(it));
                black_box(sum);
            });
            Server::new(of(computing)).shards(2)
        }
        "loop" => Server::new(of(to_each(|_| "the news of the day".to_owned()))).shards(1),
        "each" => Server::new(of(to_each(|number| format!("for {number}")))).shards(1),
        "flood" => {
            let flood = Ws::new().on_open(|ws, ()| {
                ws.subscribe("flood");
            });
            let flood = flood.on_message(|ws, (), _| {
                let frame = Frame::binary(vec![7; 64 << 10]);
                (0..16).for_each(|_| drop(ws.publish_to_others("flood", &frame)));
            });
            Server::new(of(flood)).shards(1)
        }
        other => panic!("no server {other}"),
    }
}

/// A message to each client in turn, for each message that comes.
fn to_each(text: fn(usize) -> String) -> Ws<()> {
    let clients = Arc::new(Mutex::new(Vec::new()));
    let (opened, sent) = (Arc::clone(&clients), clients);
    let ws = Ws::new().on_open(move |ws, ()| opened.lock().unwrap().push(ws.handle()));
    ws.on_message(move |ws, (), _| {
        let hub = ws.hub();
        for (number, client) in sent.lock().unwrap().iter().enumerate() {
            let _ = hub.send(*client, text(number));
        }
    })
}
