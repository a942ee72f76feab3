//! The cost of decoding and encoding HTTP/1.1 heads: instructions per request, counted by
//! callgrind, compared with httparse.
//!
//! Run it with `cargo run --release -p throng-proto --example http1_cost`. It starts itself under
//! valgrind, once for each number, with few and with many rounds; the difference is the work alone.
//! Without valgrind, or with `--time`, it prints nanoseconds instead, the best of many rounds.

use std::collections::HashMap;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::process::{Command, ExitCode};
use std::time::Instant;

use throng_proto::Input;
use throng_proto::http1::{Decoder, Event, HeaderName, HeaderValue, Limits, Request, ResponseHead};

/// The smallest request of a benchmark client.
const BARE: &str = "GET / HTTP/1.1\r\nHost: 127.0.0.1:1234\r\n\r\n";
/// The request of wrk in the TechEmpower benchmarks.
const WRK: &str = "GET /json HTTP/1.1\r\nHost: localhost:8080\r\n\
    Accept: application/json,text/html;q=0.9,application/xhtml+xml;q=0.9,application/xml;q=0.8,\
    */*;q=0.7\r\n\
    Connection: keep-alive\r\n\r\n";
/// The request of Chrome for a page.
const BROWSER: &str = "GET /articles/2024/05/how-to?page=2 HTTP/1.1\r\nHost: www.example.com\r\n\
    Connection: keep-alive\r\n\
    sec-ch-ua: \"Chromium\";v=\"124\", \"Google Chrome\";v=\"124\", \"Not-A.Brand\";v=\"99\"\r\n\
    sec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: \"Linux\"\r\nUpgrade-Insecure-Requests: 1\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, \
    like Gecko) Chrome/124.0.0.0 Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,\
    */*;q=0.8\r\n\
    Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-User: ?1\r\n\
    Sec-Fetch-Dest: document\r\n\
    Referer: https://www.example.com/articles\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-US,en;q=0.9\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\r\n";
/// A small API call with a body.
const POST: &str = "POST /api/items HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: client/1.0\r\n\
    Accept: */*\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n\
    {\"id\":17,\"name\":\"an item\"}\n";

const REQUESTS: [(&str, &str); 4] =
    [("bare", BARE), ("wrk", WRK), ("browser", BROWSER), ("post", POST)];

/// Decodes a request the given number of times.
type Read = fn(&str, u64);
/// Encodes a head the given number of times.
type Write = fn(u64);

/// The operations on each request, in the order of the columns.
const READS: [(&str, Read); 6] = [
    ("A decode", |text, rounds| decode(text, rounds, |_| {})),
    ("B + walk all", |text, rounds| decode(text, rounds, walk)),
    ("C + find three", |text, rounds| decode(text, rounds, find_three)),
    ("D + into a map", |text, rounds| decode(text, rounds, into_map)),
    ("httparse", httparse),
    ("httparse + map", httparse_map),
];

const WRITES: [(&str, Write); 3] =
    [("head of four fields", write_head), ("bare 200 and length", write_bare), ("404", write_404)];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", case, rounds] => match (find_case(case), rounds.parse()) {
            (Some(work), Ok(rounds)) => work(rounds),
            _ => return ExitCode::FAILURE,
        },
        ["--time"] => table("nanoseconds", nanoseconds),
        [] if Command::new("valgrind").arg("--version").output().is_ok() => {
            table("instructions", instructions);
        }
        [] => {
            println!("valgrind is not installed; nanoseconds instead");
            table("nanoseconds", nanoseconds);
        }
        _ => {
            eprintln!("usage: http1_cost [--time]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Finds the work of a cell by name: `read/REQUEST/WAY` or `write/WAY`, by number.
fn find_case(case: &str) -> Option<Box<dyn Fn(u64)>> {
    let parts: Vec<&str> = case.split('/').collect();
    match parts[..] {
        ["read", request, way] => {
            let (_, text) = REQUESTS.get(request.parse::<usize>().ok()?)?;
            let (_, work) = READS.get(way.parse::<usize>().ok()?)?;
            Some(Box::new(|rounds| work(text, rounds)))
        }
        ["write", way] => {
            let (_, work) = WRITES.get(way.parse::<usize>().ok()?)?;
            Some(Box::new(work))
        }
        _ => None,
    }
}

fn table(unit: &str, cost: fn(&str) -> Option<f64>) {
    let show = |case: String| cost(&case).map_or("?".into(), |cost| format!("{cost:.0}"));
    print!("{unit} a request  bytes fields");
    READS.iter().for_each(|(name, _)| print!(" {name:>15}"));
    println!();
    for (row, (name, text)) in REQUESTS.iter().enumerate() {
        let fields = text.matches("\r\n").count() - 2;
        print!("{name:<21}{:>8} {fields:>6}", text.len());
        for column in 0..READS.len() {
            print!(" {:>15}", show(format!("read/{row}/{column}")));
        }
        println!();
    }
    println!("\n{unit} a response");
    for (row, (name, _)) in WRITES.iter().enumerate() {
        println!("{name:<21}{:>15}", show(format!("write/{row}")));
    }
}

/// Measures the user instructions of one round: callgrind's count for 3,000 less that for 1,000.
fn instructions(case: &str) -> Option<f64> {
    let count = |rounds: u64| -> Option<f64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args(["run", case, &rounds.to_string()])
            .output()
            .ok()?;
        let report = String::from_utf8(output.stderr).ok()?;
        let (_, count) = report.split_once("Collected : ")?;
        count.split_whitespace().next()?.parse().ok()
    };
    Some((count(3_000)? - count(1_000)?) / 2_000.0)
}

fn nanoseconds(case: &str) -> Option<f64> {
    const ROUNDS: u64 = 20_000;
    let work = find_case(case)?;
    let times = (0..25).map(|_| {
        let begin = Instant::now();
        work(ROUNDS);
        begin.elapsed().as_nanos() as f64 / ROUNDS as f64
    });
    Some(times.fold(f64::MAX, f64::min))
}

/// Variant A: only what framing needs. Calls the decoder until it returns nothing, as a server
/// does.
fn decode(text: &str, rounds: u64, mut handle: impl FnMut(&Request<'_>)) {
    let mut bytes = text.as_bytes().to_vec();
    let mut decoder = Decoder::new();
    let limits = Limits::default();
    let mut ends = 0;
    for _ in 0..rounds {
        let mut input = Input::new(black_box(&mut bytes[..]));
        while let Ok(Some(event)) = decoder.next_event(&mut input, &limits) {
            match event {
                Event::Head(request) => {
                    black_box((request.method(), request.path()));
                    handle(&request);
                }
                Event::Body(data) => {
                    black_box(data);
                }
                Event::End => ends += 1,
            }
        }
    }
    assert_eq!(ends, rounds, "each request is decoded to its end");
}

fn walk(request: &Request<'_>) {
    for header in request.headers() {
        black_box(header);
    }
}

fn find_three(request: &Request<'_>) {
    black_box(request.header("Accept"));
    black_box(request.header("Cookie"));
    black_box(request.header("If-None-Match"));
}

/// Variant D: copies every header into a map of owned strings, as slow servers do.
fn into_map(request: &Request<'_>) {
    let own = |header: throng_proto::http1::Header<'_>| {
        (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned())
    };
    black_box(request.headers().map(own).collect::<HashMap<String, String>>());
}

fn parse_with_httparse(
    text: &str,
    rounds: u64,
    mut handle: impl FnMut(&httparse::Request<'_, '_>),
) {
    let bytes = text.as_bytes().to_vec();
    for _ in 0..rounds {
        let mut headers = [const { MaybeUninit::uninit() }; 100];
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(black_box(&bytes[..]), &mut headers);
        assert!(matches!(parsed, Ok(httparse::Status::Complete(_))));
        black_box((request.method, request.path));
        handle(&request);
    }
}

/// Parses with httparse, which finds lines and names, and validates neither Host nor framing.
fn httparse(text: &str, rounds: u64) {
    parse_with_httparse(text, rounds, |request| {
        black_box(&request.headers);
    });
}

fn httparse_map(text: &str, rounds: u64) {
    parse_with_httparse(text, rounds, |request| {
        let own = |header: &httparse::Header<'_>| {
            (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned())
        };
        black_box(request.headers.iter().map(own).collect::<HashMap<String, String>>());
    });
}

const CONTENT_TYPE: HeaderName<'_> = HeaderName::literal("Content-Type");
const PLAIN: HeaderValue<'_> = HeaderValue::literal("text/plain; charset=utf-8");
const DATE: HeaderName<'_> = HeaderName::literal("Date");
const NOW: HeaderValue<'_> = HeaderValue::literal("Sun, 06 Nov 1994 08:49:37 GMT");
const SERVER: HeaderName<'_> = HeaderName::literal("Server");
const THRONG: HeaderValue<'_> = HeaderValue::literal("throng");

fn write(rounds: u64, mut append: impl FnMut(&mut Vec<u8>)) {
    let mut out = Vec::with_capacity(4096);
    for _ in 0..rounds {
        append(&mut out);
        black_box(&mut out).clear();
    }
}

fn write_head(rounds: u64) {
    write(rounds, |out| {
        ResponseHead::start(out, black_box(200), black_box("OK"))
            .field(CONTENT_TYPE, black_box(PLAIN))
            .field(DATE, black_box(NOW))
            .field(SERVER, black_box(THRONG))
            .content_length(black_box(1234))
            .finish();
    });
}

fn write_bare(rounds: u64) {
    write(rounds, |out| {
        ResponseHead::start(out, black_box(200), black_box("OK"))
            .content_length(black_box(2))
            .finish();
        out.extend_from_slice(black_box(b"OK"));
    });
}

fn write_404(rounds: u64) {
    write(rounds, |out| {
        ResponseHead::start(out, black_box(404), black_box("Not Found"))
            .content_length(black_box(0))
            .finish();
    });
}
