//! `throng serve` behind `throng balance`, which sends it the addresses of its clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use socket2::{Domain, Socket, Type};
use throng_proto::ws::Opcode;
use throng_testkit::eventually;

use crate::support::{Client, Got, Served, TIMEOUT, dial, throng};

/// `throng balance` in front of one backend.
struct Balancer {
    process: Child,
    address: SocketAddr,
}

impl Balancer {
    fn before(backend: &str) -> Self {
        let words = ["balance", "--shards", "1", "--listen", "127.0.0.1:0", "--backend", backend];
        let mut process = throng()
            .args(words)
            .args(["--set", "shutdown.window=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("throng balances on http://");
        let address = address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        Self { process, address }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connects from an address of this machine.
fn dial_from(client: &str, to: SocketAddr) -> TcpStream {
    let client: IpAddr = client.parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(client, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

const BEHIND_PROXY: [&str; 6] = [
    "--listen",
    "127.0.0.1:0",
    "--set",
    "trusted_proxies=127.0.0.1",
    "--set",
    "proxy_protocol=true",
];

#[test]
fn caps_by_address_count_the_clients_of_the_balancer() {
    let cap = ["--set", "max_connections_per_address=2"];
    let served = Served::start(&[&BEHIND_PROXY[..], &cap].concat());
    let balancer = Balancer::before(&format!("{},send_proxy", served.addresses[0]));
    let connect = |client| Client::upgrade(dial_from(client, balancer.address), "/echo", &[], &[]);
    let first = connect("127.0.0.2").unwrap();
    let mut second = connect("127.0.0.2").unwrap();
    let refused = connect("127.0.0.2").map(drop).expect_err("its third connection is refused");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    let mut other = connect("127.0.0.3").expect("another client is not");
    for client in [&mut second, &mut other] {
        client.send(Opcode::Text, b"hello");
        assert_eq!(client.next(), Got::Text("hello".into()));
    }
    drop(first);
    eventually("there is room again", || connect("127.0.0.2").is_ok());
}

#[test]
fn a_client_that_goes_round_the_balancer_needs_a_header() {
    let served = Served::start(&BEHIND_PROXY);
    let mut stream = dial(served.addresses[0]);
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    let mut stream = dial(served.addresses[0]);
    stream.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n").unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let head = crate::support::read_head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

#[test]
fn proxy_protocol_without_trusted_proxies_is_an_error_that_names_both() {
    let output = throng().args(["serve", "--set", "proxy_protocol=true"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("trusted_proxies"), "{errors}");
    let output = throng().args(["serve", "--set", "trusted_proxies=10.0.0.0/99"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("10.0.0.0/99"), "{errors}");
}
