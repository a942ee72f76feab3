//! Rights of clients in channels: rules, tokens, and the answers to a client without a right.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use throng_proto::ws::Opcode;
use throng_testkit::{Client, Got, TempFolder, poll};

use super::{Served, dial, events, get, logged_events, throng};

const SECRET: &str = "a secret of thirty-two bytes or more";

/// A folder with a file of settings, whose rules are followed by `more`.
pub(super) fn folder(more: &str) -> TempFolder {
    let folder = TempFolder::new("rights");
    folder.write("token.key", SECRET);
    let key = "[[token_key]]\nalgorithm = \"HS256\"\nsecret_file = \"token.key\"\n";
    folder.write("throng.toml", format!("open = false\n{key}{more}"));
    folder
}

pub(super) fn start(folder: &TempFolder, words: &[&str]) -> Served {
    let config = folder.join("throng.toml").display().to_string();
    Served::start(&[&["--config", &config][..], words].concat())
}

fn encode(bytes: &[u8]) -> String {
    base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A token with these claims, signed with HS256.
pub(super) fn token(claims: &str) -> String {
    let signed = format!("{}.{}", encode(br#"{"alg":"HS256"}"#), encode(claims.as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", encode(signature.as_ref()))
}

/// A key of an issuer, with its ID.
struct IssuerKey(&'static str, Ed25519KeyPair);

impl IssuerKey {
    fn new(id: &'static str) -> Self {
        let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(id, Ed25519KeyPair::from_pkcs8(private.as_ref()).unwrap())
    }

    fn jwk(&self) -> String {
        let x = encode(self.1.public_key().as_ref());
        format!(r#"{{"kty":"OKP","crv":"Ed25519","use":"sig","kid":"{}","x":"{x}"}}"#, self.0)
    }

    fn token(&self, claims: &str) -> String {
        let head = format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, self.0);
        let signed = format!("{}.{}", encode(head.as_bytes()), encode(claims.as_bytes()));
        format!("{signed}.{}", encode(self.1.sign(signed.as_bytes()).as_ref()))
    }
}

/// A server that answers each request with this, and its URL.
fn issuer(answer: &Arc<Mutex<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let answer = Arc::clone(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|it| it == 1) {
                head.push(byte[0]);
            }
            let _ = stream.write_all(answer.lock().unwrap().as_bytes());
        }
    });
    url
}

fn set_of(keys: &[&IssuerKey]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| key.jwk()).collect();
    let body = format!(r#"{{"keys":[{}]}}"#, keys.join(","));
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn keys_of_an_issuer_are_fetched_and_renewed() {
    let (old, new) = (IssuerKey::new("old"), IssuerKey::new("new"));
    let elsewhere = issuer(&Arc::new(Mutex::new(set_of(&[&old, &new]))));
    let redirect =
        format!("HTTP/1.1 302 Found\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\n\r\n");
    let answer = Arc::new(Mutex::new(redirect));
    let url = issuer(&answer);
    let set = format!("token_jwks={url}");
    let served = Served::start(&["--set", "open=false", "--set", &set]);
    let enters = |key: &IssuerKey| {
        let path =
            format!("/ws/chat?echo=1&token={}", key.token(r#"{"join":"chat","publish":"chat"}"#));
        let mut client = Client::connect(served.address, &path);
        client.try_send(Opcode::Text, b"hello");
        client.next() == Got::Text("hello".to_owned())
    };
    assert!(!enters(&old), "a redirection is not followed");
    *answer.lock().unwrap() = set_of(&[&old]);
    poll("the set is fetched", || enters(&old).then_some(()));
    assert!(!enters(&new));
    *answer.lock().unwrap() = set_of(&[&old, &new]);
    poll("a token with an unknown key has it fetched again", || enters(&new).then_some(()));
    // While the issuer is away, its keys stay in use.
    *answer.lock().unwrap() = "HTTP/1.1 500 Sorry\r\nContent-Length: 0\r\n\r\n".to_owned();
    assert!(!enters(&IssuerKey::new("other")));
    assert!(enters(&old) && enters(&new));
    for (set, part) in [
        ("token_jwks=http://example.com/keys", "write https://"),
        ("token_jwks=ftp://127.0.0.1/keys", "token_jwks[0]"),
    ] {
        let output = throng(&["config", "check", "serve", "--set", set]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && errors.contains(part), "{errors}");
    }
}

/// Upgrades as a page does, which offers subprotocols; returns the head of the answer.
fn offering(address: SocketAddr, offers: &str) -> (String, TcpStream) {
    let mut stream = dial(address);
    write!(
        stream,
        "GET /ws/chat.1 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: {offers}\r\n\r\n"
    )
    .unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0] as char);
    }
    (head, stream)
}

pub(super) fn seconds_from_now(seconds: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (now + Duration::from_secs(seconds)).as_secs()
}

#[test]
fn a_token_admits_to_the_channels_that_it_names() {
    let folder = folder("");
    let served = start(&folder, &[]);
    let ada = token(r#"{"sub":"ada","join":"chat.*","publish":["chat.1"]}"#);
    let listener = token(r#"{"join":"chat.1"}"#);
    // From the query, from Authorization, and as a page offers it.
    let mut by_query = Client::connect(served.address, &format!("/ws/chat.1?echo=1&token={ada}"));
    let bearer = format!("Bearer {listener}");
    let headers = [("Authorization", bearer.as_str())];
    let mut by_header = Client::request(served.address, "/ws/chat.1", &headers).unwrap();
    let (head, stream) = offering(served.address, &format!("bearer.{listener}, throng"));
    assert!(head.contains("Sec-WebSocket-Protocol: throng\r\n"), "{head}");
    assert!(!head.contains("bearer"), "a token is not echoed: {head}");
    let mut by_offer = Client::opened(stream);
    by_query.send(Opcode::Text, b"hello");
    for client in [&mut by_query, &mut by_header, &mut by_offer] {
        assert_eq!(client.next(), Got::Text("hello".to_owned()));
    }
    // Joining is not publishing.
    by_header.send(Opcode::Text, b"me too");
    assert_eq!(by_header.next().close_code(), Some(1008));
    served.process.signal("TERM");
    let (_, _, log) = served.end();
    for secret in [&ada, &listener] {
        let signature = secret.rsplit('.').next().unwrap();
        assert!(!log.contains(signature), "the log has a token: {log}");
    }
}

#[test]
fn a_client_that_may_not_join_learns_why() {
    let folder = folder("[[channel]]\nname = \"staff\"\nmay_join = \"none\"\n");
    let served = start(&folder, &["--log-access", "all"]);
    let other = token(r#"{"sub":"ada","join":"other"}"#);
    let expired = token(r#"{"join":"chat","exp":1000000000}"#);
    let forged = format!("{}x", &other[..other.len() - 1]);
    for (path, code, status) in [
        ("chat".to_owned(), 4001, 401),
        (format!("chat?token={expired}"), 4001, 401),
        (format!("chat?token={forged}"), 4001, 401),
        ("chat?token=none".to_owned(), 4001, 401),
        (format!("chat?token={other}"), 1008, 403),
        ("staff".to_owned(), 1008, 403),
        (format!("staff?token={other}"), 1008, 403),
    ] {
        let closed = Client::connect(served.address, &format!("/ws/{path}")).next();
        assert_eq!(closed.close_code(), Some(code), "{path}");
        let answer = get(served.address, &format!("/sse/{path}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
    let metrics = get(served.address, "/metrics");
    assert!(metrics.contains("throng_connections_ended_total{reason=\"token\"} 4\n"), "{metrics}");
    assert!(metrics.contains("throng_connections_ended_total{reason=\"right\"} 3\n"), "{metrics}");
    served.process.signal("TERM");
    let (_, _, log) = served.end();
    assert!(logged_events(&log).any(|event| event["code"] == 4001), "{log}");
    for part in [&other, &expired, &forged].map(|token| token.rsplit('.').next().unwrap()) {
        assert!(!log.contains(part), "the log has a token: {log}");
    }
}

#[test]
fn a_session_ends_when_its_token_expires() {
    let folder = folder("");
    let served = start(&folder, &[]);
    // Its clock may be thirty seconds behind: it is over now, and still verifies.
    let ending = token(&format!(r#"{{"join":"chat","exp":{}}}"#, seconds_from_now(0)));
    let mut client = Client::connect(served.address, &format!("/ws/chat?token={ending}"));
    assert_eq!(client.next().close_code(), Some(4001));
    let lasting = token(&format!(r#"{{"join":"chat","exp":{}}}"#, seconds_from_now(3600)));
    let mut client = Client::connect(served.address, &format!("/ws/chat?token={lasting}"));
    client.send(Opcode::Ping, b"still there?");
    assert_eq!(client.next_of_any_kind(), Got::Pong(b"still there?".to_vec()));
}

#[test]
fn a_history_is_for_those_who_may_read_it() {
    let rule = "[[channel]]\nname = \"chat\"\nhistory = \"10/1m\"\nmay_join = \"anyone\"\n\
                may_publish = \"anyone\"\nmay_read_history = \"claim\"\n";
    let folder = folder(rule);
    let served = start(&folder, &[]);
    let mut first = Client::connect(served.address, "/ws/chat?since=");
    let Got::Text(begun) = first.next() else { panic!() };
    let begun: serde_json::Value = serde_json::from_str(&begun).unwrap();
    let text = |key: &str| begun[key].as_str().unwrap().to_owned();
    let position = format!("{}:{}:{}", text("epoch"), begun["offset"], text("tag"));
    first.send(Opcode::Text, b"one");
    assert!(matches!(first.next(), Got::Text(text) if text.ends_with("one")));
    let path = format!("/ws/chat?since={position}");
    let mut without = Client::connect(served.address, &path);
    assert!(matches!(without.next(), Got::Text(text) if text.contains("\"recovered\":false")));
    let reader = token(r#"{"history":"chat"}"#);
    let mut back = Client::connect(served.address, &format!("{path}&token={reader}"));
    assert!(matches!(back.next(), Got::Text(text) if text.contains("\"recovered\":true")));
    assert!(matches!(back.next(), Got::Text(text) if text.ends_with("one")));
    // A stream of events asks for the same by its header.
    for (token, first) in [("", "event: lost"), (&reader, "data: one")] {
        let path = format!("/sse/chat?last_event_id={position}&token={token}");
        let stream = events(served.address, &path);
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        assert_eq!(lines.find(|line| !line.starts_with("id: ")).as_deref(), Some(first));
    }
}

#[test]
fn keys_audience_and_issuer_change_by_a_reload() {
    let folder =
        folder("[[channel]]\nname = \"chat\"\nmay_join = \"token\"\nmay_publish = \"token\"\n");
    let served = start(&folder, &[]);
    let settings = std::fs::read_to_string(folder.join("throng.toml")).unwrap();
    let enters = |claims: &str| {
        let path = format!("/ws/chat?echo=1&token={}", token(claims));
        let mut client = Client::connect(served.address, &path);
        client.try_send(Opcode::Text, b"hello");
        client.next() == Got::Text("hello".to_owned())
    };
    assert!(enters("{}"));
    for (more, claims) in [
        ("token_audience = \"chat\"\n", r#"{"aud":"chat"}"#),
        ("token_issuer = \"app\"\n", r#"{"iss":"app"}"#),
    ] {
        folder.write("throng.toml", format!("{more}{settings}"));
        served.process.signal("HUP");
        poll("only tokens with it are good", || (enters(claims) && !enters("{}")).then_some(()));
    }
    folder.write("token.key", "another secret, which comes after the first one");
    served.process.signal("HUP");
    poll("tokens by the old key are refused", || (!enters(r#"{"iss":"app"}"#)).then_some(()));
}
