//! A server that shows its figures, and connections with narrow buffers.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Socket, Type};
use throng::channel::{Delivery, Receipt};
use throng::prelude::*;
use throng::server::SocketOptions;

use super::{TIMEOUT, exchange};

/// An app that serves the server's metrics, as text and as JSON.
pub(crate) fn app() -> App {
    App::new().route("/stats.json", throng::metrics::stats()).metrics("/metrics")
}

pub(crate) fn start(server: Server) -> (SocketAddr, Running) {
    let bound = server.bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    (bound.local_addr(), bound.start().unwrap())
}

/// Starts a server whose kernel buffers have little space for a client that does not read. Linux
/// bounds the unsent part of them by itself.
pub(crate) fn start_narrow(server: Server) -> (SocketAddr, Running) {
    start(match cfg!(target_os = "linux") {
        true => server,
        false => server.sockets(SocketOptions::new().send_buffer(16 << 10)),
    })
}

/// Ends the server without waiting for clients that do not answer.
pub(crate) fn stop(running: Running) {
    let grace = Duration::from_millis(50);
    running.shutdown(DrainPlan::DEFAULT.window(Duration::ZERO).grace(grace)).wait().unwrap();
}

/// Returns the outcomes of a publish, once every shard has counted.
pub(crate) fn total(receipt: &Receipt) -> Delivery {
    receipt.wait(TIMEOUT).expect("every shard counts")
}

/// A connection whose two kernel buffers have room for only some 100 KB, so that a client that does
/// not read is soon slow: small segments also keep the server's buffer small, which otherwise grows
/// to megabytes.
pub(crate) fn dial_narrow(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    #[cfg(unix)]
    socket.set_tcp_mss(1400).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The body of an answer to GET.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = exchange(address, request.as_bytes());
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// A figure of a class in `/stats.json`, as of at most a second ago.
pub(crate) fn figure(address: SocketAddr, class: &str, name: &str) -> u64 {
    let stats: Value = serde_json::from_str(&get(address, "/stats.json")).unwrap();
    let classes = stats["classes"].as_array().unwrap();
    let of_class = classes.iter().find(|of| of["name"] == class);
    of_class.unwrap_or_else(|| panic!("no class {class:?} in {stats}"))[name].as_u64().unwrap()
}
