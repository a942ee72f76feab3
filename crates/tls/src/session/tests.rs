//! Tests of established sessions: records, alerts, tickets and updates of keys.

use std::collections::HashSet;

use super::*;
use crate::record::SEALED;

const SUITE: Suite = Suite::Aes128Gcm;

/// Two sessions, each the other's peer.
fn pair() -> (Session, Session) {
    pair_of(SUITE)
}

fn pair_of(suite: Suite) -> (Session, Session) {
    let session = |send: u8, receive: u8| {
        let [send, receive] = [send, receive].map(|byte| vec![byte; suite.secret_len()]);
        Session::from_secrets(suite, &send, &receive).unwrap()
    };
    (session(1, 2), session(2, 1))
}

fn tls12_pair() -> (Session, Session) {
    tls12_pair_of(SUITE)
}

fn tls12_pair_of(suite: Suite) -> (Session, Session) {
    let session = |send: u8, receive: u8| {
        let [key, other] = [send, receive].map(|byte| vec![byte; suite.key_len()]);
        let direction = |key| Direction { key, iv: [7; 12], secret: None, sequence: 1 };
        Session::new(Version::Tls12, suite, &direction(&key), &direction(&other)).unwrap()
    };
    (session(1, 2), session(2, 1))
}

/// Opens records of the given types and contents.
fn opened(
    (mut peer, mut session): (Session, Session),
    records: &[(ContentType, &[u8])],
) -> (Opened, Vec<u8>, Session) {
    let mut input = Vec::new();
    for (kind, content) in records {
        peer.seal_one(*kind, content, &mut input).unwrap();
    }
    let opened = session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default());
    let data = input[opened.data.clone()].to_vec();
    (opened, data, session)
}

/// The test seals and opens without a session, so that the two sides cannot share a mistake.
#[test]
fn each_direction_has_its_own_key_iv_and_number() {
    let direction = |key, iv, sequence| Direction { key, iv, secret: None, sequence };
    let (ours, theirs) = (([1; 16], [3; 12], 5), ([2; 16], [4; 12], 6));
    for version in [Version::Tls12, Version::Tls13] {
        let protection = Protection { suite: SUITE, version };
        let send = direction(&ours.0, ours.1, ours.2);
        let receive = direction(&theirs.0, theirs.1, theirs.2);
        let mut session = Session::new(version, SUITE, &send, &receive).unwrap();
        let (kind, data) = DATA;

        let mut record = Vec::new();
        session.seal_one(kind, data, &mut record).unwrap();
        let mut keys = TrafficKeys::new(SUITE, &ours.0, &ours.1, None, ours.2);
        let key = keys.expand(SUITE).unwrap();
        let header = Header::decode(&record, version).unwrap().unwrap();
        let opened = protection.open(&mut keys, &key, header, &mut record);
        let (_, place) = opened.unwrap();
        assert_eq!(&record[place], data, "{version:?}");

        record.clear();
        let mut keys = TrafficKeys::new(SUITE, &theirs.0, &theirs.1, None, theirs.2);
        let key = keys.expand(SUITE).unwrap();
        protection.seal(&mut keys, &key, kind, &[data], &mut record).unwrap();
        let (mut warm, mut messages) = Default::default();
        let opened = session.open(&mut record, &mut warm, &mut messages);
        assert_eq!((opened.end, &record[opened.data]), (None, data), "{version:?}");
    }
}

const DATA: (ContentType, &[u8]) = (ContentType::ApplicationData, b"data");
const NOTHING: (ContentType, &[u8]) = (ContentType::ApplicationData, b"");

#[test]
fn data_of_several_records_is_moved_together() {
    let (opened, data, _) = opened(pair(), &[NOTHING, DATA, NOTHING, DATA, DATA]);
    assert_eq!((opened.end, data.as_slice()), (None, &b"datadatadata"[..]));
}

#[test]
fn data_before_the_end_is_kept_and_data_after_it_is_not_opened() {
    let close = (ContentType::Alert, &[1, 0][..]);
    let (opened, data, _) = opened(pair(), &[DATA, close, DATA]);
    assert_eq!((opened.end, data.as_slice()), (Some(End::CloseNotify), &b"data"[..]));
}

#[test]
fn rfc8446_6_alerts_end_the_session_or_are_ignored() {
    let peer_alert = |description| Some(End::PeerAlert(Alert(description)));
    let fatal = |alert| Some(End::Fatal(alert));
    let both = [pair as fn() -> _, tls12_pair];
    for (alert, tls13, tls12) in [
        (&[1, 0][..], Some(End::CloseNotify), Some(End::CloseNotify)),
        (&[2, 0], Some(End::CloseNotify), Some(End::CloseNotify)),
        (&[2, 40], peer_alert(40), peer_alert(40)),
        (&[1, 40], peer_alert(40), None),
        (&[1, 90], None, None),
        (&[2, 90], None, peer_alert(90)),
        (&[3, 40], peer_alert(40), fatal(Alert::ILLEGAL_PARAMETER)),
        (&[1], fatal(Alert::DECODE_ERROR), fatal(Alert::DECODE_ERROR)),
        (&[1, 0, 0], fatal(Alert::DECODE_ERROR), fatal(Alert::DECODE_ERROR)),
    ] {
        for (pair, expected) in both.into_iter().zip([tls13, tls12]) {
            let (opened, ..) = opened(pair(), &[(ContentType::Alert, alert)]);
            assert_eq!(opened.end, expected, "{alert:?}");
        }
    }
}

#[test]
fn rfc8446_4_6_3_a_key_update_is_alone_and_known() {
    let fatal = |alert| Some(End::Fatal(alert));
    for (message, expected) in [
        (&[24, 0, 0, 1, 0][..], None),
        (&[24, 0, 0, 1, 1], None),
        (&[24, 0, 0, 1, 2], fatal(Alert::ILLEGAL_PARAMETER)),
        (&[], fatal(Alert::UNEXPECTED_MESSAGE)),
        (&[24, 0, 0, 0], fatal(Alert::DECODE_ERROR)),
        (&[24, 0, 0, 2, 0, 0], fatal(Alert::DECODE_ERROR)),
        (&[24, 1, 0, 1, 0], fatal(Alert::DECODE_ERROR)),
        (&[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], fatal(Alert::UNEXPECTED_MESSAGE)),
        (&[4, 0, 0, 0], fatal(Alert::UNEXPECTED_MESSAGE)),
        (&[1, 0, 0, 0], fatal(Alert::UNEXPECTED_MESSAGE)),
    ] {
        let (opened, ..) = opened(pair(), &[(ContentType::Handshake, message)]);
        assert_eq!(opened.end, expected, "{message:?}");
        assert_eq!(opened.has_reply, message == [24, 0, 0, 1, 1]);
    }
}

#[test]
fn rfc8446_5_1_a_key_update_may_span_records() {
    let update = &[24, 0, 0, 1, 1][..];
    for (at, is_client) in (1..update.len()).flat_map(|at| [(at, false), (at, true)]) {
        let (mut peer, session) = pair();
        let mut session = if is_client { session.of_client() } else { session };
        let (mut messages, mut input) = (Messages::default(), Vec::new());
        for piece in [&update[..at], &update[at..]] {
            peer.seal_one(ContentType::Handshake, piece, &mut input).unwrap();
        }
        let opened = session.open(&mut input, &mut WarmKeys::default(), &mut messages);
        assert_eq!((opened.end, opened.has_reply), (None, true), "{at}");
        assert!(messages.is_empty());

        // Nothing may come between the records of one message.
        let (mut peer, mut session) = pair();
        let mut input = Vec::new();
        peer.seal_one(ContentType::Handshake, &update[..at], &mut input).unwrap();
        peer.seal([&b"data"[..]], &mut WarmKeys::default(), &mut input).unwrap();
        let opened = session.open(&mut input, &mut WarmKeys::default(), &mut messages);
        assert_eq!(opened.end, Some(End::Fatal(Alert::UNEXPECTED_MESSAGE)), "{at}");
    }
}

#[test]
fn rfc8446_4_6_1_a_client_takes_whole_tickets_and_a_server_none() {
    let ticket = &[4, 0, 0, 2, b'x', b'y'][..];
    let fatal = |alert| Some(End::Fatal(alert));
    for (message, expected) in [
        (ticket.to_vec(), None),
        ([ticket, ticket].concat(), None),
        // The rest of the message does not follow.
        (ticket[..5].to_vec(), fatal(Alert::UNEXPECTED_MESSAGE)),
        ([ticket, &[4, 0]].concat(), fatal(Alert::UNEXPECTED_MESSAGE)),
        (vec![4, 0, 0x40, 1], fatal(Alert::DECODE_ERROR)),
        ([ticket, &[24, 0, 0, 1, 0]].concat(), fatal(Alert::UNEXPECTED_MESSAGE)),
    ] {
        let records = [(ContentType::Handshake, &message[..]), DATA];
        let (peer, session) = pair();
        let (at_client, data, _) = opened((peer, session.of_client()), &records);
        assert_eq!(at_client.end, expected, "{message:?}");
        assert_eq!(data.is_empty(), expected.is_some());
        let (at_server, ..) = opened(pair(), &records);
        assert_eq!(at_server.end, fatal(Alert::UNEXPECTED_MESSAGE));
    }
}

#[test]
fn rfc8446_5_1_a_ticket_may_span_records() {
    let tickets = [&[4, 0, 0, 5][..], b"first", &[4, 0, 0, 6], b"second"].concat();
    for size in 1..tickets.len() {
        let (mut peer, session) = pair();
        let (mut session, mut messages) = (session.of_client(), Messages::default());
        messages.want_tickets(true);
        for (at, piece) in tickets.chunks(size).enumerate() {
            let mut input = Vec::new();
            peer.seal_one(ContentType::Handshake, piece, &mut input).unwrap();
            let opened = session.open(&mut input, &mut WarmKeys::default(), &mut messages);
            assert_eq!(opened.end, None, "{size}, {at}");
        }
        assert_eq!(messages.take_tickets(), [&b"first"[..], b"second"]);
        let mut input = Vec::new();
        peer.seal([&b"data"[..]], &mut WarmKeys::default(), &mut input).unwrap();
        let opened = session.open(&mut input, &mut WarmKeys::default(), &mut messages);
        assert_eq!((opened.end, &input[opened.data]), (None, &b"data"[..]));
    }
}

#[test]
fn rfc8446_4_6_3_one_update_answers_many_requests_and_comes_before_data() {
    let (mut peer, mut session) = pair();
    let mut input = Vec::new();
    for _ in 0..5 {
        peer.update(true, &mut input).unwrap();
    }
    assert!(session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default()).has_reply);
    let mut out = Vec::new();
    session.seal_reply(&mut out).unwrap();
    let one = out.len();
    session.seal_reply(&mut out).unwrap();
    assert_eq!(out.len(), one, "one update only");
    session.seal([&b"data"[..]], &mut WarmKeys::default(), &mut out).unwrap();
    let opened = peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default());
    assert_eq!((opened.end, opened.has_reply), (None, false));
    assert_eq!(&out[opened.data], b"data");
}

#[test]
fn records_without_data_are_not_endless() {
    for (idle, is_fatal) in [(32, false), (33, true)] {
        let mut records = vec![DATA];
        records.extend(vec![NOTHING; idle]);
        records.push(DATA);
        let (opened, ..) = opened(pair(), &records);
        assert_eq!(opened.end == Some(End::Fatal(Alert::UNEXPECTED_MESSAGE)), is_fatal);
    }
}

/// Sends `rounds` updates, each after `records` records of data; returns how many are accepted.
fn updates_taken(rounds: usize, records: usize) -> usize {
    let (mut peer, mut session) = pair();
    let (mut peer_warm, mut warm) = (WarmKeys::default(), WarmKeys::default());
    for round in 0..rounds {
        let mut input = Vec::new();
        for _ in 0..records {
            peer.seal([&b"data"[..]], &mut peer_warm, &mut input).unwrap();
        }
        peer.update(false, &mut input).unwrap();
        if let Some(end) = session.open(&mut input, &mut warm, &mut Messages::default()).end {
            assert_eq!(end, End::Fatal(Alert::UNEXPECTED_MESSAGE));
            return round;
        }
    }
    rounds
}

#[test]
fn updates_with_little_data_between_them_are_not_endless() {
    assert_eq!(updates_taken(1000, 1), usize::from(MAX_EARLY_UPDATES));
    assert_eq!(updates_taken(1000, RECORDS_PER_UPDATE as usize - 1), 1000);
}

#[test]
fn rfc5746_a_renegotiation_is_refused_once_and_then_ends_the_session() {
    let hello = (ContentType::Handshake, &[1, 0, 0, 0][..]);
    let (first, _, mut session) = opened(tls12_pair(), &[hello, DATA]);
    assert_eq!((first.end, first.has_reply), (None, true));
    let mut out = Vec::new();
    session.seal_reply(&mut out).unwrap();
    let (mut peer, _) = tls12_pair();
    assert_eq!(
        peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default()).end,
        None,
        "a warning"
    );
    let (second, ..) = opened(tls12_pair(), &[hello, hello]);
    assert_eq!(second.end, Some(End::Fatal(Alert::UNEXPECTED_MESSAGE)));
}

#[test]
fn rfc5246_7_4_only_a_renegotiation_is_refused_with_a_warning() {
    let clients = || {
        let (peer, session) = tls12_pair();
        (peer, session.of_client())
    };
    let servers = tls12_pair;
    for message in [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0], &[4, 0, 0, 0], &[20, 0, 0, 12], &[24]] {
        for (pair, asks) in [(clients as fn() -> _, 0), (servers, 1)] {
            let (opened, ..) = opened(pair(), &[(ContentType::Handshake, message)]);
            let expected = match message.first() == Some(&asks) {
                true => (None, true),
                false => (Some(End::Fatal(Alert::UNEXPECTED_MESSAGE)), false),
            };
            assert_eq!((opened.end, opened.has_reply), expected, "{message:?}, {asks}");
        }
    }
}

#[test]
fn rfc8446_5_5_our_keys_are_updated_before_their_limit() {
    let (mut peer, mut session) = pair();
    let keys = TrafficKeys::from_secret(SUITE, &[2; 32]).unwrap();
    session.tx = keys.at(UPDATE_AFTER);
    peer.rx = TrafficKeys::from_secret(SUITE, &[2; 32]).unwrap().at(UPDATE_AFTER);
    let mut out = Vec::new();
    session.seal([&b"data"[..]], &mut WarmKeys::default(), &mut out).unwrap();
    assert_eq!(session.tx.records(), 1);
    let opened = peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default());
    assert_eq!(&out[opened.data], b"data");
}

/// Everything that a session seals over the lives of several keys, including the last records
/// before an update: the first key begins shortly before its end.
#[test]
fn rfc8446_5_3_no_nonce_is_used_twice_with_a_key() {
    let suites = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    let each = suites.into_iter().flat_map(|suite| {
        [(suite, pair_of as fn(Suite) -> (Session, Session), 14), (suite, tls12_pair_of, 1)]
    });
    for (suite, pair, lives) in each {
        let near_the_end = |secret: u8| {
            let secret = vec![secret; suite.secret_len()];
            TrafficKeys::from_secret(suite, &secret).unwrap().at(UPDATE_AFTER - 300)
        };
        let (mut peer, mut session) = pair(suite);
        // An alert that does not end the session.
        let alert = if session.can_update() { Alert(90) } else { Alert::NO_RENEGOTIATION };
        if session.can_update() {
            (session.tx, peer.rx) = (near_the_end(2), near_the_end(2));
        }
        SEALED.take();
        let (mut warm, mut peer_warm) = (WarmKeys::default(), WarmKeys::default());
        let mut records = 0;
        for round in 0..2000usize {
            let mut out = Vec::new();
            let pieces = vec![&[7; 30][..]; round % 90];
            match round % 2 {
                0 => session.seal(pieces, &mut warm, &mut out).unwrap(),
                _ => session.seal_contiguous(&pieces.concat(), &mut warm, &mut out).unwrap(),
            }
            if round % 7 == 0 {
                session.seal_alert(alert, &mut out).unwrap();
            }
            if round % 157 == 0 {
                let mut asks = Vec::new();
                match session.can_update() {
                    true => peer.update(true, &mut asks).unwrap(),
                    false => peer.seal_alert(alert, &mut asks).unwrap(),
                }
                session.open(&mut asks, &mut warm, &mut Messages::default());
                session.seal_reply(&mut out).unwrap();
            }
            let before = SEALED.with_borrow(Vec::len);
            let opened = peer.open(&mut out, &mut peer_warm, &mut Messages::default());
            assert_eq!((opened.end, opened.data.len()), (None, 30 * (round % 90)), "{round}");
            assert_eq!(SEALED.with_borrow(Vec::len), before, "opening seals nothing");
            records += 1;
        }
        let sealed = SEALED.take();
        assert!(sealed.len() > records);
        let distinct: HashSet<_> = sealed.iter().collect();
        assert_eq!(distinct.len(), sealed.len());
        let keys: HashSet<_> = sealed.iter().map(|(key, _)| key).collect();
        // One key for the limit, one for each request, and more for the peer's requests.
        assert!(keys.len() >= lives, "{} keys", keys.len());
    }
}

#[test]
fn keys_without_updates_end_by_the_blocks_that_they_protect_not_by_the_records() {
    let (mut peer, mut session) = tls12_pair();
    let direction = Direction { key: &[1; 16], iv: [7; 12], secret: None, sequence: 1 << 30 };
    session.tx = TrafficKeys::new(SUITE, direction.key, &direction.iv, None, 1 << 30);
    peer.rx = TrafficKeys::new(SUITE, direction.key, &direction.iv, None, 1 << 30);
    let (mut warm, mut out) = (WarmKeys::default(), Vec::new());
    session.seal([&b"data"[..]], &mut warm, &mut out).unwrap();
    let opened = peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default());
    assert_eq!(&out[opened.data], b"data");

    let left = SUITE.max_blocks() - session.tx.count_blocks(0);
    session.tx.count_blocks(left - blocks(100));
    out.clear();
    session.seal([&[0; 100][..]], &mut warm, &mut out).unwrap();
    let outcome = session.seal([&b"one more"[..]], &mut warm, &mut out);
    assert_eq!(outcome, Err(Alert::INTERNAL_ERROR));
    let outcome = session.seal_contiguous(b"one more", &mut warm, &mut out);
    assert_eq!(outcome, Err(Alert::INTERNAL_ERROR));
}

#[test]
fn data_in_one_piece_is_sealed_as_in_several() {
    let (mut one, mut other) = (pair().1, pair().1);
    for len in [0, 1, 100, 16_383, 16_384, 16_385, 3 * 16_384 + 5] {
        let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let (mut together, mut apart) = (Vec::new(), Vec::new());
        one.seal_contiguous(&data, &mut WarmKeys::default(), &mut together).unwrap();
        other.seal(data.chunks(999), &mut WarmKeys::default(), &mut apart).unwrap();
        assert!(together == apart, "{len} bytes");
    }
}

#[test]
fn warm_keys_of_another_session_do_not_harm() {
    let mut warm = WarmKeys::default();
    for _ in 0..3 {
        for number in 0..4u8 {
            let secrets = [[number; 32], [number + 100; 32]];
            let session =
                |a: usize| Session::from_secrets(SUITE, &secrets[a], &secrets[1 - a]).unwrap();
            let (mut ours, mut peer) = (session(0), session(1));
            let mut out = Vec::new();
            ours.seal([&b"data"[..]], &mut warm, &mut out).unwrap();
            ours.update(false, &mut out).unwrap();
            ours.seal([&b"more"[..]], &mut warm, &mut out).unwrap();
            let opened = peer.open(&mut out, &mut warm, &mut Messages::default());
            assert_eq!((opened.end, &out[opened.data]), (None, &b"datamore"[..]));
        }
    }
}

#[test]
fn keys_that_do_not_come_from_their_secret_cannot_be_updated() {
    let foreign = Direction { key: &[1; 16], iv: [7; 12], secret: Some(&[9; 32]), sequence: 0 };
    let without = Direction { secret: None, ..foreign };
    let session = |send, receive| Session::new(Version::Tls13, SUITE, send, receive).unwrap();
    for (send, receive) in [(&foreign, &foreign), (&foreign, &without), (&without, &foreign)] {
        assert!(!session(send, receive).can_update());
    }
    let (peer, session) = (session(&foreign, &foreign), session(&foreign, &foreign));
    let update = (ContentType::Handshake, &[24, 0, 0, 1, 0][..]);
    let (refused, data, _) = opened((peer, session), &[DATA, update]);
    assert_eq!(refused.end, Some(End::Fatal(Alert::INTERNAL_ERROR)));
    assert_eq!(data, b"data");
}

#[test]
fn more_pieces_than_fit_in_one_list_are_sealed_in_order() {
    let (mut peer, mut session) = pair();
    let pieces: Vec<Vec<u8>> = (0..500u16).map(|at| at.to_be_bytes().to_vec()).collect();
    let mut out = Vec::new();
    session.seal(pieces.iter().map(Vec::as_slice), &mut WarmKeys::default(), &mut out).unwrap();
    let opened = peer.open(&mut out, &mut WarmKeys::default(), &mut Messages::default());
    assert_eq!(out[opened.data], pieces.concat());
}

/// Moves a session, as if to another process.
fn moved(session: Session) -> Session {
    throng_carry::thaw(&throng_carry::freeze(&session)).unwrap()
}

#[test]
fn a_session_goes_on_where_it_was_after_each_record() {
    let suites = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    let pairs = suites.map(pair_of).into_iter().chain(suites.map(tls12_pair_of));
    for (mut peer, mut session) in pairs {
        for _ in 0..4 {
            let mut input = Vec::new();
            let (kind, data) = DATA;
            peer.seal_one(kind, data, &mut input).unwrap();
            let (mut warm, mut messages) = Default::default();
            let opened = session.open(&mut input, &mut warm, &mut messages);
            assert_eq!((&input[opened.data], opened.end), (data, None));
            (peer, session) = (moved(peer), moved(session));
        }
    }
}

#[test]
fn keys_that_do_not_belong_to_their_secret_are_refused() {
    let (mut session, _) = pair();
    session.tx = TrafficKeys::new(SUITE, &[5; 16], &[6; 12], Some(&[7; 32][..]), 0);
    let bytes = throng_carry::freeze(&session);
    assert_eq!(
        throng_carry::thaw::<Session>(&bytes).err(),
        Some(throng_carry::CarryError::Malformed)
    );
}

proptest::proptest! {
    #[test]
    fn a_cut_session_is_refused(at in proptest::prelude::any::<proptest::sample::Index>()) {
        let bytes = throng_carry::freeze(&pair().0);
        let cut = &bytes[..at.index(bytes.len())];
        proptest::prop_assert!(throng_carry::thaw::<Session>(cut).is_err());
    }

    #[test]
    fn no_bytes_make_a_session_panic(
        at in proptest::prelude::any::<proptest::sample::Index>(),
        to in proptest::prelude::any::<u8>(),
    ) {
        let mut bytes = throng_carry::freeze(&pair().0);
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = throng_carry::thaw::<Session>(&bytes);
    }
}
