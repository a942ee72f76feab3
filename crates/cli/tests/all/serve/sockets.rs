//! Sockets that another process opened, and Unix sockets.
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Served, dial, get, throng};

/// The shell moves the listener from standard input to descriptor 3, as a service manager would.
#[test]
fn it_accepts_on_a_socket_that_the_service_manager_opened() {
    for listen in ["systemd", "fd:3"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let expected = listener.local_addr().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3<&0 </dev/null", "sh"]);
        command.arg(env!("CARGO_BIN_EXE_throng")).args(["serve", "--shards", "2"]);
        command.stdin(Stdio::from(OwnedFd::from(listener)));
        let served = Served::run(command, &["--listen", listen]);
        assert_eq!(served.address, expected);
        for _ in 0..4 {
            assert!(get(expected, "/livez").starts_with("HTTP/1.1 200"));
        }
        // It listens only on loopback, and is treated so.
        let mut stream = dial(expected);
        stream.write_all(b"GET /stats.json HTTP/1.0\r\nHost: evil.example\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(get(expected, "/stats.json").starts_with("HTTP/1.1 200"));
        served.process.signal("TERM");
        let (code, _, log) = served.end();
        assert_eq!(code, Some(0), "{log}");
    }
    let output = throng(&["serve", "--listen", "systemd"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("systemd-socket-activate"), "{errors}");
}

/// Returns the answer of the server at `path` to a request.
#[cfg(unix)]
fn get_at(path: &Path, target: &str, header: &str) -> String {
    let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    write!(stream, "GET {target} HTTP/1.0\r\nHost: example.org\r\n{header}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[cfg(unix)]
#[test]
fn it_listens_on_a_unix_socket_of_a_mode_and_removes_its_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = throng_testkit::TempFolder::new("serve");
    let path = folder.join("socket");
    // Left by a killed server.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = format!("127.0.0.1:0,unix:{}", path.display());
    let command = throng(&["serve", "--shards", "2", "--set", "unix_mode=600"]);
    let served = Served::run(command, &["--listen", &listen]);
    assert!(get_at(&path, "/livez", "").starts_with("HTTP/1.1 200"));
    // A proxy on this machine may forward requests from anywhere.
    assert!(get_at(&path, "/metrics", "").starts_with("HTTP/1.1 404"));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again =
        throng(&["serve", "--listen", &format!("unix:{}", path.display())]).output().unwrap();
    let errors = String::from_utf8(again.stderr).unwrap();
    assert!(errors.contains("another process listens there"), "{errors}");
    served.process.signal("TERM");
    let (code, _, log) = served.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!path.exists());
    let wrong = throng(&["serve", "--set", "unix_mode=rw"]).output().unwrap();
    let errors = String::from_utf8(wrong.stderr).unwrap();
    assert!(errors.contains("unix_mode is \"rw\"") && errors.contains("\"660\""), "{errors}");
}
