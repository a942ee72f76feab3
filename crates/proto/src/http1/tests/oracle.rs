//! Comparison with httparse: it accepts every head that we accept, and reads the same.

use throng_testkit::Random;

use super::cutting::CONVERSATIONS;
use super::*;

/// The first accepted head of `bytes`: its length in bytes, method, target and headers.
type Head = (usize, String, String, Vec<(String, Vec<u8>)>);

fn ours(bytes: &[u8]) -> Option<Head> {
    let mut copy = bytes.to_vec();
    let mut input = Input::new(&mut copy);
    let mut decoder = Decoder::new();
    let limits = Limits { max_body: u64::MAX, ..Limits::default() };
    let Ok(Some(Event::Head(request))) = decoder.next_event(&mut input, &limits) else {
        return None;
    };
    let headers = request.headers().map(|header| (header.name.to_owned(), header.value.to_vec()));
    let taken = bytes.len() - input.len();
    Some((taken, request.method().into(), request.target().into(), headers.collect()))
}

fn theirs(bytes: &[u8]) -> Option<Head> {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = request.parse(bytes) else { return None };
    let headers = request.headers.iter().map(|header| {
        // httparse leaves trailing white space where RFC 9110 section 5.5 requires trimming.
        (header.name.to_owned(), super::super::scan::trim_ows(header.value).to_vec())
    });
    Some((length, request.method?.into(), request.path?.into(), headers.collect()))
}

#[test]
fn httparse_reads_equally_what_we_accept() {
    let mut random = Random::new(0x5eed_1234_9876_0004);
    let mut accepted = 0;
    for round in 0..20_000 {
        let mut bytes = CONVERSATIONS[random.below(CONVERSATIONS.len())].as_bytes().to_vec();
        for _ in 0..random.below(3) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.bits() as u8,
                1 => bytes[at] = b"\r\n :\t/"[random.below(6)],
                _ => bytes.insert(at, random.bits() as u8),
            }
        }
        let Some(ours) = ours(&bytes) else { continue };
        // httparse knows two versions; RFC 9110 section 2.5 treats later ones as the latest known.
        let text = String::from_utf8_lossy(&bytes);
        let first_line = text.trim_start().lines().next().unwrap_or_default();
        if !first_line.ends_with("HTTP/1.1") && !first_line.ends_with("HTTP/1.0") {
            continue;
        }
        accepted += 1;
        assert_eq!(Some(ours), theirs(&bytes), "round {round}: {text:?}");
    }
    assert!(accepted > 1000, "only {accepted} were accepted: the test tests nothing");
}
