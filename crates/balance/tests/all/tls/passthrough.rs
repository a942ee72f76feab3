//! Connections passed through, by server name, to backends that end TLS themselves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use throng_balance::{Access, AccessDetail, AccessLog, Balancer, Config};
use throng_testkit::{TempFolder, eventually};

use super::{Identity, Running, backend, dial, get, secured, serve_head, trusting};
use crate::support::unused_address;

/// The records, each as a line.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<String>>);

impl AccessLog for Log {
    fn detail(&self) -> AccessDetail {
        AccessDetail::All
    }

    fn record(&self, access: &Access<'_>) {
        let Access { server_name, is_tunnel, is_failure, backend, path, status, .. } = access;
        // Only Linux counts the bytes of what is not read here.
        let has_bytes = match cfg!(target_os = "linux") {
            true => access.bytes_in > Some(100) && access.bytes_out > Some(100),
            false => access.bytes_in.is_none() && access.bytes_out.is_none(),
        };
        let text = format!(
            "{server_name:?} {is_tunnel} {is_failure} {} {path:?} {status:?} {has_bytes} {}",
            backend.is_some(),
            access.reason
        );
        self.0.lock().unwrap().push(text);
    }
}

/// A backend with its own TLS that reads its client's stream to the end and then sends it back
/// reversed.
fn turning(identity: &Identity, has_proxy: bool) -> SocketAddr {
    let config = identity.server_config();
    let (address, said) = backend(move |mut socket| {
        if has_proxy {
            let mut proxy = [0; 28];
            socket.read_exact(&mut proxy).unwrap();
            assert_eq!(&proxy[..12], b"\r\n\r\n\0\r\nQUIT\n");
        }
        let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), socket);
        let mut bytes = Vec::new();
        if tls.read_to_end(&mut bytes).is_ok() {
            bytes.reverse();
            let _ = tls.write_all(&bytes);
            tls.conn.send_close_notify();
            let _ = tls.conn.complete_io(&mut tls.sock);
        }
        String::new()
    });
    std::mem::forget(said);
    address
}

/// Starts a balancer that passes every name through to one backend.
fn passing(backend: SocketAddr, folder: &TempFolder, setting: &str) -> Running {
    passing_with(backend, folder, setting, None)
}

/// Starts a balancer that passes every name through, with a log.
fn passing_with(
    backend: SocketAddr,
    folder: &TempFolder,
    setting: &str,
    log: Option<Arc<dyn AccessLog>>,
) -> Running {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nshards = 1\nbackends = [\"{backend},passthrough=*\"]\n\
         {setting}\n"
    );
    let Some(log) = log else { return Running::start(&text, folder) };
    let file = folder.join("balance.toml").display().to_string();
    let config = Config::parse(&text, &file).unwrap();
    Running(Balancer::start_with_access_log(config, log).unwrap())
}

/// Sends `bytes`, ends the stream, and returns what comes back until its end.
fn turned(client: &mut super::TlsClient, bytes: &[u8]) -> Vec<u8> {
    client.write_all(bytes).unwrap();
    client.conn.send_close_notify();
    while client.conn.wants_write() {
        client.conn.write_tls(&mut client.sock).unwrap();
    }
    client.sock.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    back
}

#[test]
fn streams_pass_through_whole_beside_those_that_are_ended_here() {
    for has_proxy in [false, true] {
        let folder = TempFolder::new(&format!("through-{has_proxy}"));
        let own = Identity::new(&["balancer.example", "www.example.com"]);
        own.write(&folder, "own");
        let theirs = Identity::new(&["db.example.com", "*.example.com"]);
        let behind = turning(&theirs, has_proxy);
        let (plain, heads) = backend(|mut socket| serve_head(&mut socket));
        let text = format!(
            "listen = \"127.0.0.1:0\"\nkeep_alive = 0\nshards = 1\nbackends = [\"{plain}\", \
             {{ address = \"{behind}\", passthrough = \"*.Example.com\", send_proxy = {has_proxy} \
             }}]\n[tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n"
        );
        let file = folder.join("balance.toml").display().to_string();
        let log = Arc::new(Log::default());
        let config = Config::parse(&text, &file).unwrap();
        let access: Arc<dyn AccessLog> = log.clone();
        let running = Running(Balancer::start_with_access_log(config, access).unwrap());
        let address = running.0.addresses()[0];
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 7) as u8).collect();
        let mut expected = bytes.clone();
        expected.reverse();
        for _ in 0..3 {
            let mut client = secured(address, &theirs, "db.example.com");
            assert!(turned(&mut client, &bytes) == expected);
        }
        // The name of a certificate takes precedence over a wildcard.
        for name in ["balancer.example", "www.example.com"] {
            let answer = get(&mut secured(address, &own, name));
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            heads.recv().unwrap();
        }
        eventually("tunnels end with their streams", || {
            let row = running.0.status();
            row.backends.iter().all(|row| row.tunnels + row.requests + row.handshakes == 0)
        });
        let through = "Some(\"db.example.com\") true false true None None true ";
        let log = log.0.lock().unwrap();
        assert_eq!(log.iter().filter(|entry| *entry == through).count(), 3, "{log:?}");
        eventually("it is counted", || running.0.status().metrics.passed_through == 3);
        let rows = running.0.status().backends;
        let row = rows.iter().find(|row| row.address == behind).unwrap();
        assert_eq!(
            (row.passthrough.as_slice(), row.totals.tunnels),
            (&["*.example.com".to_owned()][..], 3)
        );
    }
}

#[test]
fn no_certificate_is_needed_and_other_clients_are_served_as_before() {
    let folder = TempFolder::new("through-alone");
    let theirs = Identity::new(&["db.example.com"]);
    let behind = turning(&theirs, false);
    let (plain, _heads) = backend(|mut socket| serve_head(&mut socket));
    let text = format!(
        "listen = \"127.0.0.1:0\"\nshards = 1\nkeep_alive = 0\nbackends = [\"{plain}\", \
         \"{behind},passthrough=db.example.com,passthrough=x.example.com\"]\n"
    );
    let running = Running::start(&text, &folder);
    let address = running.0.addresses()[0];
    let mut client = secured(address, &theirs, "db.example.com");
    assert_eq!(turned(&mut client, b"abc"), b"cba");
    let answer = get(&mut dial(address));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut stranger = secured(address, &theirs, "other.example.com");
    let refused = stranger.read(&mut [0]).unwrap_err().to_string();
    assert!(refused.contains("UnrecognisedName"), "{refused}");
}

#[test]
fn a_backend_that_does_not_accept_is_passed_over_and_without_any_the_client_is_closed() {
    let folder = TempFolder::new("through-down");
    let theirs = Identity::new(&["db.example.com"]);
    let (behind, down) = (turning(&theirs, false), unused_address());
    let config = |more: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nshards = 1\npick = \"round_robin\"\nbackends = [{more}\
             \"{down},passthrough=db.example.com\"]\n[health]\nfailures = 0\n"
        )
    };
    let running = Running::start(&config(&format!("\"{behind},passthrough=*\",")), &folder);
    // The backends have two names, so only one of them is tried.
    let mut client = secured(running.0.addresses()[0], &theirs, "db.example.com");
    assert_eq!(
        client.read(&mut [0]).map_err(|error| error.kind()),
        Err(std::io::ErrorKind::UnexpectedEof)
    );
    let running =
        Running::start(&config(&format!("\"{behind},passthrough=db.example.com\",")), &folder);
    for _ in 0..4 {
        let mut client = secured(running.0.addresses()[0], &theirs, "db.example.com");
        assert_eq!(turned(&mut client, b"abc"), b"cba");
    }
    eventually("tries are counted", || running.0.status().metrics.retries >= 1);
}

#[test]
fn a_client_whose_hello_does_not_come_is_closed() {
    let folder = TempFolder::new("through-stall");
    let theirs = Identity::new(&["db.example.com"]);
    let behind = turning(&theirs, false);
    let running = passing(behind, &folder, "timeouts.head = \"100ms\"");
    let hello = hello(&theirs, "db.example.com");
    let mut socket = dial(running.0.addresses()[0]);
    socket.write_all(&hello[..hello.len() - 1]).unwrap();
    assert_eq!(end(&mut socket), Vec::<u8>::new());
    assert_eq!(running.0.status().backends[0].totals.connects, 0);
}

/// Two balancers pass the name through to each other. Their descriptors do not run out: the circle
/// is recognized by its ClientHello, and ends as a whole.
#[test]
fn a_circle_of_balancers_that_pass_through_ends_after_a_few_rounds() {
    const ROUNDS: u64 = 8;
    let folder = TempFolder::new("through-circle");
    let theirs = Identity::new(&["db.example.com"]);
    let log = Arc::new(Log::default());
    let access: Arc<dyn AccessLog> = log.clone();
    let text = "max_connections = 200";
    let one = passing_with(unused_address(), &folder, text, Some(access));
    let address = one.0.addresses()[0];
    let two = passing(address, &folder, text);
    let names = vec!["db.example.com".to_owned()];
    one.0.add_passthrough(two.0.addresses()[0], 1, false, names).unwrap();
    let connects = || {
        let of = |it: &Running| {
            it.0.status().backends.iter().map(|row| row.totals.connects).sum::<u64>()
        };
        [&one, &two].map(of)
    };
    for time in 1..=3 {
        let mut client = dial(address);
        client.write_all(&hello(&theirs, "db.example.com")).unwrap();
        assert_eq!(end(&mut client), Vec::<u8>::new());
        assert_eq!(connects(), [ROUNDS * time; 2]);
        eventually("all rounds end, although the client stays", || {
            [&one, &two].iter().all(|it| it.0.status().metrics.connections == 0)
        });
        eventually("it is counted", || one.0.status().metrics.circles_ended == time);
    }
    assert_eq!(two.0.status().metrics.circles_ended, 0);
    let log = log.0.lock().unwrap();
    let reasons = log.iter().filter(|line| line.contains("leads back to it")).count();
    assert_eq!(reasons, 3, "{log:?}");
}

/// Reads until the stream ends, with or without an error.
fn end(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn tunnels_without_frames_stay_to_the_end_of_a_drain() {
    let folder = TempFolder::new("through-drain");
    let theirs = Identity::new(&["db.example.com"]);
    let config = theirs.server_config();
    let (behind, _said) = backend(move |socket| {
        let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), socket);
        let mut byte = [0];
        while tls.read_exact(&mut byte).is_ok() && tls.write_all(&byte).is_ok() {}
        String::new()
    });
    let running = passing(behind, &folder, "");
    let mut client = secured(running.0.addresses()[0], &theirs, "db.example.com");
    let mut echo = |byte: u8| {
        client.write_all(&[byte])?;
        let mut back = [0];
        client.read_exact(&mut back)?;
        Ok::<u8, std::io::Error>(back[0])
    };
    assert_eq!(echo(1).unwrap(), 1);
    running.0.drain(behind, Some(Duration::from_secs(3600))).unwrap();
    let swept = running.0.status().metrics.sweeps;
    eventually("event loops have taken the command", || {
        running.0.status().metrics.sweeps > swept + 2
    });
    assert_eq!(echo(2).unwrap(), 2);
    running.0.drain(behind, Some(Duration::ZERO)).unwrap();
    while echo(3).is_ok() {}
    eventually("it is counted", || running.0.status().metrics.tunnels == 0);
}

/// The ClientHello of a client that asks for that name.
fn hello(trusted: &Identity, name: &'static str) -> Vec<u8> {
    let name = ServerName::try_from(name).unwrap();
    let mut tls = ClientConnection::new(trusting(trusted), name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn a_drain_ends_half_closed_tunnels_of_both_directions() {
    for ends_client in [true, false] {
        let folder = TempFolder::new(&format!("through-half-{ends_client}"));
        let theirs = Identity::new(&["db.example.com"]);
        let hello = hello(&theirs, "db.example.com");
        let len = hello.len();
        let (behind, ended) = backend(move |mut socket| {
            socket.read_exact(&mut vec![0; len]).unwrap();
            socket.write_all(b"x").unwrap();
            if !ends_client {
                socket.shutdown(Shutdown::Write).unwrap();
                return format!("{:?}", socket.read(&mut [0]).map_err(|error| error.kind()));
            }
            assert_eq!(socket.read(&mut [0]).unwrap(), 0);
            socket.write_all(b"y").unwrap();
            // Write until the connection is gone.
            let error = loop {
                if let Err(error) = socket.write_all(b"z") {
                    break error;
                }
                std::thread::yield_now();
            };
            format!("{:?}", error.kind())
        });
        let running = passing(behind, &folder, "timeouts.half_closed = \"1h\"");
        let mut client = dial(running.0.addresses()[0]);
        client.write_all(&hello).unwrap();
        client.read_exact(&mut [0]).unwrap();
        if ends_client {
            client.shutdown(Shutdown::Write).unwrap();
            client.read_exact(&mut [0]).unwrap();
        } else {
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
        running.0.drain(behind, Some(Duration::ZERO)).unwrap();
        eventually("it has ended", || running.0.status().metrics.tunnels == 0);
        let ended = ended.recv_timeout(super::TIMEOUT).unwrap();
        assert!(!ended.starts_with("Ok"), "a reset, not an orderly end: {ended}");
        eventually("it is counted", || running.0.status().backends[0].totals.closed == 1);
    }
}

#[test]
fn a_client_whose_backend_says_nothing_is_given_up_after_the_time_of_a_handshake() {
    let folder = TempFolder::new("through-silent");
    let theirs = Identity::new(&["db.example.com"]);
    let hello = hello(&theirs, "db.example.com");
    let len = hello.len();
    let (behind, ended) = backend(move |mut socket| {
        socket.read_exact(&mut vec![0; len]).unwrap();
        format!("{:?}", socket.read(&mut [0]).map_err(|error| error.kind()))
    });
    let running = passing(behind, &folder, "timeouts.upgrade = \"100ms\"");
    let mut client = dial(running.0.addresses()[0]);
    client.write_all(&hello).unwrap();
    assert_eq!(end(&mut client), Vec::<u8>::new());
    assert_eq!(ended.recv_timeout(super::TIMEOUT).unwrap(), "Err(ConnectionReset)");
}

#[test]
fn a_backend_that_has_answered_may_be_silent_for_longer() {
    let folder = TempFolder::new("through-answered");
    let theirs = Identity::new(&["db.example.com"]);
    let hello = hello(&theirs, "db.example.com");
    let len = hello.len();
    let (behind, _ended) = backend(move |mut socket| {
        socket.read_exact(&mut vec![0; len]).unwrap();
        socket.write_all(b"x").unwrap();
        socket.read_exact(&mut [0]).unwrap();
        socket.write_all(b"y").unwrap();
        String::new()
    });
    let running = passing(behind, &folder, "timeouts.upgrade = \"100ms\"");
    let mut client = dial(running.0.addresses()[0]);
    client.write_all(&hello).unwrap();
    client.read_exact(&mut [0]).unwrap();
    // Sweeps of a tunnel are a second apart, so its first deadline has passed by the third sweep.
    let swept = running.0.status().metrics.sweeps;
    eventually("it was looked at", || running.0.status().metrics.sweeps > swept + 2);
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
fn the_end_of_grace_ends_what_is_passed_through() {
    let folder = TempFolder::new("through-grace");
    let theirs = Identity::new(&["db.example.com"]);
    let behind = turning(&theirs, false);
    let log = Arc::new(Log::default());
    let running = passing_with(behind, &folder, "", Some(log.clone()));
    let mut client = secured(running.0.addresses()[0], &theirs, "db.example.com");
    client.write_all(b"half a stream").unwrap();
    eventually("it is a tunnel", || running.0.status().metrics.tunnels == 1);
    running.0.shut_down(Duration::ZERO, Duration::from_millis(100)).unwrap();
    assert!(client.read(&mut [0]).is_err(), "a reset, not an orderly end");
    eventually("it is recorded with its bytes", || {
        *log.0.lock().unwrap() == ["Some(\"db.example.com\") true false true None None true "]
    });
}

#[test]
fn names_can_change_while_it_runs() {
    let folder = TempFolder::new("through-reload");
    let theirs = Identity::new(&["a.example.com", "b.example.com"]);
    let behind = turning(&theirs, false);
    let parse = |listen: &str, name: &str| {
        let text = format!(
            "listen = \"{listen}\"\nshards = 1\nbackends = [\"{behind},passthrough={name}\"]\n"
        );
        Config::parse(&text, &folder.join("balance.toml").display().to_string()).unwrap()
    };
    let running = Running(Balancer::start(parse("127.0.0.1:0", "a.example.com")).unwrap());
    let address = running.0.addresses()[0];
    assert_eq!(turned(&mut secured(address, &theirs, "a.example.com"), b"abc"), b"cba");
    let changes = running.0.apply(parse(&address.to_string(), "b.example.com")).unwrap();
    assert!(changes.settings, "{changes:?}");
    eventually("the new name is served", || {
        let mut client = secured(address, &theirs, "b.example.com");
        client.write_all(b"x").is_ok() && client.conn.complete_io(&mut client.sock).is_ok()
    });
    let mut client = secured(address, &theirs, "a.example.com");
    assert!(client.read(&mut [0]).is_err());
}

#[test]
fn a_backend_that_is_added_has_names_passed_through_until_it_is_removed() {
    for has_certificate in [true, false] {
        let folder = TempFolder::new(&format!("through-added-{has_certificate}"));
        Identity::new(&["balancer.example"]).write(&folder, "own");
        let theirs = Identity::new(&["db.example.com"]);
        let (behind, other) = (turning(&theirs, false), turning(&theirs, false));
        let parse = |listen: &str| {
            // Without a certificate, a name in the configuration file makes the address use TLS.
            let more = match has_certificate {
                true => format!("\"{other}\"]\n[tls]\ncert = \"own.pem\"\nkey = \"own.key\""),
                false => format!("\"{other},passthrough=x.example.com\"]"),
            };
            let text = format!("listen = \"{listen}\"\nshards = 1\nbackends = [{more}\n");
            Config::parse(&text, &folder.join("balance.toml").display().to_string()).unwrap()
        };
        let running = Running(Balancer::start(parse("127.0.0.1:0")).unwrap());
        let address = running.0.addresses()[0];
        // The client trusts only the backend's certificate.
        let is_theirs = || {
            let mut client = secured(address, &theirs, "db.example.com");
            client.conn.complete_io(&mut client.sock).map(|_| ()).map_err(|error| error.to_string())
        };
        let before = is_theirs().unwrap_err();
        let names = || vec!["DB.example.com".to_owned()];
        running.0.add_passthrough(behind, 1, false, names()).unwrap();
        eventually("the new name is served", || is_theirs().is_ok());
        let rows = running.0.status().backends;
        let row = rows.iter().find(|row| row.address == behind).unwrap();
        assert_eq!((row.passthrough.join(" "), row.source), ("db.example.com".to_owned(), "api"));
        // Reloading the configuration or the certificate files does not change it.
        let changes = running.0.apply(parse(&address.to_string())).unwrap();
        assert!(!changes.settings && changes.removed.is_empty(), "{changes:?}");
        if has_certificate {
            Identity::new(&["balancer.example"]).write(&folder, "own");
            eventually("files are read again", || {
                running.0.reload_certificates_if_changed().unwrap()
            });
        }
        assert_eq!(is_theirs(), Ok(()));
        let mut client = secured(address, &theirs, "db.example.com");
        client.write_all(b"half a stream").unwrap();
        eventually("it is a tunnel", || {
            running.0.status().backends.iter().any(|row| row.address == behind && row.tunnels == 1)
        });
        running.0.remove(behind, Some(true)).unwrap();
        eventually("its name is as before", || is_theirs() == Err(before.clone()));
        // Again, starting from nothing.
        eventually("it is gone", || running.0.status().backends.len() == 1);
        running.0.add_passthrough(behind, 1, false, names()).unwrap();
        eventually("the name is served again", || is_theirs().is_ok());
    }
}

#[test]
fn names_stay_with_their_backends_in_a_reload_without_a_list() {
    let folder = TempFolder::new("through-kept");
    let theirs = Identity::new(&["db.example.com"]);
    let behind = turning(&theirs, false);
    let parse = |listen: &str, more: &str| {
        let text = format!("listen = \"{listen}\"\nshards = 1\n{more}\n");
        Config::parse(&text, &folder.join("balance.toml").display().to_string()).unwrap()
    };
    let token = "[register]\ntoken = \"0123456789abcdef\"";
    let list = format!("backends = [\"{behind},passthrough=db.example.com\"]\n{token}");
    let running = Running(Balancer::start(parse("127.0.0.1:0", &list)).unwrap());
    let address = running.0.addresses()[0];
    let changes = running.0.apply(parse(&address.to_string(), token)).unwrap();
    assert!(!changes.settings, "{changes:?}");
    assert_eq!(turned(&mut secured(address, &theirs, "db.example.com"), b"abc"), b"cba");
    // The names are removed with the backends.
    let plain = unused_address();
    let without = parse(&address.to_string(), &format!("backends = [\"{plain}\"]"));
    running.0.apply(without).unwrap();
    let mut client = secured(address, &theirs, "db.example.com");
    let refused = client.read(&mut [0]).unwrap_err().to_string();
    assert!(refused.contains("UnrecognisedName"), "{refused}");
    assert!(!running.0.reload_certificates_if_changed().unwrap());
}

#[test]
fn a_name_is_not_passed_through_and_ordered_a_certificate_for() {
    let text = "backends = [\"127.0.0.1:1\", { address = \"127.0.0.1:2\", passthrough = \
                [\"*.shop.example\", \"www.shop.example\"] }]\n[tls.acme]\n\
                domains = [\"WWW.shop.example\"]\nagree_tos = true\ndir = \"acme\"\n";
    let error = Config::parse(text, "balance.toml").unwrap_err().to_string();
    let wrong = "backends[1].passthrough is \"www.shop.example\": a certificate is ordered for it";
    assert!(error.contains(wrong), "{error}");
    assert!(!error.contains("*.shop"), "{error}");
}

#[test]
fn mistakes_in_names_are_named() {
    let error = |backend: &str| {
        let text = format!("backends = [{{ address = \"127.0.0.1:1\", {backend} }}]");
        Config::parse(&text, "balance.toml").unwrap_err().to_string()
    };
    let wrong = error("passthrough = [\"db.example.com\", \"10.0.0.1\"]");
    assert!(wrong.contains("passthrough is \"10.0.0.1\": write a name such as"), "{wrong}");
    let wrong = error("passthrough = \"*\", tls = true");
    assert!(wrong.contains("TLS is passed through to it: drop tls, or passthrough"), "{wrong}");
}

/// An OpenSSL server that sends each line back reversed, or `None` if OpenSSL is not installed.
fn openssl_server(
    identity: &Identity,
    folder: &TempFolder,
    version: &str,
) -> Option<(Child, SocketAddr)> {
    let (chain, key) = identity.write(folder, "theirs");
    let mut command = Command::new("openssl");
    command.args(["s_server", "-accept", "127.0.0.1:0", "-rev", version, "-cert"]);
    command.arg(chain).arg("-key").arg(key).stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(mut child) = command.stderr(Stdio::null()).spawn() else {
        println!("skipped: openssl is not installed");
        return None;
    };
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("ACCEPT ")?.parse().ok());
    // The server writes more lines later.
    std::thread::spawn(move || lines.for_each(drop));
    Some((child, address.expect("it says where it listens")))
}

#[test]
fn a_server_of_openssl_is_passed_through_to_in_both_versions() {
    for (option, version) in [
        ("-tls1_2", rustls::ProtocolVersion::TLSv1_2),
        ("-tls1_3", rustls::ProtocolVersion::TLSv1_3),
    ] {
        let folder = TempFolder::new(&format!("through-openssl{option}"));
        let theirs = Identity::new(&["db.example.com"]);
        let Some((mut server, behind)) = openssl_server(&theirs, &folder, option) else { return };
        let running = passing(behind, &folder, "");
        for _ in 0..2 {
            let mut client = secured(running.0.addresses()[0], &theirs, "db.example.com");
            client.write_all(b"a line\n").unwrap();
            let mut back = [0; 7];
            client.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"enil a\n");
            assert_eq!(client.conn.protocol_version(), Some(version));
        }
        eventually("tunnels end with their clients", || {
            let metrics = running.0.status().metrics;
            metrics.passed_through == 2 && metrics.tunnels == 0
        });
        server.kill().unwrap();
        server.wait().unwrap();
    }
}
