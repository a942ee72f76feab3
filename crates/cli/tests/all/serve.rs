//! `throng serve`, `demo` and `config show` as people and supervisors run them: the real binary,
//! its lines, signals and exit codes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use throng_proto::ws::{self, Opcode};
use throng_testkit::{Client, Got, poll};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn throng(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(words).stdin(Stdio::null());
    command
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    fn exit(&mut self) -> ExitStatus {
        poll("the process ends", || self.0.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `throng serve` on a free port.
struct Served {
    process: Running,
    address: SocketAddr,
    lines: BufReader<ChildStdout>,
}

impl Served {
    fn start(words: &[&str]) -> Self {
        let command = throng(&["serve", "--listen", "127.0.0.1:0", "--shards", "1"]);
        Self::run(command, words)
    }

    fn run(mut command: Command, words: &[&str]) -> Self {
        let mut child =
            command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let process = Running(child);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let address = line
            .strip_prefix("throng listens on http")
            .and_then(|rest| rest.trim_start_matches('s').strip_prefix("://"))
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("no address in {line:?}"));
        Self { process, address, lines }
    }

    /// The exit code, the rest of standard output, and the log.
    fn end(mut self) -> (Option<i32>, String, String) {
        let status = self.process.exit();
        let (mut out, mut errors) = (String::new(), String::new());
        self.lines.read_to_string(&mut out).unwrap();
        self.process.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), out, errors)
    }
}

/// The events of a log.
fn logged_events(log: &str) -> impl Iterator<Item = serde_json::Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The whole answer to a request.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = dial(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A page whose own name points at 127.0.0.1 is of the server's origin by all that its browser says.
#[test]
fn a_server_on_loopback_refuses_pages_that_reach_it_by_a_name_of_their_own() {
    let upgrade = |served: &Served, host: &str| {
        let mut stream = dial(served.address);
        write!(
            stream,
            "GET /ws/news HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        .unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8(answer.to_vec()).unwrap()
    };
    let served = Served::start(&[]);
    let port = served.address.port();
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")]
    {
        assert_eq!(upgrade(&served, &host), "HTTP/1.1 101");
    }
    assert_eq!(upgrade(&served, &format!("evil.example:{port}")), "HTTP/1.1 421");
    let mut stream = dial(served.address);
    let request = "GET /stats.json HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 421 ") && answer.contains("allowed_hosts"), "{answer}");
    for (set, status) in [
        ("allowed_hosts=good.example", "HTTP/1.1 421"),
        ("allowed_hosts=good.example, Evil.example", "HTTP/1.1 101"),
        ("allowed_hosts=*", "HTTP/1.1 101"),
        ("listen=0.0.0.0:0", "HTTP/1.1 101"),
    ] {
        let words = ["serve", "--shards", "1", "--set", "listen=127.0.0.1:0", "--set", set];
        let served = Served::run(throng(&words), &[]);
        let address = SocketAddr::from(([127, 0, 0, 1], served.address.port()));
        let served = Served { address, ..served };
        assert_eq!(upgrade(&served, "evil.example"), status, "{set}");
    }
}

#[test]
fn it_says_its_address_and_answers_at_every_path() {
    let served = Served::start(&[]);
    for (path, part) in [
        ("/livez", ""),
        ("/readyz", ""),
        ("/metrics", "# TYPE "),
        ("/stats.json", "{"),
        ("/", "<html"),
    ] {
        let answer = get(served.address, path);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(body.contains(part), "{path}: {body}");
    }
    assert!(get(served.address, "/nowhere").starts_with("HTTP/1.1 404 "));
    let mut client = Client::connect(served.address, "/echo");
    client.send(Opcode::Text, "h\u{e9}llo".as_bytes());
    assert_eq!(client.next(), Got::Text("h\u{e9}llo".to_owned()));
    let (mut a, mut b) =
        (Client::connect(served.address, "/ws/x?echo=1"), Client::connect(served.address, "/ws/x"));
    a.send(Opcode::Text, b"to all");
    assert_eq!((a.next(), b.next()), (Got::Text("to all".into()), Got::Text("to all".into())));
}

/// Opens a stream of events; nothing behind its first comment is taken.
#[test]
fn an_upload_may_be_larger_than_any_message_elsewhere_and_is_counted() {
    let server = Served::start(&["--set", "max_upload_size=12MiB"]);
    let mut client = Client::connect(server.address, "/upload");
    client.send(Opcode::Binary, &vec![7; 12 << 20]);
    assert_eq!(client.next(), Got::Text((12 << 20).to_string()));
    client.send(Opcode::Text, b"short");
    assert_eq!(client.next(), Got::Text("5".to_owned()));
    let head = ws::encode_header(Opcode::Binary, true, (12 << 20) + 1, Some([0; 4]));
    client.stream.write_all(&head).unwrap();
    assert_eq!(client.next().close_code(), Some(1009));
}

fn events(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = dial(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n:\n\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    stream
}

/// The stream's next bytes are these.
fn expect(stream: &mut TcpStream, bytes: &str) {
    let mut buffer = vec![0; bytes.len()];
    stream.read_exact(&mut buffer).unwrap();
    assert_eq!(String::from_utf8(buffer).unwrap(), bytes);
}

#[test]
fn a_channel_is_a_stream_of_events_too() {
    let served = Served::start(&[]);
    let mut stream = events(served.address, "/sse/x");
    let mut client = Client::connect(served.address, "/ws/x?echo=1");
    client.send(Opcode::Text, b"to\nall");
    assert_eq!(client.next(), Got::Text("to\nall".to_owned()));
    expect(&mut stream, "data: to\ndata: all\n\n");
    let long = "x".repeat(257);
    assert!(get(served.address, &format!("/sse/{long}")).starts_with("HTTP/1.1 400 "));
    // Without wildcards a star is a character like any other, also to be published to.
    let mut star = Client::connect(served.address, "/ws/news.*?echo=1");
    star.send(Opcode::Text, b"mine");
    assert_eq!(star.next(), Got::Text("mine".to_owned()));
    served.process.signal("TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "a drain ends it");
}

#[test]
fn patterns_listen_and_cannot_be_published_to() {
    let served = Served::start(&["--set", "wildcards=true"]);
    let mut stream = events(served.address, "/sse/news.%3E");
    let mut all = Client::connect(served.address, "/ws/news.*");
    let mut one = Client::connect(served.address, "/ws/news.eu?echo=1");
    // All have joined: an answer to itself comes after that.
    one.send(Opcode::Text, b"hello");
    assert_eq!(one.next(), Got::Text("hello".to_owned()));
    assert_eq!(all.next(), Got::Text("hello".to_owned()));
    expect(&mut stream, "data: hello\n\n");
    all.send(Opcode::Text, b"to whom?");
    assert_eq!(all.next().close_code(), Some(1008));
    assert_eq!(Client::connect(served.address, "/ws/a..b").next().close_code(), Some(1008));
    assert!(get(served.address, "/sse/a..b").starts_with("HTTP/1.1 400 "));
}

#[test]
fn rules_of_channels_are_shown_in_the_figures() {
    let served = Served::start(&[
        "--channel",
        "prices.*=latest,max_age=5s",
        "--channel",
        "logs.>=drop_oldest",
        "--set",
        "slow_policy=drop_newest",
    ]);
    let mut stream = events(served.address, "/sse/prices.eur");
    let mut client = Client::connect(served.address, "/ws/prices.eur");
    client.send(Opcode::Text, b"1.17");
    expect(&mut stream, "data: 1.17\n\n");
    let delivered = "throng_class_published_total{class=\"prices.*\",policy=\"latest\",outcome=\"delivered\",\
                     shard=\"0\"} 1";
    poll("Prometheus gets it", || {
        get(served.address, "/metrics").lines().any(|line| line == delivered).then_some(())
    });
    let stats = get(served.address, "/stats.json");
    let stats: serde_json::Value =
        serde_json::from_str(stats.split_once("\r\n\r\n").unwrap().1).unwrap();
    let classes: Vec<_> = stats["classes"].as_array().unwrap().iter().collect();
    let names: Vec<_> = classes.iter().map(|of| (&of["name"], &of["policy"])).collect();
    let expected = [("default", "drop_newest"), ("prices.*", "latest"), ("logs.>", "drop_oldest")];
    assert_eq!(names.len(), expected.len());
    for ((name, policy), (its_name, its_policy)) in names.into_iter().zip(expected) {
        assert_eq!((name, policy), (&its_name.into(), &its_policy.into()));
    }
    assert_eq!(classes[1]["delivered"], 1);
}

#[test]
fn rules_of_channels_are_settings_like_any_other() {
    let file = std::env::temp_dir().join(format!("throng-channels-{}.toml", std::process::id()));
    let text = "wildcards = true\n[[channel]]\nname = \"prices.*\"\nslow_policy = \"latest\"\nmax_age = \"5s\"\n";
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let show = |words: &[&str], variable: Option<&str>| {
        let mut command = throng(&["config", "show", "--origin", "--config", path]);
        let output =
            command.args(words).envs(variable.map(|text| ("THRONG_CHANNELS", text))).output();
        let out = String::from_utf8(output.unwrap().stdout).unwrap();
        let line = out.lines().find(|line| line.starts_with("channels = ")).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        show(&[], None),
        format!(
            "channels = [{{ name = \"prices.*\", slow_policy = \"latest\", max_age = \"5s\" }}] # {path}:2"
        )
    );
    assert_eq!(
        show(&[], Some("a=close;b=latest")),
        "channels = [{ name = \"a\", slow_policy = \"close\" }, { name = \"b\", slow_policy = \"latest\" }] \
         # environment THRONG_CHANNELS"
    );
    let flags = ["--channel", "a=latest", "--channel", "b.>=drop_oldest,max_backlog=4KiB"];
    assert_eq!(
        show(&flags, Some("a=close")),
        "channels = [{ name = \"a\", slow_policy = \"latest\" }, \
         { name = \"b.>\", slow_policy = \"drop_oldest\", max_backlog = \"4KiB\" }] # flag --channel"
    );
    std::fs::remove_file(file).unwrap();
}

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
        assert_eq!(events, ["listening", "drain", "stopped"]);
    }
}

#[test]
fn every_request_and_session_is_logged_where_it_is_asked_for() {
    for io in ["epoll", "portable", "threads"] {
        logs_requests_and_sessions(io);
    }
}

fn logs_requests_and_sessions(io: &str) {
    let mut served = Served::start(&["--log-access", "all", "--io", io]);
    let log = BufReader::new(served.process.0.stderr.take().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || log.lines().try_for_each(|line| sender.send(line.unwrap())));
    let next = |name: &str| loop {
        let line = lines.recv_timeout(TIMEOUT).unwrap();
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        if event["event"] == name {
            return event;
        }
    };
    get(served.address, "/livez?token=secret");
    let event = next("request");
    assert_eq!((&event["method"], &event["path"]), (&"GET".into(), &"/livez".into()));
    assert_eq!((&event["status"], &event["client"]), (&200.into(), &"127.0.0.1".into()));
    assert!(!event.to_string().contains("secret"), "{event}");
    let bytes = |event: &serde_json::Value| {
        ["bytes_in", "bytes_out"].map(|name| event[name].as_u64().unwrap_or_default())
    };
    assert_eq!(bytes(&event), [0, "alive\n".len() as u64], "{event}");
    get(served.address, "/nothing%0a");
    let event = next("request");
    assert_eq!((&event["status"], &event["path"]), (&404.into(), &"/nothing%0a".into()));
    let text = "a message of some length".repeat(10);
    for closes in [true, false] {
        let mut client = Client::connect(served.address, "/echo");
        client.send(Opcode::Text, text.as_bytes());
        assert_eq!(client.next(), Got::Text(text.clone()));
        if closes {
            client.send(Opcode::Close, &1000u16.to_be_bytes());
            assert_eq!(client.next().close_code(), Some(1000));
        } else {
            // The connection is reset.
            let linger = Some(Duration::ZERO);
            socket2::SockRef::from(&client.stream).set_linger(linger).unwrap();
            drop(client);
        }
        let event = next("session");
        let code = if closes { 1000 } else { 1006 };
        assert_eq!((&event["path"], &event["code"]), (&"/echo".into(), &code.into()));
        // Its upgrade is in them.
        let least = text.len() as u64 + 100;
        assert!(bytes(&event).iter().all(|bytes| (least..least + 400).contains(bytes)), "{event}");
    }
    // A stream of events is logged when it begins.
    let _stream = events(served.address, "/sse/x");
    let event = next("request");
    assert_eq!((&event["path"], &event["status"]), (&"/sse/x".into(), &200.into()));
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
#[cfg(target_os = "linux")]
fn pinned_event_loops_are_logged_with_their_cpus() {
    let served = Served::start(&["--set", "pin=cores"]);
    served.process.signal("TERM");
    let (code, _, log) = served.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("each event loop has a CPU of its own: shard 0 CPU "), "{log}");
    assert!(log.contains("NUMA node"), "{log}");
    let output =
        throng(&["serve", "--listen", "127.0.0.1:0", "--shards", "999", "--set", "pin=cores"]);
    let (code, line) = refused(&{ output }.output().unwrap());
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("shards is 999") && line.contains("set pin to none"), "{line}");
}

#[test]
fn a_second_signal_ends_at_once_with_130() {
    let served = Served::start(&["--set", "drain.grace=1h", "--set", "close_timeout=1h"]);
    let mut client = Client::connect(served.address, "/echo");
    served.process.signal("TERM");
    // The first has been seen, and is not over: nobody answers.
    assert_eq!(client.next().close_code(), Some(1001));
    served.process.signal("TERM");
    assert_eq!(served.end().0, Some(130));
}

#[test]
fn a_reader_that_left_changes_nothing() {
    let mut served = Served::start(&[]);
    drop(served.lines);
    drop(served.process.0.stderr.take());
    let mut client = Client::connect(served.address, "/echo");
    served.process.signal("TERM");
    assert_eq!(client.next().close_code(), Some(1001));
    client.send(Opcode::Close, &1001u16.to_be_bytes());
    assert_eq!(client.next(), Got::End);
    assert_eq!(served.process.exit().code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_changes_nothing() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    // An address of its own, so that no other test takes the port in between.
    let free = TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
    let mut served = Running(
        throng(&["serve", "--shards", "1", "--listen", &free.to_string()])
            .stdout(full())
            .stderr(full())
            .spawn()
            .unwrap(),
    );
    // Signals are looked after before it listens.
    poll("it listens", || TcpStream::connect(free).ok());
    served.signal("TERM");
    assert_eq!(served.exit().code(), Some(0));
    let words = ["demo", "--for", "100ms", "--clients", "2", "--listen", "127.0.0.1:0"];
    let output = throng(&words).stdout(full()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    let mut wrong = throng(&["serve", "--shards", "x"]);
    assert_eq!(wrong.stdout(full()).stderr(full()).status().unwrap().code(), Some(2));
}

/// A report that cannot be written must not be lost without an error.
#[cfg(target_os = "linux")]
#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let served = Served::start(&[]);
    let address = served.address.to_string();
    let url = format!("ws://{address}/echo");
    let bench = ["bench", "echo", &url, "--connections", "1", "--duration", "10ms", "--json"];
    for words in [
        &["config", "show"][..],
        &["config", "show", "balance", "--json"],
        &["config", "check"],
        &["config", "schema"],
        &["generate", "alerts"],
        &["health", &address],
        &bench,
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = throng(words).stdout(full).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
        assert!(errors.contains("standard output cannot be written: No space"), "{errors}");
    }
    // A reader that has left has had what it wanted.
    let mut shown = throng(&["config", "schema"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(shown.stdout.take());
    assert_eq!(shown.wait().unwrap().code(), Some(0));
}

/// Code and the one line on standard error.
fn refused(output: &Output) -> (Option<i32>, String) {
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.stdout.is_empty() && errors.starts_with("throng: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    (output.status.code(), errors)
}

#[test]
fn a_port_that_is_taken_is_one_line_and_exit_code_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, errors) = refused(&throng(&["serve", "--listen", &address]).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(errors.contains(&address) && errors.contains("choose another port"), "{errors}");
}

#[test]
fn mistakes_are_one_line_with_the_remedy_and_exit_code_2() {
    let file = std::env::temp_dir().join(format!("throng-{}.toml", std::process::id()));
    std::fs::write(&file, "shards = 1\nmax_backlog = 1MiB\n").unwrap();
    let file = file.to_str().unwrap();
    let nowhere = format!("{file}.not-here");
    let no_file = ["serve", "--config", &nowhere];
    for (words, parts) in [
        (&["serve", "--set", "max_mesage_size=1"][..], &["did you mean max_message_size?"][..]),
        (&["serve", "--set", "max_backlog=1M"], &["max_backlog", "\"1M\"", "1MiB"]),
        (&["serve", "--deflate", "on"], &["--deflate", "\"on\"", "window:BITS"]),
        (&["serve", "--deflate", "window:8"], &["deflate.window_bits", "--deflate", "9 to 15"]),
        (&["serve", "--shards", "-1"], &["shards is \"-1\"", "--shards", "whole number"]),
        (&["serve", "--shards", "many"], &["shards", "many", "--shards", "whole number"]),
        (&["config", "show", "--set", "zzz=1"], &["zzz", "config show"]),
        (&["serve", "--channel", "a=lates"], &["--channel", "\"lates\"", "did you mean latest?"]),
        (&["serve", "--channel", "a..b=latest"], &["\"a..b\"", "empty token"]),
        (&["serve", "--channel", "a=close,max_age=25h"], &["channels[0].max_age", "24h"]),
        (&no_file, &["cannot read", &nowhere, "--config"]),
        (&["serve", "--config", "/"], &["cannot read", "--config"]),
        (&["demo", "--clients", "9_007_199_254_740_992"], &["--clients", "lower --clients"]),
        (&["demo", "--clients", "0"], &["--clients", "at least 1"]),
    ] {
        let output = throng(words).output().unwrap();
        let (code, errors) = refused(&output);
        assert_eq!(code, Some(2), "{words:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "{words:?}: {errors:?} does not say {part:?}");
        }
    }
    // A mistake in a file has its line, with a mark below its place.
    let output = throng(&["serve", "--config", file]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = errors.lines().collect();
    assert!(lines[0].starts_with(&format!("throng: {file}:2:")), "{errors}");
    assert!(lines[1].ends_with("2 | max_backlog = 1MiB") && lines[2].ends_with('^'), "{errors}");
    assert_eq!(output.status.code(), Some(2));
    let output = throng(&["serve"]).env("THRONG_SHARDS", "x").output().unwrap();
    assert!(refused(&output).1.contains("environment THRONG_SHARDS"));
    let output = throng(&["serve", "--lisen", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--listen"), "names the nearest");
    std::fs::remove_file(file).unwrap();
}

/// Writes a new certificate and its key.
#[cfg(feature = "tls")]
fn write_certificate(chain: &Path, key: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(chain, made.cert.pem()).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
}

/// The whole answer to a request over TLS, if the server has the certificate of that file.
#[cfg(feature = "tls")]
fn get_securely(address: SocketAddr, chain: &Path) -> Result<String, String> {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(chain).unwrap()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let client = rustls::ClientConnection::new(config.into(), name).unwrap();
    let mut stream = rustls::StreamOwned::new(client, dial(address));
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    Ok(answer)
}

#[cfg(feature = "tls")]
#[test]
fn certificates_serve_https_and_are_renewed_without_a_restart() {
    let dir = std::env::temp_dir().join(format!("throng-cli-tls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (chain, key, old) = (dir.join("it.pem"), dir.join("it.key"), dir.join("old.pem"));
    write_certificate(&chain, &key);
    std::fs::copy(&chain, &old).unwrap();
    let [chain_name, key_name] = [&chain, &key].map(|file| file.to_str().unwrap());
    let mut served = Served::start(&["--tls-cert", chain_name, "--tls-key", key_name]);
    // Each look of a client that does not trust the certificate is a line, and a pipe that is full
    // loses those that follow.
    let mut log = served.process.0.stderr.take().unwrap();
    let log = std::thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    assert!(get_securely(served.address, &chain).unwrap().contains("HTTP/1.1 200 "));

    write_certificate(&chain, &key);
    let later = std::time::SystemTime::now() + Duration::from_secs(60);
    for file in [&chain, &key] {
        let file = File::options().write(true).open(file).unwrap();
        file.set_modified(later).unwrap();
    }
    poll("the new certificate", || get_securely(served.address, &chain).ok());
    assert!(get_securely(served.address, &old).is_err(), "the old one is gone");

    served.process.signal("TERM");
    let code = served.process.exit().code();
    let log = log.join().unwrap();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains(r#""event":"certificate.reloaded""#), "{log}");

    std::fs::write(&key, "no key").unwrap();

    let mut command = throng(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", chain_name]);
    let (code, errors) = refused(&command.output().unwrap());
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("tls.key") && errors.contains("needs its private key"), "{errors}");
    let (code, errors) = refused(&command.args(["--tls-key", key_name]).output().unwrap());
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains(key_name) && errors.contains("no private key"), "{errors}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_descriptor_limit_that_is_too_low_says_how_to_raise_it() {
    let script = "ulimit -n 60; exec \"$0\" serve --listen 127.0.0.1:0";
    let output =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_throng")]).output().unwrap();
    let (code, errors) = refused(&output);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("ulimit -n") && errors.contains("60"), "{errors}");
}

#[test]
fn a_demonstration_of_twenty_shows_messages_and_ends_well() {
    let output =
        throng(&["demo", "--for", "2s", "--clients", "20", "--rate", "20"]).output().unwrap();
    shows_messages(&output);
}

#[cfg(feature = "tls")]
#[test]
fn a_demonstration_with_tls_makes_its_own_certificate() {
    let words = ["demo", "--tls", "--for", "2s", "--clients", "20", "--rate", "20"];
    let out = shows_messages(&throng(&words).output().unwrap());
    assert!(out.contains("throng listens on https://"), "{out}");
    let line = out.lines().find(|line| line.contains("--cacert ")).unwrap();
    let file = line.split("--cacert ").nth(1).unwrap().trim_end_matches(')');
    assert!(!Path::new(file).exists(), "it lasts as long as the demonstration");
}

/// Checks that messages went back and forth, and that nothing failed.
fn shows_messages(output: &Output) -> String {
    let out = String::from_utf8(output.stdout.clone()).unwrap();
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{out}");
    let live: Vec<_> = out.lines().filter(|line| line.contains(" in/s ")).collect();
    assert!(!live.is_empty(), "{out}");
    let received = out.lines().find_map(|line| line.split(" and received ").nth(1)).unwrap();
    assert_ne!(received, "0", "two clients of a channel receive from each other: {out}");
    let out_rate = |line: &&str| -> Option<u64> {
        let (before, _) = line.split_once(" out/s")?;
        before.split_whitespace().last()?.replace(',', "").parse().ok()
    };
    assert!(live.iter().filter_map(out_rate).any(|rate| rate > 0), "{out}");
    out
}

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
        // It is on loopback alone, and treated so.
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

/// What the server at `path` answers to a request.
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
    let path = std::env::temp_dir().join(format!("throng-serve-{}.sock", std::process::id()));
    // Left by a server that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = format!("127.0.0.1:0,unix:{}", path.display());
    let command = throng(&["serve", "--shards", "2", "--set", "unix_mode=600"]);
    let served = Served::run(command, &["--listen", &listen]);
    assert!(get_at(&path, "/livez", "").starts_with("HTTP/1.1 200"));
    // A proxy on this machine may pass on what comes from anywhere.
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
