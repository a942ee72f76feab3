//! Signals, and the end of the process.

use std::io::{BufRead, BufReader};

use throng_proto::ws::Opcode;
use throng_testkit::{Client, Got};

use super::{Served, logged_events};

#[test]
fn signals_that_ask_it_to_stop_close_sessions_with_1001_and_exit_0() {
    for signal in ["TERM", "INT", "QUIT"] {
        let served = Served::start(&[]);
        let mut clients: Vec<_> =
            (0..5).map(|_| Client::connect(served.address, "/echo")).collect();
        served.process.signal(signal);
        for client in &mut clients {
            assert_eq!(client.next().close_code(), Some(1001));
            client.send(Opcode::Close, &1001u16.to_be_bytes());
            assert_eq!(client.next(), Got::End);
        }
        let (code, _, log) = served.end();
        assert_eq!(code, Some(0), "{log}");
        let events: Vec<_> = logged_events(&log).map(|event| event["event"].clone()).collect();
        assert_eq!(events, ["listening", "channels", "drain", "stopped"]);
    }
}

#[test]
fn without_a_file_a_hangup_is_one_line() {
    let mut served = Served::start(&[]);
    let mut client = Client::connect(served.address, "/echo");
    served.process.signal("HUP");
    let log = BufReader::new(served.process.0.stderr.take().unwrap());
    let mut lines = log.lines().map_while(Result::ok);
    let reload = lines.find(|line| line.contains(r#""event":"reloaded""#)).unwrap();
    assert!(reload.contains("--config"), "{reload}");
    client.send(Opcode::Text, b"still there");
    assert_eq!(client.next(), Got::Text("still there".to_owned()));
}

#[test]
fn a_client_that_never_answers_is_reset_and_the_exit_code_is_3() {
    let served = Served::start(&["--set", "drain.grace=1s", "--set", "close_timeout=1s"]);
    let mut client = Client::connect(served.address, "/echo");
    served.process.signal("TERM");
    assert_eq!((client.next().close_code(), client.next()), (Some(1001), Got::End));
    let (code, _, errors) = served.end();
    assert_eq!(code, Some(3), "{errors}");
    assert!(errors.contains("1 connection missed the deadline"), "{errors}");
    let forced = logged_events(&errors).find(|event| event["event"] == "drain.forced").unwrap();
    assert_eq!((&forced["level"], &forced["connections"]), (&"warn".into(), &1.into()));
}

#[test]
fn a_second_signal_ends_at_once_with_130() {
    let served = Served::start(&["--set", "drain.grace=1h", "--set", "close_timeout=1h"]);
    let mut client = Client::connect(served.address, "/echo");
    served.process.signal("TERM");
    // The first signal was handled, and its shutdown waits: the client does not answer the Close.
    assert_eq!(client.next().close_code(), Some(1001));
    served.process.signal("TERM");
    assert_eq!(served.end().0, Some(130));
}
