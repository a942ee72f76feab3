//! A session of Throng and a connection of rustls, in every suite of both versions: each opens what
//! the other has sealed, in pieces and with key updates, for any split of the bytes. A receiver of
//! a damaged stream only gets bytes that were sent.
#![no_main]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedCipherSuite};
use throng_tls::handshake::{Handshake, Progress, Secrets, prepare};
use throng_tls::{End, Messages, Session, WarmKeys};

/// Both sides of each suite that an EC certificate can be used with.
static CONFIGS: LazyLock<Vec<(Arc<ClientConfig>, Arc<ServerConfig>)>> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der();
    let chain = vec![made.cert.der().clone()];
    let mut roots = RootCertStore::empty();
    roots.add(chain[0].clone()).unwrap();
    let config = |suite: &SupportedCipherSuite| {
        let version = match suite {
            SupportedCipherSuite::Tls12(_) => &rustls::version::TLS12,
            SupportedCipherSuite::Tls13(_) => &rustls::version::TLS13,
        };
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![*suite],
            // The handshake is not what is tested.
            kx_groups: vec![aws_lc_rs::kx_group::X25519],
            ..aws_lc_rs::default_provider()
        });
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.clone(), PrivateKeyDer::try_from(key.clone()).unwrap())
            .unwrap();
        prepare(&mut server);
        (Arc::new(client), Arc::new(server))
    };
    let is_of_rsa = |suite: &&SupportedCipherSuite| format!("{suite:?}").contains("_RSA_");
    aws_lc_rs::ALL_CIPHER_SUITES.iter().filter(|suite| !is_of_rsa(suite)).map(config).collect()
});

/// Updates of keys, without data between them and in all: far more end the session.
const UPDATES_IN_A_ROW: u8 = 12;
const UPDATES: u8 = 60;

thread_local! {
    /// A pair of each suite that was not damaged: a handshake takes longer than what is tested.
    static RESTING: RefCell<Vec<Option<Pair>>> =
        RefCell::new(CONFIGS.iter().map(|_| None).collect());
}

struct Pair {
    client: ClientConnection,
    ours: Session,
    /// Bytes that the client has sent and the session has not yet read.
    wire: Vec<u8>,
    messages: Messages,
    /// Expanded keys, as they are kept while a connection is busy.
    warm: WarmKeys,
    /// Key updates since the client's last data, and since the session's last data.
    in_a_row: (u8, u8),
    /// All updates.
    updates: u8,
}

impl Pair {
    fn of((client, server): &(Arc<ClientConfig>, Arc<ServerConfig>)) -> Self {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
        let mut handshake = Handshake::new(Arc::clone(server)).unwrap();
        let (mut secrets, mut out) = (Secrets::default(), Vec::new());
        let mut progress = Progress::NeedsInput;
        while progress == Progress::NeedsInput {
            let mut said = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut said).unwrap();
            }
            handshake.receive(&said).unwrap();
            progress = handshake.advance(&mut secrets, &mut out).unwrap();
            hear(&mut client, &std::mem::take(&mut out));
        }
        let (ours, _, wire) = handshake.take_session(&secrets).unwrap();
        let (messages, warm) = (Messages::default(), WarmKeys::default());
        Self { client, ours, wire, messages, warm, in_a_row: (0, 0), updates: 0 }
    }

    /// Sends data from the client, onto the wire.
    fn say(&mut self, data: &[u8]) {
        self.client.writer().write_all(data).unwrap();
        while self.client.wants_write() {
            self.client.write_tls(&mut self.wire).unwrap();
        }
    }

    /// Returns whether keys can be updated once more, and counts it for both: one asks the other.
    fn takes_update(&mut self) -> bool {
        let (client, ours) = &mut self.in_a_row;
        let is_rare = (*client).max(*ours) < UPDATES_IN_A_ROW && self.updates < UPDATES;
        if !is_rare || !self.ours.can_update() {
            return false;
        }
        (*client, *ours, self.updates) = (*client + 1, *ours + 1, self.updates + 1);
        true
    }

    /// Passes up to `n` bytes of the wire to the session; returns their data, and the reason if the
    /// session has ended.
    fn deliver(&mut self, n: usize) -> (Vec<u8>, Option<End>) {
        let n = n.min(self.wire.len());
        let opened = self.ours.open(&mut self.wire[..n], &mut self.warm, &mut self.messages);
        assert!(opened.consumed <= n && opened.data.end <= opened.consumed);
        let data = self.wire[opened.data].to_vec();
        self.wire.drain(..opened.consumed);
        let mut reply = Vec::new();
        self.ours.seal_reply(&mut reply).expect("far from the limit");
        assert_eq!(reply.is_empty(), !opened.has_reply);
        assert_eq!(hear(&mut self.client, &reply), b"");
        (data, opened.end)
    }
}

/// Gives bytes to the client, which takes all of them; returns their data.
fn hear(client: &mut ClientConnection, mut bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).unwrap();
        client.process_new_packets().expect("ours said so");
        // The end of the stream is not an error here.
        let _ = client.reader().read_to_end(&mut data);
    }
    data
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, mut data)) = data.split_first() else { return };
    let suite = usize::from(first) % CONFIGS.len();
    let resting = RESTING.with_borrow_mut(|resting| resting[suite].take());
    let mut pair = resting.unwrap_or_else(|| Pair::of(&CONFIGS[suite]));
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let mut is_damaged = false;
    while let Some((&op, rest)) = data.split_first() {
        let (chunk, rest) = rest.split_at(rest.len().min(usize::from(op >> 3)));
        data = rest;
        // Repeated, it fills more than a record.
        let times = if op % 2 == 0 { 1 } else { 2000 };
        match op % 8 {
            0 | 1 => {
                let text = chunk.repeat(times);
                pair.say(&text);
                sent.extend_from_slice(&text);
                if !text.is_empty() {
                    pair.in_a_row.0 = 0;
                }
            }
            2 | 3 => {
                let (text, mut out) = (chunk.repeat(times), Vec::new());
                let sealed = match usize::from(first) % 4 {
                    0 => pair.ours.seal_contiguous(&text, &mut pair.warm, &mut out),
                    parts => pair.ours.seal(text.chunks(times * parts), &mut pair.warm, &mut out),
                };
                sealed.expect("far from the limit");
                assert!(hear(&mut pair.client, &out) == text);
                if !text.is_empty() {
                    pair.in_a_row.1 = 0;
                }
            }
            4 if pair.takes_update() => {
                pair.client.refresh_traffic_keys().unwrap();
                pair.say(b"");
            }
            5 if pair.takes_update() => {
                let mut out = Vec::new();
                pair.ours.update(op & 8 == 0, &mut out).expect("far from the limit");
                assert_eq!(hear(&mut pair.client, &out), b"");
                pair.say(b"");
            }
            6 if !pair.wire.is_empty() && !chunk.is_empty() => {
                let at = usize::from(chunk[0]) % pair.wire.len();
                pair.wire[at] ^= chunk.last().copied().unwrap_or_default().max(1);
                is_damaged = true;
            }
            _ => {
                let (data, end) = pair.deliver(usize::from(op) * 100);
                received.extend(data);
                if end.is_some() {
                    assert!(is_damaged, "{end:?}");
                    break;
                }
            }
        }
    }
    if !is_damaged {
        let (data, end) = pair.deliver(usize::MAX);
        received.extend(data);
        assert!(end.is_none() && pair.wire.is_empty(), "{end:?}");
        assert!(received == sent);
        if pair.updates < UPDATES / 2 {
            RESTING.with_borrow_mut(|resting| resting[suite] = Some(pair));
        }
    }
    assert!(sent.starts_with(&received), "data that was not sent");
});
