//! The balancer step by step, in virtual time.

mod admission;
mod closing;
mod moves;
mod rates;
mod shares;
mod slow;
mod timeouts;

use std::time::Duration;

use throng_proto::ws::handshake::accept_key;
use throng_proto::ws::{Opcode, encode, encode_close, encode_masked};
use throng_sim::balance::{PeerId, Script};

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const HOUR: Duration = Duration::from_secs(3600);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A handshake.
fn upgrade() -> Vec<u8> {
    format!(
        "GET /chat HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
    .into_bytes()
}

/// The answer to a handshake.
fn accepted() -> String {
    let accept = accept_key(KEY);
    let accept = std::str::from_utf8(&accept).expect("base64");
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Opens a tunnel: its client and its backend's side.
fn open(script: &mut Script) -> (PeerId, PeerId) {
    let client = script.connect();
    script.send(client, &upgrade());
    let server = script.accept(0);
    assert!(script.receive_text(server).contains("Upgrade: websocket"));
    script.send(server, accepted().as_bytes());
    assert!(script.receive_text(client).starts_with("HTTP/1.1 101 "));
    (client, server)
}

/// A text frame sent by a client.
fn masked(text: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_masked(Opcode::Text, text.as_bytes(), [1, 2, 3, 4], &mut frame);
    frame
}

/// A text frame sent by a server.
fn unmasked(text: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(Opcode::Text, text.as_bytes(), &mut frame);
    frame
}

/// The Close frame that the balancer sends.
fn close_of_balancer(code: u16) -> Vec<u8> {
    let reason = if code == 1001 { "going away" } else { "please connect again" };
    let mut frame = Vec::new();
    encode_close(code, reason, None, &mut frame);
    frame
}

/// A Close frame of a client.
fn close_of_client(code: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_close(code, "", Some([9, 8, 7, 6]), &mut frame);
    frame
}

/// Checks that the balancer holds no data, and has no connection to a client.
#[track_caller]
fn assert_nothing_is_held(script: &mut Script) {
    let metrics = script.metrics();
    let held = (metrics.connections, metrics.tunnels, script.backend(0).tunnels());
    assert_eq!(held, (0, 0, 0));
    assert_eq!(script.backend(0).requests() + script.backend(0).handshakes(), 0);
}
