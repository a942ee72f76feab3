//! The server that a benchmark starts for itself: an ordinary program on the public library, in a
//! process of its own so that its CPU time and memory are its own.
//!
//! `/all` is where broadcasts go; `/ws/{channel}` sends each message to the channel's other
//! members, as `throng serve` does; `/echo` sends it back, and `/compose` sends the same text in a
//! message of its own; `/block` runs a handler that blocks before it echoes, and `/work` does so on
//! a worker. `/` is for HTTP: OK, or the request's body. What it is asked, and what it answers,
//! goes over standard input and output; it ends when its input does.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{stdin, stdout};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::handler::Handler;
use super::message::compose;
use super::wire::{ChildMessage, Order, Variant, read_line, write_line};
use throng::prelude::*;
use throng::server::{IoBackend, Shards, SocketOptions};
use throng::workers::WorkerSettings;
use throng::ws::Deflate;
use throng_config::units::parse_duration;
use throng_load::machine_now_ns;

use throng_cli::Failure;
use throng_cli::bench::deflate;

/// Where broadcasts go.
pub(crate) const ALL: &str = "/all";
/// The channel that all connections there are members of.
const CHANNEL: &str = "all";

/// Every connection at [`ALL`].
type Connections = Arc<Mutex<BTreeSet<Handle>>>;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long)]
    listen: String,
    /// Others listen on the same port
    #[arg(long, action = clap::ArgAction::Set)]
    share_port: bool,
    /// Event loops
    #[arg(long)]
    shards: usize,
    /// Payload of a broadcast
    #[arg(long)]
    size: usize,
    /// Compression of messages: off, no-context or window:BITS
    #[arg(long, default_value = "off", value_parser = deflate::parse)]
    deflate: Deflate,
    /// The I/O model
    #[arg(long, default_value = "auto")]
    io: IoBackend,
    /// Workers; 0: none before they are needed, and then one for each usable CPU
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// Time for which the handler of /block and /work waits for each message
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    blocking: Duration,
    /// And how long it computes
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    cpu: Duration,
}

/// Serves until standard input ends.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let connections = Connections::default();
    let handler = Handler { blocking: args.blocking, cpu: args.cpu };
    let bound = configured(app(&connections, handler), args).bind(args.listen.as_str())?;
    let report = |message: &ChildMessage| {
        write_line(&mut stdout().lock(), message).map_err(Failure::runtime)
    };
    report(&ChildMessage::Listening { address: bound.local_addr().to_string() })?;
    let hub = bound.hub();
    // Kept to the end: dropped, it would stop the server.
    let _running = bound.start()?;
    let (mut input, mut text) = (stdin().lock(), String::new());
    while let Some(order) = read_line::<Order>(&mut input).map_err(Failure::runtime)? {
        report(&broadcast(&hub, &connections, order, args.size, &mut text))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the routes that benchmarks use.
fn app(connections: &Connections, handler: Handler) -> App {
    App::new()
        .ws(ALL, all_route(connections))
        .ws("/ws/{channel}", channels())
        .ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message)))
        .ws("/compose", Ws::new().on_message(answer_composed))
        .ws(
            "/block",
            Ws::new().on_message(move |ws, (), message| {
                handler.run();
                ws.send(message)
            }),
        )
        // Not Ws::on_message_blocking, which starts workers for every benchmark.
        .ws(
            "/work",
            Ws::new().on_message(move |ws, (), message| {
                let frame = Frame::from(message);
                let work = move || {
                    handler.run();
                    frame
                };
                ws.offload(work, |ws, (), frame| {
                    ws.send(&frame);
                });
            }),
        )
        .any("/", |request| match request.body() {
            [] => Response::text("OK"),
            body => Response::new(Status::OK).with_bytes("application/octet-stream", body.to_vec()),
        })
}

/// Returns the server with the settings of its command line.
fn configured(app: App, args: &Args) -> Server {
    let server = Server::new(app)
        .shards(Shards::new().io(args.io).count(Some(args.shards).filter(|&shards| shards > 0)))
        .sockets(SocketOptions::new().reuse_port(args.share_port))
        // A broadcast that waits behind a slow machine is measured, not cut off.
        .limits(Limits::default().max_backlog(64 << 20))
        .compression(args.deflate);
    match args.workers {
        0 => server,
        pool_size => server.workers(WorkerSettings::default().pool_size(pool_size)),
    }
}

/// Registers who comes, for the loop, and makes a member, for publishing.
fn all_route(connections: &Connections) -> Ws {
    let (coming, going) = (Arc::clone(connections), Arc::clone(connections));
    Ws::new()
        .on_open(move |ws, ()| {
            ws.subscribe(CHANNEL);
            lock(&coming).insert(ws.handle());
        })
        .on_close(move |ws, (), _| {
            lock(&going).remove(&ws.handle());
        })
}

thread_local! {
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Answers as an application does: with text from other memory than the received message.
fn answer_composed(ws: &mut Socket<'_>, (): &mut (), message: Message<'_>) {
    TEXT.with_borrow_mut(|text| match message {
        Message::Text(came) => {
            text.clear();
            text.push_str(came);
            ws.send(text.as_str());
        }
        Message::Binary(_) => ws.close(CloseCode::UNSUPPORTED_DATA, "text only"),
    });
}

fn channels() -> Ws<Box<str>> {
    Ws::from_request(|request| {
        let channel = request.param("channel").ok_or(Reject::not_found())?;
        Ok(Box::<str>::from(channel))
    })
    .on_open(|ws, channel| ws.subscribe(channel))
    .on_message(|ws, channel, message| ws.publish_to_others(channel, message))
}

/// One broadcast from this thread, which plays the program's part.
fn broadcast(
    hub: &Hub,
    connections: &Connections,
    Order { variant, round }: Order,
    size: usize,
    text: &mut String,
) -> ChildMessage {
    let connections = lock(connections);
    let (mut waits, called_ns) = (0, machine_now_ns());
    compose(text, size, round, called_ns);
    let text = text.as_str();
    match variant {
        Variant::Naive => {
            for &to in connections.iter() {
                retry(&mut waits, || hub.send(to, text));
            }
        }
        Variant::Encoded => {
            let frame = Frame::text(text);
            retry(&mut waits, || hub.broadcast(&frame));
        }
        Variant::Publish => retry(&mut waits, || hub.publish(CHANNEL, text)),
    }
    let returned_ns = machine_now_ns();
    ChildMessage::Broadcast { round, called_ns, returned_ns, waits }
}

/// Sends again until it succeeds: a full mailbox empties within a turn of its shard. Asleep in
/// between, because a loop that spins would be counted as the server's CPU time.
fn retry<T, E>(waits: &mut u64, send: impl Fn() -> Result<T, E>) {
    while send().is_err() {
        *waits += 1;
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn lock(connections: &Connections) -> MutexGuard<'_, BTreeSet<Handle>> {
    // A panic of another thread leaves the set consistent.
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}
