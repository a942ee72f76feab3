//! Files of answers, and maintenance.

use std::path::Path;

use throng_balance::Config;
use throng_testkit::{TempFolder, poll};

use crate::sites::{Running, get};
use crate::support::{Scripted, unused_address, upgrade};

fn start(text: &str) -> Running {
    Running::start(text)
}

fn status(head: &str) -> &str {
    &head[9..12]
}

#[test]
fn own_errors_have_the_page_of_their_route_and_those_of_backends_pass() {
    let folder = TempFolder::new("error-pages");
    let down = folder.write("down.html", "<h1>down</h1>");
    let site = folder.write("site.json", "{}");
    let backend = Scripted::bind();
    let running = start(&format!(
        "backends = [\"{}\"]\nretries = 0\n\
         error_pages = {{ 403 = {down:?}, 502 = {down:?} }}\n\
         [[pool]]\nname = \"gone\"\nbackends = [\"{}\"]\n\
         [[site]]\nhosts = [\"a\"]\nerror_pages = {{ 502 = {site:?} }}\nroutes = [\
         {{ path = \"/denied\", deny = [\"127.0.0.0/8\"] }}, \
         {{ path = \"/gone\", pool = \"gone\" }}, \
         {{ path = \"/file\", respond = {{ file = {down:?}, status = 201 }} }}]\n",
        backend.address,
        unused_address(),
    ));
    for (path, expected, kind, text) in [
        ("/denied", "403", "text/html; charset=utf-8", "<h1>down</h1>"),
        ("/gone", "502", "application/json", "{}"),
        ("/file", "201", "text/html; charset=utf-8", "<h1>down</h1>"),
    ] {
        let mut client = running.connect();
        client.send(&get("a", path));
        let (head, body) = client.answer();
        assert_eq!((status(&head), body.as_str()), (expected, text), "{path}: {head}");
        assert!(head.contains(&format!("Content-Type: {kind}\r\n")), "{path}: {head}");
        // HEAD: the same head without a body.
        let mut client = running.connect();
        client.send(
            format!("HEAD {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes(),
        );
        let answer = String::from_utf8(client.rest()).unwrap();
        assert_eq!(status(&answer), expected, "{path}: {answer}");
        let length = format!("Content-Length: {}\r\n", text.len());
        assert!(answer.contains(&length) && answer.ends_with("\r\n\r\n"), "{path}: {answer}");
    }
    let mut client = running.connect();
    client.send(&get("a", "/"));
    let mut server = backend.accept();
    server.head();
    server.send(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nown");
    assert_eq!(client.answer().1, "own");
}

#[test]
fn a_site_under_maintenance_answers_503_and_its_tunnels_go_on() {
    let folder = TempFolder::new("maintenance");
    let page = folder.write("soon.html", "soon");
    let backend = Scripted::bind();
    let text = |more: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nshards = 1\nbackends = [\"{}\"]\ntrusted_proxies = \
             [\"127.0.0.1\"]\n[[site]]\nhosts = [\"a\"]\nname = \"shop\"\n\
             response_headers.set = {{ X-Frame-Options = \"DENY\" }}\n{more}",
            backend.address
        )
    };
    let except = "maintenance_except = [\"10.0.0.0/8\"]\n";
    let on = format!("maintenance = {page:?}\n{except}");
    let (off, on) = (text(except), text(&on));
    let running = start(off.split_once("shards = 1\n").unwrap().1);
    let apply = |text: &str| running.0.apply(Config::parse(text, "b.toml").unwrap()).unwrap();
    let mut tunnel = running.connect();
    let handshake = String::from_utf8(upgrade("/ws")).unwrap().replace("example.com", "a");
    tunnel.send(handshake.as_bytes());
    let mut server = backend.open();
    tunnel.head();
    // The answer of the balancer, or of the backend with 200.
    let answer = |own: &str| {
        let mut client = running.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{own}\r\n").as_bytes());
        poll("an answer", || {
            if let Some(mut server) = backend.try_accept() {
                server.head();
                let served = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                server.send(served.as_bytes());
            }
            client.stream.set_nonblocking(true).unwrap();
            let is_there = client.stream.peek(&mut [0]).is_ok();
            client.stream.set_nonblocking(false).unwrap();
            is_there.then_some(())
        });
        client.answer()
    };
    // An event loop may have the former configuration for a moment.
    let until = |own: &str, expected: &str| {
        poll("the answer has the status", || {
            Some(answer(own)).filter(|(head, _)| status(head) == expected)
        })
    };
    let ask = |own: &str| until(own, "503");
    let is_served = |own: &str| drop(until(own, "200"));
    apply(&on);
    let (head, body) = ask("");
    assert_eq!((status(&head), body.as_str()), ("503", "soon"), "{head}");
    assert!(head.contains("Retry-After: 60\r\n") && head.contains("text/html"), "{head}");
    let (head, body) = ask("Accept: application/json\r\n");
    assert!(head.contains("application/json") && body.contains("\"maintenance\""), "{head}{body}");
    is_served("X-Forwarded-For: 10.0.0.7\r\n");
    tunnel.send_text("hello");
    assert_eq!(server.text(), "hello");
    let mut late = running.connect();
    late.send(handshake.as_bytes());
    assert_eq!(status(&late.head()), "503");
    running.until_logged("503 / shop - - the site is under maintenance");
    // Operators switch it; the file has no say until it changes.
    assert!(running.0.is_in_maintenance("shop").unwrap());
    assert!(!running.0.set_maintenance("shop", Some(false)).unwrap());
    is_served("");
    apply(&(on.clone() + "paths = \"raw\"\n"));
    is_served("");
    apply(&off);
    assert!(!running.0.is_in_maintenance("shop").unwrap());
    assert!(running.0.set_maintenance("shop", Some(true)).unwrap());
    let (head, body) = ask("");
    assert_eq!(status(&head), "503");
    assert!(body.contains("under maintenance"), "{body}");
    assert!(!running.0.set_maintenance("shop", None).unwrap());
    is_served("");
    let unknown = running.0.set_maintenance("other", Some(true)).unwrap_err().to_string();
    assert_eq!(unknown, "site \"other\" is unknown: write one of *, shop");
}

#[test]
fn files_that_are_no_small_regular_files_are_refused() {
    let folder = TempFolder::new("pages");
    let large = folder.write("large.html", "x".repeat((64 << 10) + 1));
    let error = |text: &str| Config::parse(text, "b.toml").unwrap_err().to_string();
    let page = |path: &Path| {
        error(&format!("backends = [\"127.0.0.1:1\"]\nerror_pages = {{ 502 = {path:?} }}\n"))
    };
    assert!(page(&large).contains("65537 bytes: 65536 are the most"), "{}", page(&large));
    assert!(page(&folder.join("none")).contains("no such file"));
    assert!(page(&folder).contains("it is a folder"));
    #[cfg(unix)]
    {
        assert!(page(Path::new("/dev/zero")).contains("it is a device"));
        let fifo = folder.join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(page(&fifo).contains("it is a pipe"), "{}", page(&fifo));
        let huge = folder.write("huge.html", "");
        std::fs::File::options().write(true).open(&huge).unwrap().set_len(10 << 30).unwrap();
        assert!(page(&huge).contains("larger than"), "{}", page(&huge));
    }
    // 65 of 64 KiB are more than 4 MiB together.
    let pages: Vec<_> = (400..465)
        .map(|status| {
            let path = folder.write(&format!("{status}.html"), "x".repeat(64 << 10));
            format!("{status} = {path:?}")
        })
        .collect();
    let all = format!("backends = [\"127.0.0.1:1\"]\nerror_pages = {{ {} }}\n", pages.join(", "));
    assert!(error(&all).contains("at most 4MiB"), "{}", error(&all));
    let site =
        |text: &str| error(&format!("[[site]]\nhosts = \"a\"\nrespond.status = 200\n{text}\n"));
    assert!(site("error_pages = { 200 = \"x\" }").contains("a status of 400 to 599"));
    let both = format!("respond.text = \"a\"\nrespond.file = {:?}", folder.write("a.txt", "a"));
    assert!(site(&both).contains("there is a text, too"));
}

#[test]
fn a_text_keeps_its_spaces_and_its_last_line_end() {
    let text = "listen = \"127.0.0.1:0\"\nshards = 1\n[[site]]\nhosts = [\"*\"]\n\
                respond.text = \"  User-agent: *\\nDisallow: /api\\n\"\n";
    let config = Config::parse(text, "b.toml").unwrap();
    let balancer = throng_balance::Balancer::start(config).unwrap();
    let stream = std::net::TcpStream::connect(balancer.addresses()[0]).unwrap();
    let mut client = crate::support::Peer::new(stream);
    client.send(b"GET /robots.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().1, "  User-agent: *\nDisallow: /api\n");
    balancer.shut_down(std::time::Duration::ZERO, std::time::Duration::ZERO).unwrap();
}
