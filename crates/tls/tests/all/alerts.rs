//! Alerts of a client at each point of its connection.

use std::io::Write;

use throng_io::{ConnId, Driver, TlsFailure};

use crate::rig::{Rig, Sealer, finished, received};
use crate::support::{VERSIONS, client, client_config_of, hear, said};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

const CLOSE_NOTIFY: &[u8] = &[1, 0];
/// A warning that each version ignores.
const USER_CANCELED: &[u8] = &[1, 90];
const INTERNAL_ERROR: &[u8] = &[2, 80];

/// Closes a connection; returns what the client gets until the end.
fn rest(rig: &mut Rig, id: ConnId, socket: &mut std::net::TcpStream) -> Vec<u8> {
    rig.driver.close(id);
    let mut all = Vec::new();
    loop {
        let bytes = rig.until_read(socket);
        if bytes.is_empty() {
            return all;
        }
        all.extend(bytes);
    }
}

#[test]
fn rfc8446_5_an_alert_before_the_whole_client_hello_is_not_expected() {
    let hello = said(&mut client(client_config_of(&VERSIONS)));
    let half = [&[HANDSHAKE, 3, 1, 0, 100], &hello[5..105]].concat();
    for before in [&[][..], &half] {
        let mut rig = Rig::new();
        let (id, mut socket) = rig.dial(rig.secured);
        let input = [before, &[ALERT, 3, 3, 0, 2, 2, 40]].concat();
        socket.write_all(&input).unwrap();
        assert_eq!(rig.until(finished), id);
        assert!(rig.driver.was_truncated(id));
        let unexpected_message = [ALERT, 3, 3, 0, 2, 2, 10];
        assert_eq!(rest(&mut rig, id, &mut socket), unexpected_message, "{}", before.len());
        let failed = rig.server.stats().failed;
        assert_eq!(failed[TlsFailure::NotTls.index()], 1);
        assert_eq!(failed.iter().sum::<u64>(), 1);
    }
}

#[test]
fn an_alert_within_a_handshake_fails_it_and_is_not_answered() {
    for version in VERSIONS {
        let mut rig = Rig::new();
        let (id, mut socket) = rig.dial(rig.secured);
        let mut tls = client(client_config_of(&[version]));
        socket.write_all(&said(&mut tls)).unwrap();
        while said(&mut tls).is_empty() {
            let bytes = rig.until_read(&mut socket);
            hear(&mut tls, &bytes).unwrap();
        }
        // The client has no certificate of this authority.
        socket.write_all(&[ALERT, 3, 3, 0, 2, 2, 48]).unwrap();
        assert_eq!(rig.until(finished), id);
        assert!(rig.driver.was_truncated(id));
        assert_eq!(rest(&mut rig, id, &mut socket), b"", "{version:?}");
        let failed = rig.server.stats().failed;
        assert_eq!(failed[TlsFailure::Alert(48).index()], 1, "{version:?}");
        assert_eq!(failed.iter().sum::<u64>(), 1);
    }
}

/// The end of the session.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    /// The session goes on.
    None,
    /// The client has ended its stream; our stream is open.
    Closed,
    /// The client has ended the session.
    Aborted,
    /// We end the session, with an alert.
    Refused,
}

/// The records that a client sends together, the data in them, and how they end the session.
struct Row {
    records: &'static [(u8, &'static [u8])],
    data: &'static [u8],
    ending: Ending,
}

const fn row(records: &'static [(u8, &'static [u8])], data: &'static [u8], ending: Ending) -> Row {
    Row { records, data, ending }
}

static BOTH: &[Row] = &[
    row(&[(ALERT, INTERNAL_ERROR)], b"", Ending::Aborted),
    row(&[(DATA, b"data"), (ALERT, INTERNAL_ERROR)], b"data", Ending::Aborted),
    row(&[(ALERT, INTERNAL_ERROR), (DATA, b"data")], b"", Ending::Aborted),
    row(&[(ALERT, INTERNAL_ERROR), (ALERT, CLOSE_NOTIFY)], b"", Ending::Aborted),
    row(&[(ALERT, USER_CANCELED), (DATA, b"data")], b"data", Ending::None),
    row(&[(DATA, b"da"), (ALERT, USER_CANCELED), (DATA, b"ta")], b"data", Ending::None),
    row(&[(ALERT, USER_CANCELED), (ALERT, CLOSE_NOTIFY)], b"", Ending::Closed),
    row(&[(DATA, b"data"), (ALERT, CLOSE_NOTIFY)], b"data", Ending::Closed),
    row(&[(ALERT, CLOSE_NOTIFY), (ALERT, INTERNAL_ERROR)], b"", Ending::Closed),
    row(&[(ALERT, CLOSE_NOTIFY), (ALERT, CLOSE_NOTIFY)], b"", Ending::Closed),
    row(&[(ALERT, CLOSE_NOTIFY), (DATA, b"data")], b"", Ending::Closed),
    // An alert may not be empty, cut, or together with others in a record.
    row(&[(DATA, b"data"), (ALERT, b"")], b"data", Ending::Refused),
    row(&[(ALERT, &[2]), (ALERT, &[80])], b"", Ending::Refused),
    row(&[(ALERT, &[1, 90, 1, 90]), (DATA, b"data")], b"", Ending::Refused),
];

static TLS13: &[Row] = &[
    // A KeyUpdate begins, and the next record would have to be its second half.
    row(&[(HANDSHAKE, &[24, 0]), (ALERT, INTERNAL_ERROR)], b"", Ending::Refused),
    row(&[(HANDSHAKE, &[24, 0]), (ALERT, CLOSE_NOTIFY)], b"", Ending::Refused),
    // All alerts but these two are fatal, at any level.
    row(&[(ALERT, &[1, 100]), (DATA, b"data")], b"", Ending::Aborted),
];

static TLS12: &[Row] = &[
    // A renegotiation is refused with a warning, and the session goes on: here it ends at once.
    row(&[(HANDSHAKE, &[1, 0, 0, 0]), (ALERT, INTERNAL_ERROR)], b"", Ending::Aborted),
    row(&[(ALERT, &[1, 100]), (DATA, b"data")], b"data", Ending::None),
    row(&[(ALERT, &[3, 80]), (DATA, b"data")], b"", Ending::Refused),
];

#[test]
fn rfc8446_6_alerts_end_established_sessions_as_they_say() {
    for (version, own, overhead) in [(VERSIONS[0], TLS13, 1 + 16), (VERSIONS[1], TLS12, 8 + 16)] {
        for (at, Row { records, data, ending }) in BOTH.iter().chain(own).enumerate() {
            let name = format!("{version:?}, {at}: {records:?}");
            let mut rig = Rig::new();
            let mut peer = rig.pair_with(client_config_of(&[version]));
            assert!(rig.send(peer.id, b"tickets come before it"));
            rig.until_heard(&mut peer).unwrap();
            let (mut sealer, mut socket, id) = (Sealer::of(peer.tls), peer.socket, peer.id);
            let seal = |(content_type, content): &(u8, &[u8])| sealer.seal(*content_type, content);
            let input: Vec<u8> = records.iter().flat_map(seal).collect();
            socket.write_all(&input).unwrap();

            let (mut came, mut is_finished) = (Vec::new(), false);
            while came.len() < data.len() || (*ending != Ending::None && !is_finished) {
                for seen in rig.turn() {
                    assert!(!is_finished, "{name}: {seen:?} after the end");
                    came.extend(received(&seen).unwrap_or_default());
                    is_finished = finished(&seen) == Some(id);
                }
            }
            assert_eq!(rig.turn(), [], "{name}");
            assert_eq!((came.as_slice(), is_finished), (*data, *ending != Ending::None), "{name}");
            let is_truncated = matches!(ending, Ending::Aborted | Ending::Refused);
            assert_eq!(rig.driver.was_truncated(id), is_truncated, "{name}");

            // An answer leaves only if the session goes on, and an alert only if we send it.
            assert!(rig.send(id, b"answer"), "{name}");
            let (answer, alert) = (5 + b"answer".len() + overhead, 5 + 2 + overhead);
            let expected = match ending {
                Ending::None | Ending::Closed => answer + alert,
                Ending::Aborted => 0,
                Ending::Refused => alert,
            };
            assert_eq!(rest(&mut rig, id, &mut socket).len(), expected, "{name}");
        }
    }
}
