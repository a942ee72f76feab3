//! The server that a benchmark starts for itself: an ordinary program on the public library, in a
//! separate process with its own CPU time and memory.
//!
//! `/all` receives broadcasts; `/ws/{channel}` sends each message to the channel's other members,
//! as `throng serve` does; `/echo` sends it back, and `/compose` sends the same text in a new
//! message; `/block` runs a blocking handler before it echoes, and `/work` runs the handler on a
//! worker. `/` serves HTTP: OK, or the request's body. Requests and reports use standard input and
//! output; the server ends when its input ends.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{stdin, stdout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng::prelude::*;
use throng::server::{Observe, Shards, SocketOptions};
use throng::workers::WorkerSettings;
use throng_load::{Error, deflate, machine_now_ns};

use super::handler::Handler;
use super::message::compose;
use super::wire::{ChildMessage, Order, Variant, read_line, write_line};
use super::{ALL, ServerPart};

/// The channel that all connections there are members of.
const CHANNEL: &str = "all";

/// Every connection at [`ALL`].
type Connections = Arc<Mutex<BTreeSet<Handle>>>;

/// Serves until standard input ends.
///
/// # Errors
/// The server cannot listen.
pub(super) fn serve(part: &ServerPart) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Child(error.to_string());
    let connections = Connections::default();
    let server = configured(app(&connections, part.handler), part)?;
    let bound = server.bind(part.address.as_str()).map_err(|error| failed(&error))?;
    let report = |message: &ChildMessage| {
        write_line(&mut stdout().lock(), message).map_err(|error| failed(&error))
    };
    report(&ChildMessage::Listening { address: bound.local_addr().to_string() })?;
    let hub = bound.hub();
    // Kept to the end: dropped, it would stop the server.
    let _running = bound.start().map_err(|error| failed(&error))?;
    let (mut input, mut text) = (stdin().lock(), String::new());
    while let Some(order) = read_line::<Order>(&mut input).map_err(|error| failed(&error))? {
        report(&broadcast(&hub, &connections, order, part.size, &mut text))?;
    }
    Ok(())
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

/// Returns a server with these settings.
fn configured(app: App, part: &ServerPart) -> Result<Server, Error> {
    let io = part.io.parse().map_err(|error| Error::Usage(format!("{error}")))?;
    let server = Server::new(app)
        .shards(Shards::new().io(io).count(Some(part.shards).filter(|&shards| shards > 0)))
        .sockets(SocketOptions::new().reuse_port(part.share_port))
        // A loop of sends to all connections occupies its event loop, and this delay is what the
        // benchmark measures.
        .observe(Observe::new().stall_warning(None))
        // A broadcast that waits behind a slow machine is measured, not cut off.
        .limits(Limits::default().max_backlog(64 << 20))
        .compression(deflate::parse(&part.deflate).map_err(Error::Usage)?);
    Ok(match part.workers {
        0 => server,
        pool_size => server.workers(WorkerSettings::default().pool_size(pool_size)),
    })
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
