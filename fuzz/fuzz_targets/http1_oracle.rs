//! httparse accepts every request that our decoder accepts, and reads the same: requests are
//! smuggled when two servers understand them differently.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::Input;
use throng_proto::http1::{Decoder, Event, Limits};

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    let mut input = Input::new(&mut bytes);
    let mut decoder = Decoder::new();
    let limits = Limits { max_body: u64::MAX, ..Limits::default() };
    let Ok(Some(Event::Head(ours))) = decoder.next_event(&mut input, &limits) else { return };
    let taken = data.len() - input.len();
    // httparse refuses later minor versions, which RFC 9110 section 2.5 treats as 1.1.
    let first_line = data[..taken].split(|byte| *byte == b'\n').find(|line| line.len() > 1);
    let known = [&b" HTTP/1.1\r"[..], b" HTTP/1.0\r"];
    if !first_line.is_some_and(|line| known.iter().any(|version| line.ends_with(version))) {
        return;
    }

    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut theirs = httparse::Request::new(&mut headers);
    assert_eq!(theirs.parse(data), Ok(httparse::Status::Complete(taken)));
    assert_eq!(Some(ours.method()), theirs.method);
    assert_eq!(Some(ours.target()), theirs.path);
    assert_eq!(Some(ours.minor_version()), theirs.version);
    assert_eq!(ours.headers().count(), theirs.headers.len());
    for (ours, theirs) in ours.headers().zip(theirs.headers) {
        assert_eq!(ours.name, theirs.name);
        let value = theirs.value.trim_ascii_end();
        assert_eq!(ours.value.trim_ascii_end(), value);
    }
});
