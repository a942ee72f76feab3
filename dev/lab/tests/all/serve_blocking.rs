//! `lab serve-blocking` over real sockets: the effect of blocking handlers on a server, and its
//! reports.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use throng_proto::ws::Opcode;
use throng_testkit::poll;

use crate::support::{Client, Got, Served, dial, exchange};

fn serve(words: &[&str]) -> Served {
    let own = ["serve-blocking", "--shards", "1", "--listen", "127.0.0.1:0"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    Served::spawn(command.args(own).args(words).stderr(Stdio::piped()))
}

fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    exchange(&mut dial(address), request).text().to_owned()
}

#[test]
fn handlers_block_where_configured_and_a_shutdown_names_those_that_do_not_return() {
    let at_once = ["--set", "drain.window=0s", "--set", "drain.grace=0s"];
    let settings = [&["--workers", "2"][..], &at_once].concat();
    let served = serve(&settings);
    for path in ["/echo", "/sleep/1", "/worker/1"] {
        let mut client = Client::connect(served.addresses[0], path);
        client.send(Opcode::Text, b"hello");
        assert_eq!(client.next(), Got::Text("hello".into()), "{path}");
    }
    for path in ["/page/1001", "/page/-1", "/page/x"] {
        assert!(get(served.addresses[0], path).contains("up to 1000"), "{path}");
    }
    assert!(get(served.addresses[0], "/metrics").contains("throng_worker_threads 2"));
    // On a busy machine the second may be over before the signal is taken.
    let is_named = (0..5).any(|_| {
        let served = serve(&settings);
        let mut client = Client::connect(served.addresses[0], "/worker/1000");
        client.send(Opcode::Text, b"hello");
        poll("a worker has it", || {
            get(served.addresses[0], "/metrics").contains("throng_worker_running 1").then_some(())
        });
        served.terminate();
        let (code, errors) = served.end();
        assert_eq!(code, Some(3), "{errors}");
        errors.contains("a handler of /worker/{ms} on a worker had not returned")
    });
    assert!(is_named);
}

#[test]
fn a_shutdown_does_not_wait_for_a_handler_that_holds_its_event_loop_and_names_it() {
    let at_once = ["--set", "drain.window=0s", "--set", "drain.grace=0s"];
    let served = serve(&at_once);
    let mut client = Client::connect(served.addresses[0], "/sleep/1000");
    // They come before the command that begins the drain, and are dealt with in one turn of a
    // minute.
    (0..60).for_each(|_| client.send(Opcode::Text, b"hello"));
    served.terminate();
    let (code, errors) = served.end();
    assert_eq!(code, Some(3), "{errors}");
    let stuck = "shard 0 did not come back from a handler of /sleep/{ms}; its 1 connection ends";
    assert!(errors.contains(stuck), "{errors}");
}

#[test]
fn a_handler_that_holds_its_event_loop_is_announced_by_its_route() {
    // An upgrade that a busy machine is slow with takes less.
    let served = serve(&["--set", "stall_warning=500ms"]);
    let mut client = Client::connect(served.addresses[0], "/sleep/1000");
    client.send(Opcode::Text, b"hello");
    assert_eq!(client.next(), Got::Text("hello".into()));
    let metrics = get(served.addresses[0], "/metrics");
    assert!(metrics.contains("throng_stalls_total{route=\"/sleep/{ms}\"} 1"), "{metrics}");
    served.terminate();
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    let (_, errors) = served.end();
    assert!(errors.contains("a handler of /sleep/{ms} held shard 0 for "), "{errors}");
    assert!(errors.contains("offload, blocking or deferred"), "{errors}");
}
