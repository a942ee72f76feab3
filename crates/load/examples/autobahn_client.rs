//! Tests our client side against Autobahn's fuzzing server: it echoes in every case of the server,
//! and offers permessage-deflate in each.
//!
//! `cargo run -p throng-load --example autobahn_client ws://127.0.0.1:9001`, with `wstest --mode
//! fuzzingserver` listening there; `cargo xtask test --only autobahn-client` does both. A further
//! argument names a file with the authorities to trust, for `wss://`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{
    Answer, BuildOptions, Close, Core, Cx, Limits, Message, Refusal, Sent, Service, Shard, build,
};
use throng_io::{Closed, Instant, Options, Portable};
use throng_load::Target;
use throng_proto::http1::{Request, Response};
use throng_proto::ws::deflate::{Mode, Policy, Settings};
use throng_proto::ws::handshake::{Key, check_response_with, encode_request_with};
use throng_tls::{ClientConfigs, ClientSettings, ConfigError, Tls, TlsClient, Trust};

/// The name in Autobahn's report.
const AGENT: &str = "throng";
/// Group 9 sends messages of 16 MiB.
const LARGEST_MESSAGE: usize = 32 << 20;
/// The maximum window in both directions, unless the server requires a smaller window.
const DEFLATE: Mode = Mode::Window { bits: 15 };
/// Maximum time of a case. A thousand messages of 128 KB take the fuzzing server a minute.
const CASE_LIMIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(url) = arguments.next() else {
        eprintln!("usage: autobahn_client ws://127.0.0.1:9001");
        return ExitCode::from(2);
    };
    match run(&url, arguments.next()) {
        Ok(cases) => {
            println!("went through {cases} cases");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("autobahn_client: {why}");
            ExitCode::from(1)
        }
    }
}

fn run(url: &str, authorities: Option<String>) -> Result<usize, String> {
    let target = Target::parse(url).map_err(|error| error.to_string())?;
    let peer = target.resolve().map_err(|error| error.to_string())?;
    let tls = match target.is_secure() {
        true => Some(tls_client(target.host(), authorities).map_err(|error| error.to_string())?),
        false => None,
    };
    let mut sessions = Sessions::new(peer, tls, target.host_header())?;
    let count = sessions.hold("/getCaseCount")?.ok_or("the server does not say how many cases")?;
    let count = count.trim().parse::<usize>().map_err(|_| format!("`{count}` is not a number"))?;
    for case in 1..=count {
        sessions.hold(&format!("/runCase?case={case}&agent={AGENT}"))?;
    }
    sessions.hold(&format!("/updateReports?agent={AGENT}"))?;
    Ok(count)
}

fn tls_client(host: &str, authorities: Option<String>) -> Result<Arc<TlsClient>, ConfigError> {
    let trust = authorities.map_or(Trust::System, |file| Trust::File(file.into()));
    let settings = ClientSettings { trust, resumes: true, ..ClientSettings::default() };
    TlsClient::new(&ClientConfigs::load(settings)?, host)
}

/// A shard with one session at a time.
struct Sessions {
    shard: Shard<Tls<Portable>, Client>,
    peer: SocketAddr,
}

impl Sessions {
    fn new(peer: SocketAddr, tls: Option<Arc<TlsClient>>, host: String) -> Result<Self, String> {
        let driver = Portable::new(Options::default()).map_err(|error| error.to_string())?;
        let mut driver = Tls::new(driver);
        if let Some(tls) = tls {
            driver.secure_connects(tls);
        }
        let mut limits = Limits::default();
        limits.ws.max_frame_size = LARGEST_MESSAGE;
        limits.ws.max_message_size = LARGEST_MESSAGE;
        limits.max_backlog = 2 * LARGEST_MESSAGE;
        let deflate = Settings::new(DEFLATE);
        let deflate = deflate.check().map_err(|error| error.to_string())?;
        let mut client = Some(Client::new(host, deflate));
        let options = BuildOptions { limits, max_connections: 16, ..BuildOptions::default() };
        let built = build(vec![driver], &options, |_, _, _| {
            client.take().expect("one driver makes one shard")
        });
        let mut shards = built.map_err(|error| error.to_string())?.shards;
        Ok(Self { shard: shards.pop().ok_or("one driver makes one shard")?, peer })
    }

    /// Opens a session, echoes until it ends, and returns the first received text.
    fn hold(&mut self, resource: &str) -> Result<Option<String>, String> {
        let (client, core) = self.shard.service_and_core();
        client.begin(resource, core.now().after(CASE_LIMIT));
        self.shard.connect(self.peer, None, 0).map_err(|error| format!("{resource}: {error}"))?;
        while self.shard.service().ended.is_none() {
            self.shard.turn().map_err(|error| format!("{resource}: {error}"))?;
        }
        let client = self.shard.service();
        match client.ended.take() {
            Some(Err(why)) => Err(format!("{resource}: {why}")),
            _ => Ok(client.first_text.take()),
        }
    }
}

/// The current session.
struct Client {
    host: String,
    key: Key,
    deflate: Option<Policy>,
    resource: String,
    first_text: Option<String>,
    deadline: Instant,
    ended: Option<Result<(), String>>,
}

impl Client {
    fn new(host: String, deflate: Option<Policy>) -> Self {
        // The same key each time, since the client is under test and not the randomness of keys.
        let key = Key::new(*b"throng, autobahn");
        let (resource, deadline) = (String::new(), Instant(0));
        Self { host, key, deflate, resource, first_text: None, deadline, ended: None }
    }

    fn begin(&mut self, resource: &str, deadline: Instant) {
        self.resource = resource.to_owned();
        self.deadline = deadline;
        self.first_text = None;
        self.ended = None;
    }

    fn fail(&mut self, why: &str) {
        self.ended.get_or_insert_with(|| Err(why.to_owned()));
    }
}

impl Service for Client {
    fn on_request(&mut self, _: &mut Cx<'_>, _: &Request<'_>) -> Answer {
        Answer::Done { keep_alive: false }
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, _: u16, _: &str) {}

    fn on_refused(&mut self, _: &mut Cx<'_>, _: Refusal) {}

    fn on_connected(&mut self, cx: &mut Cx<'_>) {
        let offer = self.deflate.as_ref().map(Policy::offer);
        let (host, resource, mut written) = (&self.host, &self.resource, Ok(()));
        cx.write(|out| {
            written = encode_request_with(host, resource, &self.key, &[], offer.as_ref(), &[], out);
        });
        if let Err(unsendable) = written {
            self.fail(&unsendable.to_string());
        }
    }

    fn on_response(&mut self, cx: &mut Cx<'_>, response: &Response<'_>) -> Answer {
        let policy = self.deflate;
        match check_response_with(response.status(), response, &self.key, &[], policy.as_ref()) {
            Ok(opened) => {
                if let Some((policy, agreed)) = policy.zip(opened.deflate) {
                    cx.set_deflate(policy, agreed);
                }
                Answer::Upgraded
            }
            Err(bad) => {
                self.fail(&bad.to_string());
                Answer::Done { keep_alive: false }
            }
        }
    }

    fn on_failed(&mut self, _: &mut Cx<'_>, _: Closed) {
        self.fail("the connection failed before the upgrade");
    }

    fn on_open(&mut self, _: &mut Cx<'_>) {}

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        if let (Message::Text(text), None) = (message, &self.first_text) {
            self.first_text = Some(text.to_owned());
        }
        // A report of the server about itself is not echoed, and ends the session.
        if self.resource.starts_with("/runCase") && cx.send(message) == Sent::Dropped {
            self.fail("an echo was dropped: the server does not read");
        }
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, _: &mut Cx<'_>, _: Close<'_>) {
        // Accepts any end: Autobahn judges whether it was correct.
        self.ended.get_or_insert(Ok(()));
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.ended.is_none().then_some(self.deadline)
    }

    fn on_deadline(&mut self, _: &mut Core, now: Instant) {
        if now >= self.deadline {
            self.fail("no end within ten minutes");
        }
    }
}
