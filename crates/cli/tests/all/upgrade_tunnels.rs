//! Tunnels move to the successor of a balancer: their clients and backends notice nothing.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use throng_proto::ws::Opcode;
use throng_testkit::{TempFolder, eventually};

use crate::started::events;
use crate::support::{Client, Got, Served, dial};
use crate::upgrade::{Line, balance_before};

/// Tunnels of a test, half of them of each thread.
const TUNNELS: usize = 40;

/// Messages that a client sends before it reads the first echo.
const AHEAD: u64 = 5;

/// A stream of a client, with or without TLS.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Echoes numbered messages over all tunnels until `work` is done: each comes back once and in
/// order. At the end each client closes its tunnel, and its server answers. Returns the number of
/// messages.
fn while_tunnels_echo(clients: Vec<Client<Box<dyn Stream>>>, work: impl FnOnce(&AtomicU64)) -> u64 {
    /// Ends the loops, also when the work fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (ends, echoed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let guard = Ends(&ends);
        let mut clients = clients.into_iter();
        for _ in 0..2 {
            let mut own: Vec<_> = clients.by_ref().take(TUNNELS / 2).collect();
            let (ends, echoed) = (&ends, &echoed);
            scope.spawn(move || {
                let mut number = 0;
                // Some messages take more than one read of the balancer.
                let message = |number: u64, of: usize| {
                    format!(
                        "{number} {}",
                        "x".repeat(if of.is_multiple_of(8) { 70_000 } else { of })
                    )
                };
                while !ends.load(Ordering::Relaxed) {
                    for (of, client) in own.iter_mut().enumerate() {
                        (number..number + AHEAD).for_each(|it| client.send_text(&message(it, of)));
                    }
                    for (of, client) in own.iter_mut().enumerate() {
                        for it in number..number + AHEAD {
                            assert!(client.next() == Got::Text(message(it, of)), "{it} of {of}");
                        }
                    }
                    number += AHEAD;
                    echoed.fetch_add(AHEAD * own.len() as u64, Ordering::Relaxed);
                }
                for mut client in own {
                    client.send(Opcode::Close, &1000u16.to_be_bytes());
                    assert_eq!(client.next().close_code(), Some(1000));
                }
            });
        }
        work(&echoed);
        drop(guard);
    });
    echoed.into_inner()
}

fn boxed(stream: impl Stream + 'static) -> Client<Box<dyn Stream>> {
    let stream: Box<dyn Stream> = Box::new(stream);
    Client::upgrade(stream, "/echo", &[], &[]).unwrap()
}

/// Upgrades three times while messages flow between the upgrades: all tunnels move each time.
fn upgrade_three_times(balancer: &mut Line, echoed: &AtomicU64) {
    for _ in 0..3 {
        let before = echoed.load(Ordering::Relaxed);
        eventually("messages flow", || echoed.load(Ordering::Relaxed) > before);
        balancer.signal("USR2");
        let event = balancer.upgraded();
        assert_eq!(
            (&event["moved"], &event["connections"]),
            (&TUNNELS.into(), &0.into()),
            "{event}"
        );
    }
}

#[test]
fn tunnels_under_load_survive_upgrades() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let settings = format!("{}log.access = \"all\"\n", balance_before(served.addresses[0]));
    let mut balancer = Line::start("balance", &settings);
    let address = balancer.first.address("balances on http://");
    let clients: Vec<_> = (0..TUNNELS).map(|_| boxed(dial(address))).collect();
    let echoed = while_tunnels_echo(clients, |echoed| upgrade_three_times(&mut balancer, echoed));
    assert!(echoed > 0);
    assert_eq!(balancer.first.exit(), Some(0), "it had nothing to drain");
    // Each tunnel is in the log, with what its request was, although another process began it.
    let tunnels = || {
        let of_tunnel = |event: &serde_json::Value| event["path"] == "/echo";
        events(&balancer.first.log, "session").iter().filter(|event| of_tunnel(event)).count()
    };
    eventually("all tunnels are in the log", || tunnels() == TUNNELS);
    balancer.end();
}

#[test]
fn tunnels_with_tls_on_both_sides_survive_upgrades() {
    let folder = TempFolder::new("upgrade-tls");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let chain = folder.write("own.pem", made.cert.pem());
    let key = folder.write("own.key", made.signing_key.serialize_pem());
    let [chain_name, key_name] = [&chain, &key].map(|file| file.to_str().unwrap());
    let words = ["--listen", "127.0.0.1:0", "--tls-cert", chain_name, "--tls-key", key_name];
    let served = Served::start(&words);
    let settings = format!(
        "{}tls.cert = {chain:?}\ntls.key = {key:?}\nbackend_tls.ca = {chain:?}\n\
         backend_tls.name = \"localhost\"\n",
        balance_before(served.addresses[0])
    );
    let mut balancer = Line::start("balance", &settings);
    let address = balancer.first.address("balances on https://");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&chain).unwrap()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let connect = |_| {
        let name = "localhost".try_into().unwrap();
        let session = ClientConnection::new(Arc::clone(&config), name).unwrap();
        boxed(StreamOwned::new(session, dial(address)))
    };
    let clients: Vec<_> = (0..TUNNELS).map(connect).collect();
    while_tunnels_echo(clients, |echoed| upgrade_three_times(&mut balancer, echoed));
    assert_eq!(balancer.first.exit(), Some(0));
    // The tickets of the first process are good for the last one.
    let session = ClientConnection::new(Arc::clone(&config), "localhost".try_into().unwrap());
    let mut stream = StreamOwned::new(session.unwrap(), dial(address));
    stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").unwrap();
    assert!(throng_testkit::read_head(&mut stream).starts_with("HTTP/1.1 200 "));
    assert_eq!(stream.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    balancer.end();
}

/// A tunnel whose client does not read has bytes in each of its buffers.
#[test]
fn bytes_for_a_slow_reader_move_with_its_tunnel() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let mut balancer = Line::start("balance", &balance_before(served.addresses[0]));
    let address = balancer.first.address("balances on http://");
    let mut client = Client::connect(address, "/echo");
    let mut writer = client.stream.try_clone().unwrap();
    let (message, count) = ("slow".repeat(10_000), 400);
    let text = message.clone();
    let sender = std::thread::spawn(move || {
        let mut frame = Vec::new();
        throng_proto::ws::encode_masked(Opcode::Text, text.as_bytes(), [1, 2, 3, 4], &mut frame);
        (0..count).for_each(|_| writer.write_all(&frame).unwrap());
    });
    for _ in 0..2 {
        balancer.signal("USR2");
        assert_eq!(balancer.upgraded()["moved"], 1);
    }
    for _ in 0..count {
        assert!(client.next() == Got::Text(message.clone()), "a byte was lost");
    }
    sender.join().unwrap();
    client.send_text("last");
    assert_eq!(client.next(), Got::Text("last".to_owned()));
    balancer.end();
}
