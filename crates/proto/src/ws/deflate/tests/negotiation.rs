//! [RFC 7692 section 7.1](https://www.rfc-editor.org/rfc/rfc7692#section-7.1).

use super::super::{Agreed, BadAnswer, MalformedOffer, Mode, Policy, Settings};
use crate::ws::handshake::{
    BadResponse, Key, Refusal, check_response_with, encode_request_with, encode_response_with,
};

const NAME: &str = "Sec-WebSocket-Extensions";

pub(super) fn policy(settings: Settings) -> Policy {
    Settings { enabled: true, ..settings }.check().unwrap().unwrap()
}

fn shared() -> Policy {
    policy(Settings::default())
}

fn window(bits: u8) -> Policy {
    policy(Settings { mode: Mode::Window { bits }, ..Settings::default() })
}

/// Returns a server's answer to these values of the header; empty if it declines.
fn answer(policy: Policy, offers: &[&str]) -> String {
    let headers: Vec<_> = offers.iter().map(|value| (NAME, *value)).collect();
    let accepted = policy.accept(&headers[..]).unwrap();
    accepted.map_or_else(String::new, |accepted| accepted.answer.to_string())
}

fn accepted(policy: Policy, offer: &str) -> Agreed {
    policy.accept(&[(NAME, offer)][..]).unwrap().unwrap().agreed
}

fn checked(policy: Policy, answer: &str) -> Result<Option<Agreed>, BadAnswer> {
    policy.check_answer(&[(NAME, answer)][..])
}

const SHARED: &str = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

#[test]
fn rfc7692_7_1_offers_that_are_accepted() {
    for (offer, expected) in [
        ("permessage-deflate", ""),
        (" permessage-deflate ", ""),
        ("permessage-deflate; client_max_window_bits", ""),
        ("permessage-deflate; server_no_context_takeover", ""),
        ("permessage-deflate; client_no_context_takeover", ""),
        ("permessage-deflate; server_max_window_bits=10", "; server_max_window_bits=10"),
        ("permessage-deflate; server_max_window_bits=\"9\"", "; server_max_window_bits=9"),
        ("permessage-deflate; server_max_window_bits=\"1\\5\"", "; server_max_window_bits=15"),
        ("permessage-deflate;client_max_window_bits=8", "; client_max_window_bits=8"),
        ("permessage-deflate;client_max_window_bits=15", "; client_max_window_bits=15"),
        (
            "permessage-deflate; client_max_window_bits=12; server_max_window_bits=11; \
             server_no_context_takeover; client_no_context_takeover",
            "; server_max_window_bits=11; client_max_window_bits=12",
        ),
    ] {
        assert_eq!(answer(shared(), &[offer]), format!("{SHARED}{expected}"), "{offer}");
    }
}

#[test]
fn rfc7692_7_1_offers_that_are_declined() {
    for offer in [
        "",
        "permessage-bzip2",
        "x-webkit-deflate-frame",
        "Permessage-Deflate2",
        // Unknown parameters, and parameters of the other extension.
        "permessage-deflate; unknown",
        "permessage-deflate; window_bits=10",
        "permessage-deflate; server_no_context_takeover; unknown=1",
        // Repeated parameters.
        "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
        "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
        "permessage-deflate; server_max_window_bits=10; server_max_window_bits=10",
        "permessage-deflate; client_max_window_bits; client_max_window_bits",
        "permessage-deflate; client_max_window_bits; client_max_window_bits=10",
        // Unexpected values, and missing ones.
        "permessage-deflate; server_no_context_takeover=1",
        "permessage-deflate; client_no_context_takeover=true",
        "permessage-deflate; server_max_window_bits",
        // 8 bits for us.
        "permessage-deflate; server_max_window_bits=8",
    ] {
        assert_eq!(answer(shared(), &[offer]), "", "{offer}");
        assert_eq!(answer(window(10), &[offer]), "", "{offer}");
    }
}

#[test]
fn rfc7692_7_1_2_bits_are_8_to_15_without_leading_zeros() {
    let bad =
        ["0", "7", "16", "08", "010", "150", "+9", "-9", "9.0", "x", "1", "99999999999", "1a"];
    for bits in bad {
        for side in ["server", "client"] {
            let offer = format!("permessage-deflate; {side}_max_window_bits={bits}");
            assert_eq!(answer(shared(), &[&offer]), "", "{offer}");
            assert_eq!(checked(shared(), &offer), Err(BadAnswer::Parameter), "{offer}");
        }
    }
}

#[test]
fn rfc7692_7_1_the_first_acceptable_offer_wins() {
    let several = "permessage-deflate; server_max_window_bits=8, foo; bar=\"baz\", \
                   permessage-deflate; server_max_window_bits=10, permessage-deflate";
    let ten = format!("{SHARED}; server_max_window_bits=10");
    assert_eq!(answer(shared(), &[several]), ten);
    let lines =
        ["foo, permessage-deflate; x", "permessage-deflate; server_max_window_bits=10", "b"];
    assert_eq!(answer(shared(), &lines), ten);
    assert_eq!(answer(shared(), &["permessage-deflate;x", "permessage-deflate"]), SHARED);
    assert_eq!(answer(shared(), &[]), "");
}

#[test]
fn rfc6455_9_1_malformed_header_is_refused_with_400() {
    for bad in ["permessage-deflate;", "permessage-deflate; =1", "permessage-deflate, a b"] {
        let refused = shared().accept(&[(NAME, "permessage-deflate"), (NAME, bad)][..]);
        assert_eq!(refused, Err(MalformedOffer), "{bad}");
        assert_eq!(Refusal::from(MalformedOffer).status(), 400);
    }
}

#[test]
fn rfc7692_7_1_1_1_server_no_context_takeover() {
    let agreed = accepted(shared(), "permessage-deflate");
    assert_eq!((agreed.our_history_bits, agreed.peer_history_bits), (None, None));
    let agreed = accepted(window(12), "permessage-deflate; client_max_window_bits");
    assert_eq!((agreed.our_history_bits, agreed.peer_history_bits), (Some(12), Some(12)));
    // A requirement must be accepted.
    let offer = "permessage-deflate; client_max_window_bits; server_no_context_takeover";
    assert_eq!(accepted(window(12), offer).our_history_bits, None);
    assert_eq!(
        answer(window(12), &[offer]),
        "permessage-deflate; server_no_context_takeover; client_max_window_bits=12"
    );
}

/// The client's own parameter is a hint that it follows regardless of the answer.
#[test]
fn rfc7692_7_1_1_2_client_no_context_takeover() {
    let offer = "permessage-deflate; client_no_context_takeover";
    let agreed = accepted(window(15), offer);
    assert_eq!((agreed.our_history_bits, agreed.peer_history_bits), (Some(15), None));
    assert_eq!(answer(window(15), &[offer]), offer);
    let asks = policy(Settings {
        mode: Mode::Window { bits: 15 },
        client_no_context_takeover: Some(true),
        ..Settings::default()
    });
    assert_eq!(answer(asks, &["permessage-deflate"]), offer);
}

#[test]
fn rfc7692_7_1_2_1_server_max_window_bits() {
    let eleven = policy(Settings {
        server_max_window_bits: 11,
        server_no_context_takeover: Some(false),
        mode: Mode::Window { bits: 15 },
        ..Settings::default()
    });
    for (offered, ours) in [("=15", 11), ("=12", 11), ("=11", 11), ("=10", 10), ("=9", 9)] {
        let offer = format!("permessage-deflate; server_max_window_bits{offered}");
        let expected = format!("permessage-deflate; server_max_window_bits={ours}");
        assert_eq!(answer(eleven, &[&offer]), expected);
        let agreed = accepted(eleven, &offer);
        assert_eq!((agreed.our_window_bits, agreed.our_history_bits), (ours, Some(ours)));
    }
    // It may also be sent unrequested.
    let expected = "permessage-deflate; server_max_window_bits=11";
    assert_eq!(answer(eleven, &["permessage-deflate"]), expected);
    // We may keep less than what is negotiated.
    let agreed = accepted(window(10), "permessage-deflate");
    assert_eq!((agreed.our_window_bits, agreed.our_history_bits), (15, Some(10)));
}

/// Without a value it is an offer, which must not be echoed unchanged; and if it was not offered,
/// it must not be in the answer.
#[test]
fn rfc7692_7_1_2_2_client_max_window_bits() {
    let ten = window(10);
    for (offered, answered, bits) in [
        ("", "=10", 10),
        ("=15", "=10", 10),
        ("=10", "=10", 10),
        ("=9", "=9", 9),
        // The client may use 9 nevertheless, so 9 are kept.
        ("=8", "=8", 9),
    ] {
        let offer = format!("permessage-deflate; client_max_window_bits{offered}");
        let expected = format!("permessage-deflate; client_max_window_bits{answered}");
        assert_eq!(answer(ten, &[&offer]), expected);
        assert_eq!(accepted(ten, &offer).peer_history_bits, Some(bits));
    }
    // The client may use 15 then, for which there is no space, so it must not keep a context.
    let expected = "permessage-deflate; client_no_context_takeover";
    assert_eq!(answer(ten, &["permessage-deflate"]), expected);
    let agreed = accepted(ten, "permessage-deflate");
    assert_eq!((agreed.peer_history_bits, agreed.peer_window_bits), (None, 15));
    assert_eq!(answer(window(15), &["permessage-deflate"]), "permessage-deflate");
    assert_eq!(accepted(window(15), "permessage-deflate").peer_history_bits, Some(15));
}

#[test]
fn rfc7692_7_1_offers_of_a_client() {
    assert_eq!(shared().offer().to_string(), format!("{SHARED}; client_max_window_bits"));
    assert_eq!(
        window(10).offer().to_string(),
        "permessage-deflate; server_max_window_bits=10; client_max_window_bits"
    );
    let small =
        Settings { client_max_window_bits: 9, server_max_window_bits: 12, ..Settings::default() };
    assert_eq!(
        policy(small).offer().to_string(),
        format!("{SHARED}; server_max_window_bits=12; client_max_window_bits=9")
    );
}

#[test]
fn rfc7692_7_1_answers_that_are_accepted() {
    assert_eq!(shared().check_answer(&[("Server", "x")][..]), Ok(None), "it declined");
    assert_eq!(checked(shared(), ""), Ok(None));
    let agreed = checked(shared(), SHARED).unwrap().unwrap();
    assert_eq!((agreed.our_window_bits, agreed.peer_window_bits), (15, 15));
    assert_eq!((agreed.our_history_bits, agreed.peer_history_bits), (None, None));
    for (answer, ours, peers) in [
        ("server_max_window_bits=10", (15, Some(10)), (10, Some(10))),
        ("server_max_window_bits=8", (15, Some(10)), (8, Some(9))),
        ("server_max_window_bits=\"9\"; client_max_window_bits=\"9\"", (9, Some(9)), (9, Some(9))),
        // They may also be sent unrequested (RFC 7692 section 7.1.1.1, RFC 7692 section 7.1.1.2).
        ("server_max_window_bits=9; client_no_context_takeover", (15, None), (9, Some(9))),
        ("server_max_window_bits=9; server_no_context_takeover", (15, Some(10)), (9, None)),
        ("server_max_window_bits=9; client_max_window_bits=12", (12, Some(10)), (9, Some(9))),
    ] {
        let agreed =
            checked(window(10), &format!("permessage-deflate; {answer}")).unwrap().unwrap();
        assert_eq!((agreed.our_window_bits, agreed.our_history_bits), ours, "{answer}");
        assert_eq!((agreed.peer_window_bits, agreed.peer_history_bits), peers, "{answer}");
    }
}

#[test]
fn rfc7692_7_1_answers_that_fail_the_connection() {
    let small = Settings { client_max_window_bits: 9, ..Settings::default() };
    for (policy, answer, why) in [
        (shared(), "permessage-bzip2", BadAnswer::Extension),
        (shared(), "permessage-deflate, permessage-deflate", BadAnswer::Extension),
        (shared(), "permessage-deflate, foo", BadAnswer::Extension),
        (shared(), "permessage-deflate; unknown", BadAnswer::Parameter),
        (shared(), "permessage-deflate; server_no_context_takeover=1", BadAnswer::Parameter),
        (shared(), "permessage-deflate; server_max_window_bits", BadAnswer::Parameter),
        (shared(), "permessage-deflate; client_max_window_bits", BadAnswer::Parameter),
        (
            shared(),
            "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
            BadAnswer::Parameter,
        ),
        (shared(), "permessage-deflate; client_max_window_bits=8", BadAnswer::Window),
        (policy(small), "permessage-deflate; client_max_window_bits=10", BadAnswer::Ignored),
        // We offered no context, and keep none.
        (shared(), "permessage-deflate; client_no_context_takeover", BadAnswer::Ignored),
        // We required 10 bits.
        (window(10), "permessage-deflate", BadAnswer::Ignored),
        (window(10), "permessage-deflate; server_max_window_bits=11", BadAnswer::Ignored),
        (shared(), "permessage-deflate;", BadAnswer::Malformed),
        (shared(), "permessage-deflate; a=\"", BadAnswer::Malformed),
    ] {
        assert_eq!(checked(policy, answer), Err(why), "{answer}");
    }
}

/// With any settings of both, a client accepts a server's answer to its offer.
#[test]
fn both_roles_agree_with_each_other() {
    let mut policies = vec![shared()];
    for bits in 9..=15 {
        policies.push(window(bits));
        for limit in 9..=15 {
            for (server_max_window_bits, client_max_window_bits) in [(limit, 15), (15, limit)] {
                for takeover in [None, Some(true)] {
                    policies.push(policy(Settings {
                        mode: Mode::Window { bits },
                        server_max_window_bits,
                        client_max_window_bits,
                        server_no_context_takeover: takeover,
                        client_no_context_takeover: takeover,
                        ..Settings::default()
                    }));
                }
            }
        }
    }
    let key = Key::new(*b"the sample nonce");
    for client in &policies {
        for server in &policies {
            let offer = client.offer().to_string();
            let at_server = server.accept(&[(NAME, &offer)][..]).unwrap().unwrap();
            let at_client = checked(*client, &at_server.answer.to_string()).unwrap().unwrap();
            let at_server = at_server.agreed;
            assert!(at_server.our_window_bits <= at_client.peer_window_bits, "{offer}");
            assert!(at_client.our_window_bits <= at_server.peer_window_bits, "{offer}");
            // A sender that uses a context finds it kept.
            for (sender, receiver) in [(at_server, at_client), (at_client, at_server)] {
                if let Some(bits) = sender.our_history_bits {
                    assert!(receiver.peer_history_bits >= Some(bits), "{offer}");
                }
            }
        }
    }
    let mut out = Vec::new();
    encode_request_with(
        "h",
        "/",
        &key,
        &["chat"],
        Some(&shared().offer()),
        &[("A", "b")],
        &mut out,
    )
    .unwrap();
    let request = String::from_utf8(out).unwrap();
    assert!(request.ends_with(&format!(
        "Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Extensions: {SHARED}; \
         client_max_window_bits\r\nA: b\r\n\r\n"
    )));
}

#[test]
fn rfc7692_5_the_answer_is_in_the_response() {
    let key = Key::new(*b"the sample nonce");
    let accepted = shared().accept(&[(NAME, "permessage-deflate")][..]).unwrap().unwrap();
    let mut out = Vec::new();
    encode_response_with(&key.accept(), Some("chat"), Some(&accepted.answer), &mut out).unwrap();
    let response = String::from_utf8(out).unwrap();
    assert!(response.ends_with(&format!(
        "Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Extensions: {SHARED}\r\n\r\n"
    )));
    let headers: Vec<_> = response.lines().filter_map(|line| line.split_once(": ")).collect();
    let opened = check_response_with(101, &headers[..], &key, &["chat"], Some(&shared())).unwrap();
    assert_eq!(opened.subprotocol, Some("chat"));
    assert!(opened.deflate.is_some());
    let not_asked = check_response_with(101, &headers[..], &key, &["chat"], None);
    assert_eq!(not_asked, Err(BadResponse::Extension));
    let other = check_response_with(101, &headers[..], &key, &["chat"], Some(&window(10)));
    assert_eq!(other, Err(BadResponse::Deflate(BadAnswer::Ignored)));
}
