//! Properties: the events do not depend on how the bytes are split.

use throng_testkit::Random;

use super::*;

/// Splits `bytes` into chunks, most of them short.
pub(super) fn cut<'b>(random: &mut Random, mut bytes: &'b [u8]) -> Vec<&'b [u8]> {
    let mut pieces = Vec::new();
    let most = 1 + random.below(40);
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at((1 + random.below(most)).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

/// Conversations that reach every state, valid and invalid.
pub(super) const CONVERSATIONS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nGET /a?b HTTP/1.1\r\nHost: a\r\nX: \t y \r\n\r\n\r\nHEAD * HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /2 HTTP/1.1\r\n\
        Host: b\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0a\r\n\
        0123456789\r\n0\r\nT: v\r\n\r\nGET /2 HTTP/1.0\r\n\r\njunk",
    "GET http://o:1/p HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n",
    "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT v\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "GET / HTTP/3.0\r\nHost a\n\r\n",
    "GET / HTTP/1.1\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
    "\x16\x03\x01\x02\0\n\r\n",
    "GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n\
        0\r\nA: b\r\nHost: c\r\n\r\n",
    "GET /a/rather/long/target/with?a=query HTTP/1.1\r\nHost: www.example.com:8080\r\n\
        X_y~z-of-more-than-sixteen: v\t\r\nX: \u{e9}\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nExpect: the unexpected\r\n\r\n",
];

fn limits() -> [Limits; 2] {
    [Limits::default(), Limits { max_header_bytes: 48, max_headers: 2, max_body: 9 }]
}

#[test]
fn every_split_gives_the_same_requests() {
    for text in CONVERSATIONS {
        let bytes = text.as_bytes();
        for limits in limits() {
            let expected = requests([bytes], &limits);
            for at in 0..=bytes.len() {
                let (first, second) = bytes.split_at(at);
                assert_eq!(requests([first, second], &limits), expected, "{text:?} cut at {at}");
            }
            assert_eq!(requests(bytes.chunks(1), &limits), expected, "{text:?} dripped");
        }
    }
}

#[test]
fn random_bytes_and_cuts_give_the_same_requests() {
    let mut random = Random::new(0x5eed_1234_9876_0001);
    for round in 0..4000 {
        let mut bytes = Vec::new();
        for _ in 0..1 + random.below(3) {
            bytes.extend_from_slice(CONVERSATIONS[random.below(CONVERSATIONS.len())].as_bytes());
        }
        // Replace a few bytes by ones that matter to the grammar, or by any.
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len());
            let telling = b"\r\n :;,\t0aG/*?";
            bytes[at] = match random.below(telling.len() + 2) {
                any if any >= telling.len() => random.bits() as u8,
                index => telling[index],
            };
        }
        for limits in limits() {
            let expected = requests([&bytes[..]], &limits);
            let pieces = cut(&mut random, &bytes);
            let seen = requests(pieces.iter().copied(), &limits);
            assert_eq!(seen, expected, "round {round}: {:?}", String::from_utf8_lossy(&bytes));
        }
    }
}

#[test]
fn random_bytes_and_cuts_give_the_same_responses() {
    let answers = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: v\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\nuntil the end",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x01\x02\x03",
    ];
    let mut random = Random::new(0x5eed_1234_9876_0002);
    for round in 0..3000 {
        let mut bytes = Vec::new();
        for _ in 0..1 + random.below(4) {
            bytes.extend_from_slice(answers[random.below(answers.len())].as_bytes());
        }
        if random.below(3) == 0 {
            let at = random.below(bytes.len());
            bytes[at] = random.bits() as u8;
        }
        let ends = random.below(2) == 0;
        let answers_head = random.below(4) == 0;
        for limits in limits() {
            let expected = responses([&bytes[..]], answers_head, ends, &limits);
            let pieces = cut(&mut random, &bytes);
            let seen = responses(pieces.iter().copied(), answers_head, ends, &limits);
            assert_eq!(seen, expected, "round {round}: {:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
