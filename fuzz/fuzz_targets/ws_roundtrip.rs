//! Encoded messages, in fragments and with pings between them, decode to the original, in both
//! roles.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::Input;
use throng_proto::ws::{
    Decoder, Event, Limits, Opcode, Role, encode, encode_header, encode_masked,
};

fn frame(role: Role, opcode: Opcode, fin: bool, payload: &[u8], key: [u8; 4], out: &mut Vec<u8>) {
    match (role, fin) {
        (Role::Server, true) => encode_masked(opcode, payload, key, out),
        (Role::Client, true) => encode(opcode, payload, out),
        (Role::Server, false) => {
            out.extend_from_slice(&encode_header(opcode, fin, payload.len() as u64, Some(key)));
            out.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
        }
        (Role::Client, false) => {
            out.extend_from_slice(&encode_header(opcode, fin, payload.len() as u64, None));
            out.extend_from_slice(payload);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((plan, payload)) = data.split_first_chunk::<9>() else { return };
    let [k0, k1, k2, k3, fragments, ping, text, cut, times] = *plan;
    let key = [k0, k1, k2, k3];
    let ping = &payload[..usize::from(ping % 126).min(payload.len())];
    // Long payloads reach the other length formats and the wide loops.
    let mut payload = payload.repeat(1 + usize::from(times) * 4);
    payload.truncate(1 << 20);
    let text = str::from_utf8(&payload).ok().filter(|_| text % 2 == 0);
    let first = if text.is_some() { Opcode::Text } else { Opcode::Binary };
    for role in [Role::Server, Role::Client] {
        let mut bytes = Vec::new();
        let size = payload.len() / (1 + usize::from(fragments)) + 1;
        let mut pieces = payload.chunks(size).peekable();
        let mut opcode = first;
        let mut pings = 0;
        loop {
            let piece = pieces.next().unwrap_or_default();
            let fin = pieces.peek().is_none();
            frame(role, opcode, fin, piece, key, &mut bytes);
            if fin {
                break;
            }
            frame(role, Opcode::Ping, true, ping, key, &mut bytes);
            pings += 1;
            opcode = Opcode::Continuation;
        }
        let mut decoder = Decoder::new(role);
        let mut messages = 0;
        let mut lent = bytes.clone();
        for read in lent.chunks_mut(1 + usize::from(cut) * 16) {
            let mut input = Input::new(read);
            while let Some(event) = decoder.next_event(&mut input, &Limits::default()).unwrap() {
                match event {
                    Event::Ping(got) => {
                        assert_eq!(got, ping);
                        pings -= 1;
                        continue;
                    }
                    Event::Text(got) => assert_eq!(Some(got), text),
                    Event::Binary(got) => assert!(text.is_none() && got == payload),
                    other => panic!("{other:?} was never sent"),
                }
                messages += 1;
            }
        }
        assert_eq!((messages, pings), (1, 0));
        assert!(decoder.is_between_messages());
    }
});
