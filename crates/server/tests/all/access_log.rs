//! Routes and ids of requests in the access log.

use std::sync::mpsc;

use throng::http::RequestIds;
use throng::prelude::*;
use throng::server::{AccessEntry, AccessLog, Observe};

use crate::support::served::{start, stop};
use crate::support::{Client, TIMEOUT, exchange};

/// The route, the status and the id of a record.
type Record = (Option<String>, Option<u16>, Option<String>);

struct Log(mpsc::Sender<Record>);

impl AccessLog for Log {
    fn record(&self, access: &AccessEntry<'_>) {
        let route = access.route.map(str::to_owned);
        self.0.send((route, access.status, access.request_id.map(str::to_owned))).unwrap();
    }
}

#[test]
fn a_record_has_the_route_and_the_id_that_middleware_gave() {
    let ids = App::new()
        .get("/things/{id}", |_| "here")
        .post("/things", |request| request.body_text().unwrap_or_default().to_owned())
        .ws("/rooms/{room}", Ws::new().on_message(|ws, (), message| ws.send(message)))
        .layer(RequestIds::new());
    let app = App::new().get("/plain", |_| "here").nest("/api", ids);
    let (sender, log) = mpsc::channel();
    let (address, running) =
        start(Server::new(app).observe(Observe::new().access_log(Log(sender))).shards(1));
    let ask = |line: &str, rest: &str| {
        let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{rest}");
        let answer = exchange(address, request.as_bytes());
        let shown = answer.lines().find_map(|line| line.strip_prefix("X-Request-ID: "));
        (shown.map(str::to_owned), log.recv_timeout(TIMEOUT).unwrap())
    };
    let owned = |text: &str| Some(text.to_owned());

    let (shown, record) = ask("GET /api/things/5", "\r\n");
    assert_eq!(shown.as_ref().map(String::len), Some(32));
    assert_eq!(record, (owned("/api/things/{id}"), Some(200), shown));

    let (shown, record) = ask("GET /api/things/5", "X-Request-ID: two words\r\n\r\n");
    assert_ne!(shown, owned("two words"), "it is not safe, and replaced");
    assert_eq!(record, (owned("/api/things/{id}"), Some(200), shown));

    let (shown, record) =
        ask("POST /api/things", "X-Request-ID: abc\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(shown, owned("abc"));
    assert_eq!(record, (owned("/api/things"), Some(200), shown));

    let (shown, record) = ask("GET /plain", "X-Request-ID: two words\r\n\r\n");
    assert_eq!(shown, None, "no middleware gives it an id");
    assert_eq!(record, (owned("/plain"), Some(200), owned("two words")));

    let (_, record) = ask("GET /nowhere", "\r\n");
    assert_eq!(record, (None, Some(404), None));

    drop(Client::connect(address, "/api/rooms/lobby"));
    let (route, status, id) = log.recv_timeout(TIMEOUT).unwrap();
    assert_eq!((route, status), (owned("/api/rooms/{room}"), Some(101)));
    assert_eq!(id.as_ref().map(String::len), Some(32));
    stop(running);
}
