//! A compressing peer, and the text it sends.

use throng_proto::ws::deflate::{Deflater, History, Inflater, Policy, Settings};
use throng_proto::ws::{Deflated, Event, ProtocolError};
pub(crate) use throng_testkit::noise;
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Status};

pub(crate) fn policy(settings: Settings) -> Policy {
    settings.enabled(true).check().unwrap().unwrap()
}

pub(crate) fn deflater(level: u8, mem_level: u8) -> Deflater {
    Deflater::new(&policy(Settings::default().level(level).mem_level(mem_level)))
}

/// Returns the event, without whether it can be relayed.
pub(crate) fn event<'a>(
    inflater: &'a mut Inflater,
    message: Deflated<'_>,
    history: Option<&mut History>,
    max: usize,
) -> Result<Event<'a>, ProtocolError> {
    inflater.inflate(message, history, max).map(|inflated| inflated.event)
}

/// Inflates a binary message without a context.
pub(crate) fn inflate(payload: &[u8], max: usize) -> Result<Vec<u8>, ProtocolError> {
    match event(&mut Inflater::new(), Deflated { text: false, payload }, None, max)? {
        Event::Binary(bytes) => Ok(bytes.to_vec()),
        other => panic!("{other:?}"),
    }
}

/// A plain streaming compressor, as clients use.
pub(crate) struct Peer(Deflate);

impl Peer {
    pub(crate) fn new(level: i32, window_bits: u8) -> Self {
        let window_bits = -i32::from(window_bits);
        Self(Deflate::new_with_config(DeflateConfig { level, window_bits, ..Default::default() }))
    }

    /// Compresses the next message, with all earlier ones as its context.
    pub(crate) fn deflate(&mut self, plaintext: &[u8]) -> Vec<u8> {
        if plaintext.is_empty() {
            // zlib has nothing to flush then (RFC 7692 section 7.2.3.6).
            return vec![0];
        }
        self.flush(plaintext, DeflateFlush::SyncFlush)
            .strip_suffix(&[0, 0, 0xff, 0xff])
            .unwrap()
            .to_vec()
    }

    /// Compresses the next message independently.
    pub(crate) fn deflate_alone(&mut self, plaintext: &[u8]) -> Vec<u8> {
        self.0.reset();
        self.deflate(plaintext)
    }

    pub(crate) fn flush(&mut self, plaintext: &[u8], flush: DeflateFlush) -> Vec<u8> {
        let mut out = vec![0; plaintext.len() + plaintext.len() / 2 + 64];
        let (taken, given) = (self.0.total_in(), self.0.total_out());
        let status = self.0.compress(plaintext, &mut out, flush).unwrap();
        assert!(matches!(status, Status::Ok | Status::StreamEnd));
        assert_eq!(self.0.total_in() - taken, plaintext.len() as u64);
        out.truncate((self.0.total_out() - given) as usize);
        out
    }
}

/// Returns a message of a feed, about 136 bytes, different for each `n`.
pub(crate) fn trade(n: u64) -> String {
    let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    format!(
        "{{\"type\":\"trade\",\"symbol\":\"BTC-USD\",\"price\":\"{}.{:02}\",\"size\":\"0.{:06}\",\
         \"side\":\"{}\",\"time\":\"2026-11-20T12:{:02}:{:02}.{:06}Z\",\"seq\":{}}}",
        60_000 + random % 999,
        random % 100,
        random % 1_000_000,
        if random.is_multiple_of(2) { "buy" } else { "sell" },
        random % 60,
        random / 60 % 60,
        random % 1_000_003,
        80_000_000 + n
    )
}
