//! Requests that are answered on workers.

use std::time::Duration;

use throng::prelude::*;
use throng::server::Shards;
use throng::workers::Overload;
use throng_testkit::hold_up;

use super::{Gate, Http, families, figure, gated, workers};
use crate::support::eventually;
use crate::support::served::{self, start, stop};

#[test]
fn requests_are_answered_on_workers_as_they_would_be_on_the_shard() {
    for io in families() {
        let server = Server::new(
            served::app()
                .route(
                    "/sum/{name}/{*rest}",
                    Route::on(Method::Post, |request| {
                        let on = std::thread::current().name().unwrap().to_owned();
                        let (name, rest) = (request.param("name"), request.param("rest"));
                        let query = request.query("q").unwrap_or("none").to_owned();
                        let agent = request.header("user-agent").unwrap_or("none").to_owned();
                        let length = request.body().len();
                        format!("{name:?} {rest:?} {query} {agent} {length} {}", &on[..14])
                    })
                    .blocking(),
                )
                .route(
                    "/wait/{ms}",
                    Route::on(Method::Get, |request| {
                        let ms = request
                            .param("ms")
                            .and_then(|ms| ms.parse().ok())
                            .ok_or_else(|| Reject::bad_request("a number of milliseconds"))?;
                        hold_up(Duration::from_millis(ms));
                        Ok::<_, Reject>(format!("{ms}"))
                    })
                    .blocking(),
                )
                .route(
                    "/panic",
                    Route::on(Method::Get, |_| -> &'static str { panic!("as the test wants it") })
                        .blocking(),
                )
                .get("/inline", |_| "inline"),
        )
        .shards(Shards::new().io(io));
        let (address, running) = start(server);
        let mut http = Http::dial(address);
        let body = "x".repeat(100_000);
        http.say(&format!(
            "POST /sum/a%20b/c/d?q=%C3%A9 HTTP/1.1\r\nHost: x\r\nUser-Agent: me\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let expected = "Some(\"a b\") Some(\"c/d\") é me 100000 throng-worker-";
        assert_eq!(http.hear().1, expected, "{io:?}");
        // Pipelined: the first is the slowest, and still the first to be answered.
        http.say("GET /wait/30 HTTP/1.1\r\nHost: x\r\n\r\nGET /wait/1 HTTP/1.1\r\nHost: x\r\n\r\n");
        http.say("GET /inline HTTP/1.1\r\nHost: x\r\n\r\nGET /wait/no HTTP/1.1\r\nHost: x\r\n\r\n");
        http.say(
            "POST /sum/z/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\n\r\n",
        );
        assert_eq!(http.hear().1, "30");
        assert_eq!(http.hear().1, "1");
        assert_eq!(http.hear().1, "inline");
        assert!(http.hear().0.starts_with("HTTP/1.1 400 "));
        assert_eq!(http.hear().1, "Some(\"z\") Some(\"\") none none 3 throng-worker-");
        // The head of GET's answer, and no body before the next answer.
        http.say(
            "HEAD /wait/12 HTTP/1.1\r\nHost: x\r\n\r\nGET /wait/2 HTTP/1.1\r\nHost: x\r\n\r\n",
        );
        let head = http.hear_head();
        assert!(
            head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Length: 2\r\n"),
            "{head}"
        );
        assert_eq!(http.hear().1, "2");
        http.say(
            "DELETE /wait/2 HTTP/1.1\r\nHost: x\r\n\r\nGET /panic HTTP/1.1\r\nHost: x\r\n\r\n",
        );
        assert!(http.hear().0.starts_with("HTTP/1.1 405 "));
        assert!(http.hear().0.starts_with("HTTP/1.1 500 "));
        http.say("GET /wait/3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let (head, body) = http.hear();
        assert!(head.contains("Connection: close") && body == "3", "{head}");
        eventually("all have ended", || figure(address, "jobs") == 9);
        assert_eq!(figure(address, "panics"), 1);
        stop(running);
    }
}

#[test]
fn requests_wait_for_room_and_each_is_answered() {
    let gate = Gate::default();
    let (address, running) = start(gated(&gate, workers(1, 1, Overload::Pause)));
    let mut clients: Vec<_> = (0..10).map(|_| Http::dial(address)).collect();
    for (i, http) in clients.iter_mut().enumerate() {
        http.say(&format!("GET /http/{i} HTTP/1.1\r\nHost: x\r\n\r\n"));
    }
    eventually("eight wait for room", || figure(address, "waiting_for_capacity") == 8);
    gate.open();
    for (i, http) in clients.iter_mut().enumerate() {
        assert_eq!(http.hear().1, i.to_string());
    }
    stop(running);
}
