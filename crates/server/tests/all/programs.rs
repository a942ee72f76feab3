//! Whole programs: examples with more than one part, each tested by clients.

#[path = "../../examples/json_rpc.rs"]
mod json_rpc;
#[path = "../../examples/messenger.rs"]
mod messenger;
#[path = "../../examples/ticker.rs"]
mod ticker;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use throng::client::{Client, ClientError};
use throng::prelude::*;
use throng::test::TestServer;
use throng_testkit::eventually;

use crate::{dashboard, game};

const TIMEOUT: Duration = Duration::from_secs(60);

fn next(client: &mut Client) -> String {
    match client.recv().unwrap() {
        Some(Message::Text(text)) => text.to_owned(),
        other => panic!("{other:?}"),
    }
}

/// The first message that begins so.
fn next_of(client: &mut Client, begin: &str) -> String {
    loop {
        let text = next(client);
        if text.starts_with(begin) {
            return text;
        }
    }
}

fn end_of(client: &mut Client) -> (u16, String) {
    while client.recv().unwrap().is_some() {}
    let close = client.close_frame().expect("the server closes");
    (close.code.get(), close.reason.clone())
}

mod messages {
    use super::*;

    fn join(server: &TestServer, room: &str, name: &str) -> Client {
        let token = messenger::token(name);
        let client = server.client(&format!("/rooms/{room}"));
        let mut client =
            client.header("Authorization", format!("Bearer {token}")).connect().unwrap();
        let _ = next_of(&mut client, "* here: ");
        client
    }

    #[test]
    fn a_signed_token_is_taken_from_the_header_the_cookie_and_the_query() {
        let server = TestServer::start(messenger::server());
        let token = messenger::token("ada");
        let path = "/rooms/lobby";
        let ways = [
            server.client(path).header("Authorization", format!("Bearer {token}")),
            server.client(path).header("Cookie", format!("a=b; token={token}")),
            server.client(&format!("{path}?token={token}")),
        ];
        for way in ways {
            let mut client = way.connect().unwrap();
            assert_eq!(next_of(&mut client, "* here: "), "* here: ada");
        }
        let documented = include_str!("../../examples/messenger.rs");
        assert!(documented.contains(&messenger::token("hello")), "the URL to try");
        let forged = token.replace("ada", "bob");
        let star = messenger::token("*");
        for token in ["", "ada", "ada.", &forged, &star] {
            let error = server.client(&format!("{path}?token={token}")).connect().unwrap_err();
            assert!(
                matches!(error, ClientError::Refused(refused) if refused.status == 401),
                "{token}"
            );
        }
        let token = messenger::token("ada");
        let error = server.client(&format!("/rooms/*?token={token}")).connect().unwrap_err();
        assert!(matches!(error, ClientError::Refused(refused) if refused.status == 400));
    }

    /// All members of a room see its lines in one order, and a later member sees the last of them.
    #[test]
    fn all_devices_of_a_room_see_one_order_and_later_ones_the_last_fifty_lines() {
        const LINES: usize = 40;
        let server = TestServer::start(messenger::server().shards(2));
        let mut members = ["a", "b", "c", "d"].map(|name| join(&server, "lobby", name));
        std::thread::scope(|scope| {
            for member in &mut members {
                // A user's share is twenty messages.
                scope.spawn(|| (0..LINES / 4).for_each(|n| member.send(&*n.to_string()).unwrap()));
            }
        });
        let seen = members.map(|mut member| {
            let is_line = |line: &String| !line.starts_with('*');
            std::iter::repeat_with(|| next(&mut member)).filter(is_line).take(LINES).collect()
        });
        let [first, others @ ..]: [Vec<String>; 4] = seen;
        for other in others {
            assert_eq!(first, other);
        }
        let token = messenger::token("e");
        let mut late = server.ws(&format!("/rooms/lobby?token={token}"));
        let mut missed = Vec::new();
        while missed.len() < LINES {
            let line = next(&mut late);
            if !line.starts_with('*') {
                missed.push(line);
            }
        }
        assert_eq!(first, missed);
    }

    #[test]
    fn a_private_message_reaches_all_devices_of_its_user_and_no_one_else() {
        let server = TestServer::start(messenger::server().shards(2));
        let mut bobs = [join(&server, "lobby", "bob"), join(&server, "attic", "bob")];
        let mut eve = join(&server, "lobby", "eve");
        let mut ada = join(&server, "lobby", "ada");
        for to in ["bob", "*", ">"] {
            ada.send(&*format!("@{to} the key is 42")).unwrap();
        }
        ada.send("...").unwrap();
        for bob in &mut bobs {
            assert_eq!(next_of(bob, "ada"), "ada to bob: the key is 42");
        }
        // Private lines would have come before.
        assert_eq!(next_of(&mut eve, "* ada is"), "* ada is typing");
        ada.send("done").unwrap();
        assert_eq!(next_of(&mut eve, "ada"), "ada: done");
    }

    #[test]
    fn joins_and_leaves_are_seen_however_a_device_ends() {
        let server = TestServer::start(messenger::server().shards(2));
        let mut ada = join(&server, "lobby", "ada");
        let mut bob = join(&server, "lobby", "bob");
        assert_eq!(next_of(&mut ada, "* bob"), "* bob joined");
        bob.close(1000, "").unwrap();
        assert_eq!(next_of(&mut ada, "* bob"), "* bob left");
        drop(join(&server, "lobby", "cid"));
        assert_eq!(next_of(&mut ada, "* cid left"), "* cid left");
    }

    #[test]
    fn a_user_has_one_share_on_all_devices_and_stays_connected() {
        let server = TestServer::start(messenger::server());
        let mut devices = [join(&server, "lobby", "ada"), join(&server, "attic", "ada")];
        for n in 0..30 {
            devices[n % 2].send(&*n.to_string()).unwrap();
        }
        // Each message is answered: with itself, or with the refusal.
        let mut answers = Vec::new();
        for mut device in devices {
            let is_answer = |text: &String| text.starts_with("ada: ") || text == "* slow down";
            let texts = std::iter::repeat_with(|| next(&mut device));
            answers.extend(texts.filter(is_answer).take(15));
            device.close(1000, "").unwrap();
        }
        assert_eq!(answers.iter().filter(|text| *text == "* slow down").count(), 10);
    }

    #[test]
    fn a_restart_is_announced_with_its_code_and_reason() {
        let server = TestServer::start(messenger::server());
        let mut ada = join(&server, "lobby", "ada");
        server.running().stopper().shutdown(DrainPlan::default().code(CloseCode::SERVICE_RESTART));
        assert_eq!(end_of(&mut ada), (1012, "service restart".to_owned()));
    }
}

mod boards {
    use super::*;

    fn numbers(client: &mut Client) -> (u64, u64) {
        let Some(Message::Binary(quote)) = client.recv().unwrap() else { panic!("no quote") };
        let (number, price) = quote.split_at(8);
        let number_of = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
        (number_of(number), number_of(price))
    }

    /// The snapshot comes first; then no number is missing before the newest.
    #[test]
    fn a_snapshot_comes_before_all_changes_and_none_is_missing() {
        const CHANGES: u64 = 2000;
        let book = ticker::Book::default();
        let server = TestServer::start(ticker::server(&book).shards(2));
        let hub = server.hub();
        book.set(&hub, "EUR", 1, 1001);
        let mut unknown = server.ws("/prices");
        unknown.send("XXX").unwrap();
        assert_eq!(next(&mut unknown), "XXX: no such symbol");
        let mut clients: Vec<Client> = (0..8).map(|_| server.ws("/prices")).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| (2..=CHANGES).for_each(|n| book.set(&hub, "EUR", n, 1000 + n)));
            for client in &mut clients {
                scope.spawn(move || {
                    client.send("EUR").unwrap();
                    let (mut last, price) = numbers(client);
                    assert_eq!(price, 1000 + last);
                    while last < CHANGES {
                        let (number, price) = numbers(client);
                        assert_eq!(price, 1000 + number);
                        // Numbers in flight come again; a slow reader misses some.
                        last = last.max(number);
                    }
                });
            }
        });
        book.set(&hub, "EUR", CHANGES + 1, 7);
        for client in &mut clients {
            let last = std::iter::repeat_with(|| numbers(client)).find(|(n, _)| *n > CHANGES);
            assert_eq!(last, Some((CHANGES + 1, 7)));
        }
    }
}

mod games {
    use throng::test::{LocalClient, LocalServer};

    use super::*;

    /// Lets `count` ticks pass.
    fn tick(server: &LocalServer, count: u32) {
        (0..count).for_each(|_| server.advance(game::TICK));
    }

    /// The newest state, after one tick more.
    fn state(server: &LocalServer, client: &mut LocalClient) -> String {
        tick(server, 1);
        let last = std::iter::from_fn(|| client.try_recv()).last().expect("a state each tick");
        String::from_utf8(last.as_bytes().to_vec()).unwrap()
    }

    fn place(server: &LocalServer, client: &mut LocalClient) -> i64 {
        state(server, client).rsplit_once(':').unwrap().1.parse().unwrap()
    }

    #[test]
    fn players_move_keep_their_place_for_three_seconds_and_have_one_device() {
        let server = LocalServer::start(game::server());
        let mut ada = server.ws("/rooms/1?name=ada");
        let mut other = server.ws("/rooms/2?name=bob");
        ada.send("right");
        tick(&server, 2);
        assert!(place(&server, &mut ada) >= 2);
        assert!(state(&server, &mut other).ends_with(" bob:0"), "a room sees its own players");
        // Another device plays on in the same place, and the first one's leave changes nothing.
        let mut phone = server.ws("/rooms/1?name=ada");
        while ada.try_recv().is_some() {}
        let close = ada.close_frame().expect("one device for a player");
        assert_eq!((close.code.get(), &*close.reason), (4001, "you play on another device"));
        drop(ada);
        phone.send("stop");
        let last = place(&server, &mut phone);
        assert!(last >= 3);
        assert_eq!(place(&server, &mut phone), last, "it stands");
        // A connection that is lost.
        drop(phone);
        tick(&server, game::KEPT - 2);
        let mut back = server.ws("/rooms/1?name=ada");
        assert_eq!(place(&server, &mut back), last);
        back.close(1000, "");
        tick(&server, game::KEPT + 1);
        let mut new = server.ws("/rooms/1?name=ada");
        assert_eq!(place(&server, &mut new), 0);
    }
}

mod calls {
    use super::*;

    /// Longer than a test, so that no call times out.
    const NEVER: Duration = Duration::from_secs(3600);

    /// The service behind the server.
    struct Service(TcpListener);

    impl Service {
        /// Takes a call.
        fn take(&self) -> (Value, TcpStream) {
            let (stream, _) = self.0.accept().unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            (serde_json::from_str(&line).unwrap(), stream)
        }

        /// Takes this many calls, by their ids.
        fn take_all(&self, count: usize) -> Vec<TcpStream> {
            let mut calls: Vec<_> = (0..count).map(|_| self.take()).collect();
            calls.sort_by_key(|(call, _)| call["id"].as_u64());
            calls.into_iter().map(|(_, stream)| stream).collect()
        }
    }

    fn is_aborted(mut call: TcpStream) {
        assert_eq!(call.read(&mut [0; 8]).unwrap(), 0, "the call is aborted");
    }

    fn start(limit: Duration) -> (tokio::runtime::Runtime, Service, TestServer) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = service.local_addr().unwrap();
        let server = json_rpc::server(runtime.handle().clone(), address, limit);
        (runtime, Service(service), TestServer::start(server))
    }

    fn call(client: &mut Client, id: usize) {
        client.send(&*json!({ "id": id, "method": "price" }).to_string()).unwrap();
    }

    fn answer(client: &mut Client) -> Value {
        serde_json::from_str(&next(client)).unwrap()
    }

    #[test]
    fn calls_are_answered_in_any_order_and_a_cancel_aborts_its_own() {
        let (_runtime, service, server) = start(NEVER);
        let mut client = server.ws("/rpc");
        (0..3).for_each(|id| call(&mut client, id));
        let mut calls = service.take_all(3);
        calls.pop().unwrap().write_all(b"two").unwrap();
        assert_eq!(answer(&mut client), json!({ "id": 2, "result": "two" }));
        client.send(r#"{"cancel":0}"#).unwrap();
        is_aborted(calls.remove(0));
        calls.pop().unwrap().write_all(b"one").unwrap();
        assert_eq!(answer(&mut client), json!({ "id": 1, "result": "one" }));
        client.send("{}").unwrap();
        assert_eq!(answer(&mut client), json!({ "error": "no call", "got": "{}" }));
    }

    #[test]
    fn a_call_that_takes_too_long_is_aborted_and_answered() {
        let (_runtime, service, server) = start(Duration::from_millis(50));
        let mut client = server.ws("/rpc");
        call(&mut client, 1);
        let answered = answer(&mut client);
        assert_eq!(answered, json!({ "id": 1, "error": "timed out" }));
        is_aborted(service.take().1);
    }

    /// All calls of the client are in use: it can still cancel one, and its end is noticed.
    #[test]
    fn a_client_that_has_used_its_calls_up_can_cancel_and_is_seen_to_leave() {
        let (_runtime, service, server) = start(NEVER);
        let mut client = server.ws("/rpc");
        (0..=json_rpc::CALLS).for_each(|id| call(&mut client, id));
        let refused = json!({ "id": json_rpc::CALLS, "error": "too many calls" });
        assert_eq!(answer(&mut client), refused);
        let mut calls = service.take_all(json_rpc::CALLS);
        client.send(r#"{"cancel":0}"#).unwrap();
        is_aborted(calls.remove(0));
        drop(client);
        calls.into_iter().for_each(is_aborted);
    }

    #[test]
    fn a_drain_answers_the_calls_at_work_first() {
        let (_runtime, service, server) = start(TIMEOUT);
        let mut client = server.ws("/rpc");
        call(&mut client, 1);
        let (_, mut at_work) = service.take();
        server.running().stopper().shutdown(DrainPlan::default().grace(TIMEOUT));
        let mut late = server.client("/rpc");
        eventually("the drain has begun", || {
            let fresh = std::mem::replace(&mut late, server.client("/rpc"));
            fresh.connect().is_err()
        });
        at_work.write_all(b"done").unwrap();
        drop(at_work);
        assert_eq!(answer(&mut client), json!({ "id": 1, "result": "done" }));
        assert_eq!(end_of(&mut client).0, 1001);
    }
}

mod dashboards {
    use super::*;

    const PAGE: &str = "https://app.example";

    /// The next event's data.
    fn event(stream: &mut impl BufRead) -> String {
        loop {
            let mut line = String::new();
            assert!(stream.read_line(&mut line).unwrap() > 0, "the stream goes on");
            if let Some(data) = line.strip_prefix("data: ") {
                return data.trim_end().to_owned();
            }
        }
    }

    #[test]
    fn an_api_a_page_events_and_a_websocket_share_a_port() {
        let server = TestServer::start(dashboard::server().shards(2));
        let mut live = server.ws("/live");
        let mut events = TcpStream::connect(server.address()).unwrap();
        events.set_read_timeout(Some(TIMEOUT)).unwrap();
        events.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut events = BufReader::new(events);
        eventually("both are members", || server.hub().subscribers("news") == 2);
        // A page of another origin asks first, logs in, and sees refusals as well.
        let asks = [("Origin", PAGE), ("Access-Control-Request-Method", "POST")];
        let allowed = server.request("OPTIONS", "/api/orders", &asks, b"");
        assert_eq!(allowed.header("Access-Control-Allow-Origin"), Some(PAGE));
        let refused = server.request("GET", "/api/orders", &[("Origin", PAGE)], b"");
        assert_eq!(refused.status, 401);
        assert_eq!(refused.header("Access-Control-Allow-Origin"), Some(PAGE));
        let form = ("Content-Type", "application/x-www-form-urlencoded");
        let login = server.request("POST", "/api/login", &[form], b"name=ada");
        let cookie = login.header("Set-Cookie").unwrap().split_once(';').unwrap().0;
        let cookie = [("Cookie", cookie)];
        for n in 0..20 {
            let order = format!("order {n}");
            let added = server.request("POST", "/api/orders", &cookie, order.as_bytes());
            assert_eq!(added.status, 201);
            assert_eq!([next(&mut live), event(&mut events)], [&*order, &*order]);
        }
        let all = server.request("GET", "/api/orders", &cookie, b"");
        assert_eq!(all.text().lines().count(), 20);
        // Uploads report their progress, including an upload that breaks off.
        let whole = server.request("PUT", "/api/files", &cookie, &[0; 200_000]);
        assert_eq!((whole.status, whole.text()), (201, "200000 bytes\n"));
        assert_eq!(next_of(&mut live, "upload: 200000"), "upload: 200000 bytes");
        let mut broken = TcpStream::connect(server.address()).unwrap();
        let (name, value) = cookie[0];
        let head = format!("PUT /api/files HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\n");
        broken.write_all(format!("{head}Content-Length: 9\r\n\r\nhalf").as_bytes()).unwrap();
        assert_eq!(next_of(&mut live, "upload"), "upload: 4 bytes");
        drop(broken);
        assert!(!next_of(&mut live, "upload").contains("bytes"), "the reader gets an error");
        // The page answers all paths except the paths of the API.
        for path in ["/", "/orders/7"] {
            assert!(server.get(path).text().starts_with("<!doctype html>"), "{path}");
        }
    }
}
