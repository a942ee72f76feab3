//! WebSocket clients side by side: echoes per client CPU-second over one connection.
//!
//! `bench-clients run [ROUNDS]` starts an echo server of Throng's on core 0, and one client process
//! after the other on core 1. `bench-clients client CLIENT TEST PORT` is one of those.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fastwebsockets::{FragmentCollector, Frame, Payload, Role, WebSocket};
use throng::client::{AsyncClient, Client};
use throng::prelude::{App, Message, Server, Ws};
use tungstenite::{Message as TMessage, client::client};

const CLIENTS: [&str; 4] = ["throng", "throng-async", "tungstenite", "fastwebsockets"];
const TESTS: [(&str, usize, usize); 3] =
    [("echo100", 100, 1), ("echo16k", 16 << 10, 1), ("echo100p16", 100, 16)];
const WARM_UP: Duration = Duration::from_millis(300);
const COUNTED: Duration = Duration::from_millis(1000);

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["serve"] => serve(),
        ["client", name, test, port] => measure(name, test, port),
        ["run"] => run(5),
        ["run", rounds] => rounds.parse().map_err(Into::into).and_then(run),
        _ => Err("usage: bench-clients run [ROUNDS]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-clients: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Echoes until standard input ends; prints its port.
fn serve() -> Fallible<()> {
    let app = App::new().ws("/", Ws::new().on_message(|ws, (), message| ws.send(message)));
    let running = Server::new(app).shards(1).bind("127.0.0.1:0")?.start()?;
    println!("{}", running.local_addr().port());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    running.shutdown(DrainPlan::NOW).wait()?;
    Ok(())
}

/// Measures all clients in all tests, interleaved, and prints medians.
fn run(rounds: usize) -> Fallible<()> {
    let program = std::env::current_exe()?;
    let mut server = Command::new("taskset")
        .args(["-c", "0"])
        .arg(&program)
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut port = String::new();
    let mut line = std::io::BufReader::new(server.stdout.take().ok_or("no output")?);
    std::io::BufRead::read_line(&mut line, &mut port)?;
    println!("| test | client | echoes per client CPU-second | ratio to tungstenite |");
    println!("|---|---|---|---|");
    for (test, _, _) in TESTS {
        let mut figures = vec![Vec::new(); CLIENTS.len()];
        for round in 0..rounds {
            for step in 0..CLIENTS.len() {
                let at = (round + step) % CLIENTS.len();
                let output = Command::new("taskset")
                    .args(["-c", "1"])
                    .arg(&program)
                    .args(["client", CLIENTS[at], test, port.trim()])
                    .output()?;
                let text = String::from_utf8(output.stdout)?;
                let figure: f64 = text.trim().parse().map_err(|_| {
                    format!("{}: {}", CLIENTS[at], String::from_utf8_lossy(&output.stderr))
                })?;
                figures[at].push(figure);
            }
        }
        for (client, own) in CLIENTS.iter().zip(&figures) {
            let ratios = own.iter().zip(&figures[2]).map(|(own, other)| own / other).collect();
            println!("| {test} | {client} | {:.0} | {:.2} |", median(own.clone()), median(ratios));
        }
    }
    drop(server.stdin.take());
    server.wait()?;
    Ok(())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// CPU time of the process's only thread, user and system, in nanoseconds.
fn cpu() -> Fallible<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().ok_or("empty schedstat")?.parse()?)
}

/// Counts echoes, and prints how many a second of CPU makes.
struct Meter {
    since: Instant,
    begun: Option<(Instant, u64)>,
    count: u64,
}

impl Meter {
    fn new() -> Self {
        Self { since: Instant::now(), begun: None, count: 0 }
    }

    /// Returns false when it is time to end.
    fn add(&mut self, echoes: usize) -> Fallible<bool> {
        match self.begun {
            None if self.since.elapsed() > WARM_UP => self.begun = Some((Instant::now(), cpu()?)),
            None => {}
            Some((begin, used)) => {
                self.count += echoes as u64;
                if begin.elapsed() > COUNTED {
                    println!("{}", self.count as f64 * 1e9 / (cpu()? - used) as f64);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn measure(name: &str, test: &str, port: &str) -> Fallible<()> {
    let (_, size, depth) =
        *TESTS.iter().find(|(other, ..)| *other == test).ok_or("unknown test")?;
    let url = format!("ws://127.0.0.1:{port}/");
    let payload = vec![b'x'; size];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match name {
        "throng" => with_throng(&url, &payload, depth),
        "throng-async" => runtime.block_on(with_throng_async(&url, &payload, depth)),
        "tungstenite" => with_tungstenite(&url, port, &payload, depth),
        "fastwebsockets" => runtime.block_on(with_fastwebsockets(port, &payload, depth)),
        _ => Err("unknown client".into()),
    }
}

fn check(same: bool) -> Fallible<()> {
    if same { Ok(()) } else { Err("the echo is another message".into()) }
}

fn with_throng(url: &str, payload: &[u8], depth: usize) -> Fallible<()> {
    let mut client = Client::connect(url)?;
    let mut meter = Meter::new();
    while meter.add(depth)? {
        for _ in 0..depth {
            client.queue(payload)?;
        }
        for _ in 0..depth {
            check(client.recv()? == Some(Message::Binary(payload)))?;
        }
    }
    Ok(())
}

async fn with_throng_async(url: &str, payload: &[u8], depth: usize) -> Fallible<()> {
    let mut client = AsyncClient::connect(url).await?;
    let mut meter = Meter::new();
    while meter.add(depth)? {
        for _ in 0..depth {
            client.queue(payload)?;
        }
        for _ in 0..depth {
            check(client.recv().await? == Some(Message::Binary(payload)))?;
        }
    }
    Ok(())
}

fn with_tungstenite(url: &str, port: &str, payload: &[u8], depth: usize) -> Fallible<()> {
    let stream = TcpStream::connect(format!("127.0.0.1:{port}"))?;
    stream.set_nodelay(true)?;
    let (mut socket, _) = client(url, stream)?;
    let mut meter = Meter::new();
    // Its messages own their bytes, which it takes without a copy where they can be shared.
    let message = TMessage::binary(payload.to_vec());
    while meter.add(depth)? {
        for _ in 0..depth {
            socket.write(message.clone())?;
        }
        socket.flush()?;
        for _ in 0..depth {
            check(matches!(socket.read()?, TMessage::Binary(bytes) if bytes == payload))?;
        }
    }
    Ok(())
}

async fn with_fastwebsockets(port: &str, payload: &[u8], depth: usize) -> Fallible<()> {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}"))?;
    stream.set_nodelay(true)?;
    // Its own handshake needs hyper, and is not measured.
    stream.write_all(
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
          Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    )?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    stream.set_nonblocking(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let mut socket = FragmentCollector::new(WebSocket::after_handshake(stream, Role::Client));
    let mut meter = Meter::new();
    while meter.add(depth)? {
        for _ in 0..depth {
            // It has no queue: each message is written at once.
            socket.write_frame(Frame::binary(Payload::Borrowed(payload))).await?;
        }
        for _ in 0..depth {
            check(&socket.read_frame().await?.payload[..] == payload)?;
        }
    }
    Ok(())
}
