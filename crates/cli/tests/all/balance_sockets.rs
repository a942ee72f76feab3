//! `throng balance` on sockets that the service manager opened.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use crate::support::{Client, Got, Served, dial, exchange};

/// The shell moves the listener from standard input to descriptor 3, as a service manager would.
fn balance(listener: &TcpListener, words: &[&str]) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3<&0 </dev/null", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_throng")).args(["balance", "--shards", "2"]).args(words);
    command.stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn stop(process: &Child) {
    let kill = format!("kill -TERM {}", process.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

fn first_line(process: &mut Child) -> String {
    let mut line = String::new();
    let mut out = BufReader::new(process.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    // The rest is read to its end, so that the process is not blocked.
    std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    line
}

#[test]
fn it_accepts_on_a_socket_that_the_service_manager_opened() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (listen, backend) = (address.to_string(), served.addresses[0].to_string());
    let words = ["--listen", &listen, "--backend", &backend, "--set", "shutdown.window=0"];
    let mut process = balance(&listener, &words);
    assert_eq!(first_line(&mut process).trim_end(), format!("throng balances on http://{address}"));
    let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for _ in 0..8 {
        assert_eq!(exchange(&mut dial(address), request).status(), 200);
    }
    let mut client = Client::connect(address, "/echo");
    client.send_text("through");
    assert_eq!(client.next(), Got::Text("through".into()));
    drop(client);
    stop(&process);
    assert_eq!(process.wait().unwrap().code(), Some(0));
    // The socket is still open: the next process serves clients that connect before its start.
    let waiting = std::thread::spawn(move || exchange(&mut dial(address), request).status());
    let mut next = balance(&listener, &words);
    assert!(first_line(&mut next).starts_with("throng balances on "));
    assert_eq!(waiting.join().unwrap(), 200);
    stop(&next);
    next.wait().unwrap();
}

#[test]
fn a_socket_at_another_address_is_refused_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let words = ["--listen", "127.0.0.1:0", "--backend", "127.0.0.1:9"];
    let output = balance(&listener, &words).wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{errors}");
    let what = format!("the service manager has passed on {address}, which listen does not have");
    assert!(errors.contains(&what), "{errors}");
}
