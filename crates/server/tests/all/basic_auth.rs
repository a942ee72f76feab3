//! Basic authentication of HTTP routes and of upgrades.

use throng::http::{BasicAuth, BasicUser};
use throng::prelude::*;

use crate::support::served::{start, stop};
use crate::support::{Client, Got, exchange};

const CHALLENGE: &str = "WWW-Authenticate: Basic realm=\"the back office\", charset=\"UTF-8\"\r\n";

fn app() -> App {
    let user = |request: &Request<'_>| request.extension::<BasicUser>().map(BasicUser::to_string);
    let greet = Ws::from_request(move |request| user(request).ok_or(Reject::forbidden())).on_open(
        |ws, user| {
            ws.send(format!("hello {user}"));
        },
    );
    let office = App::new()
        .get("/", move |request| user(request))
        .post("/", |request| request.body().to_vec())
        .ws("/ws", greet)
        .layer(BasicAuth::new("the back office").user("ada", "open: sesame").user("bob", "£9"));
    App::new().get("/", |_| "public").nest("/office", office)
}

#[test]
fn routes_and_upgrades_of_a_layer_need_a_user_and_others_do_not() {
    let (address, running) = start(Server::new(app()));
    let ask = |line: &str, authorization: &str| {
        let end = "Content-Length: 2\r\nConnection: close\r\n";
        exchange(
            address,
            format!("{line} HTTP/1.1\r\nHost: x\r\n{end}{authorization}\r\nhi").as_bytes(),
        )
    };
    assert!(ask("GET /", "").ends_with("\r\n\r\npublic"));
    // ada:open: sesame, bob:£9, ada:open: sesam, eve:open: sesame, ada without a colon.
    let (ada, bob) = ("YWRhOm9wZW46IHNlc2FtZQ==", "Ym9iOsKjOQ==");
    for (credentials, expected) in [(ada, "ada"), (bob, "bob")] {
        let field = format!("Authorization: Basic {credentials}\r\n");
        let answer = ask("GET /office", &field);
        assert!(answer.ends_with(&format!("\r\n\r\n{expected}")), "{answer}");
        assert!(ask("POST /office", &field).ends_with("\r\n\r\nhi"));
        let headers = [("Authorization", &*format!("Basic {credentials}"))];
        let mut client = Client::request(address, "/office/ws", &headers).unwrap();
        assert_eq!(client.next(), Got::Text(format!("hello {expected}")));
    }
    for authorization in [
        "",
        "Basic YWRhOm9wZW46IHNlc2Ft",
        "Basic ZXZlOm9wZW46IHNlc2FtZQ==",
        "Basic YWRh",
        "Basic !!!",
        "Bearer YWRhOm9wZW46IHNlc2FtZQ==",
    ] {
        let field = match authorization {
            "" => String::new(),
            value => format!("Authorization: {value}\r\n"),
        };
        for line in ["GET /office", "POST /office"] {
            let answer = ask(line, &field);
            assert!(answer.starts_with("HTTP/1.1 401 "), "{line} {authorization}: {answer}");
            assert!(answer.contains(CHALLENGE), "{answer}");
        }
        let headers = [("Authorization", authorization)];
        let head = Client::request(address, "/office/ws", &headers).map(drop).unwrap_err();
        assert!(head.starts_with("HTTP/1.1 401 ") && head.contains(CHALLENGE), "{head}");
    }
    stop(running);
}

#[test]
fn passwords_are_in_no_debug_output() {
    let layer = BasicAuth::new("office").user("ada", "open sesame");
    assert_eq!(format!("{layer:?}"), "BasicAuth { realm: \"office\", .. }");
}

#[test]
fn users_that_anyone_or_none_could_be_are_refused() {
    for (name, password, part) in
        [("a:b", "secret", "has a colon"), ("ada", "", "needs a password")]
    {
        let app = || App::new().layer(BasicAuth::new("office").user(name, password));
        for app in [app(), App::new().nest("/office", app())] {
            let error = Server::new(app).check().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(name), "{error}");
        }
    }
}
