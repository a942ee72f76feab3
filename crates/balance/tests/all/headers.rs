//! Rules of headers: what backends and clients get.

use throng_balance::Config;

use crate::sites::{Running, get};
use crate::support::{Scripted, upgrade};

fn file(backend: &Scripted) -> String {
    format!(
        "backends = [\"{}\"]\n\
         request_headers.set = {{ X-Client = \"${{client}}\", X-Level = \"top\" }}\n\
         response_headers = {{ set = {{ X-Frame-Options = \"DENY\" }}, remove = [\"Server\"] }}\n\
         [[site]]\nhosts = [\"a.example\"]\nname = \"shop\"\n\
         request_headers = {{ set = {{ X-Level = \"${{site}}\" }}, remove = [\"X-Secret\"] }}\n\
         response_headers.add = {{ X-From = \"${{backend}}\", X-Path = \"${{path}}\" }}\n\
         [[site.route]]\nprefix = \"/r\"\nhost = \"app.internal:81\"\n\
         request_headers = {{ set = {{ X-Level = \"\", X-Forwarded-Proto = \"https\", \
         X-Cookie = \"${{cookie.c}}\", X-Query = \"${{query.q}}\" }}, \
         add = {{ X-Tag = \"${{route}}\" }}, \
         remove = [\"Forwarded\"] }}\n\
         [[site.route]]\npath = \"/own\"\nrespond.text = \"ok\"\n\
         [[site.route]]\npath = \"/back\"\nhost = \"${{backend}}\"\n",
        backend.address
    )
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\nX-Frame-Options: SAMEORIGIN\r\n\
                    X-Path: own\r\nContent-Length: 0\r\n\r\n";

/// Returns the values of a header.
fn values(head: &str, name: &str) -> Vec<String> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let of_name = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
    of_name.map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn rules_of_the_file_the_site_and_the_route_apply_together() {
    let backend = Scripted::bind();
    let running = Running::start(&file(&backend));
    let mut client = running.connect();
    let own = "X-Client: evil\r\nX-Level: evil\r\nx-secret: 1\r\nX_Secret: 2\r\nX-Tag: client\r\n\
               X-Forwarded-Proto: ftp\r\nCookie: c=1\r\nX-Cookie: x\r\n";
    let request = |host: &str, target: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{own}\r\n").into_bytes()
    };
    client.send(&request("a.example", "/r/x?q=a%0d%0aX-Evil:%201"));
    let mut server = backend.accept();
    let head = server.head();
    for (name, expected) in [
        ("X-Client", &["127.0.0.1"][..]),
        ("X-Level", &[]),
        ("X-Secret", &[]),
        ("X_Secret", &[]),
        ("X-Tag", &["client", "/r"]),
        ("X-Forwarded-Proto", &["https"]),
        ("X-Forwarded-Host", &["a.example"]),
        ("Forwarded", &[]),
        ("Host", &["app.internal:81"]),
        ("X-Cookie", &["1"]),
        // Its value would be two lines.
        ("X-Query", &[]),
        ("X-Evil", &[]),
    ] {
        assert_eq!(values(&head, name), expected, "{name}: {head}");
    }
    server.send(OK);
    let (head, _) = client.answer();
    assert_eq!(values(&head, "X-Frame-Options"), ["DENY"]);
    assert_eq!(values(&head, "Server"), [""; 0]);
    assert_eq!(values(&head, "X-Path"), ["own", "/r/x"]);
    assert_eq!(values(&head, "X-From"), [backend.address.to_string()]);
    // A host without a site has the rules of the file.
    client.send(&request("b.example", "/r"));
    let head = server.head();
    assert_eq!(values(&head, "X-Level"), ["top"]);
    assert_eq!(values(&head, "Host"), ["b.example"]);
    assert_eq!(values(&head, "Forwarded").len(), 1);
    server.send(OK);
    assert_eq!(values(&client.answer().0, "X-Path"), ["own"]);
    // The backend's own host.
    client.send(&request("a.example", "/back"));
    assert_eq!(values(&server.head(), "Host"), [backend.address.to_string()]);
    server.send(OK);
    client.answer();
}

#[test]
fn answers_of_the_balancer_and_of_handshakes_have_the_headers() {
    let backend = Scripted::bind();
    let running = Running::start(&file(&backend));
    let mut client = running.connect();
    client.send(&get("a.example", "/own"));
    let (head, body) = client.answer();
    assert_eq!((values(&head, "X-Path"), body.as_str()), (vec!["/own".to_owned()], "ok"));
    assert_eq!(values(&head, "X-Frame-Options"), ["DENY"]);
    assert_eq!(values(&head, "X-From"), [""; 0]);
    client.send(&get("a.example", "/r/..%2f"));
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert_eq!(values(&head, "X-Frame-Options"), ["DENY"]);
    let handshake = String::from_utf8(upgrade("/ws")).unwrap().replace("example.com", "a.example");
    client.send(handshake.as_bytes());
    let server = backend.open();
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert_eq!(values(&head, "X-Path"), ["/ws"]);
    assert_eq!(values(&head, "X-From"), [backend.address.to_string()]);
    drop(server);
    // A backend that is not there: the balancer's answer has them as well.
    drop(backend);
    let mut client = running.connect();
    client.send(&get("a.example", "/x"));
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert_eq!(values(&head, "X-Path"), ["/x"]);
    assert_eq!(values(&head, "X-Frame-Options"), ["DENY"]);
}

#[test]
fn mistakes_in_rules_have_their_key_and_the_remedy() {
    for (text, expected) in [
        (
            "request_headers.set = { X-A = \"${nope}\" }\n",
            "b.toml:2:31: request_headers.set.X-A is \"${nope}\": ${nope} is not a variable",
        ),
        (
            "[[site]]\nhosts = \"a\"\n[[site.route]]\npath = \"/a\"\n\
             [site.route.request_headers.set]\nX-A = \"${param.x}\"\n",
            "sites[0].routes[0].request_headers.set.X-A is \"${param.x}\": each path of the route",
        ),
        (
            "[[site]]\nhosts = \"a\"\nresponse_headers.remove = [\"Content-Length\"]\n",
            "sites[0].response_headers.remove[0] is \"Content-Length\": the balancer writes it",
        ),
        ("host = \"a b\"\n", "b.toml:2:8: host is \"a b\": write a host such as"),
        (
            "[[site]]\nhosts = \"a\"\nrespond.text = \"${backend}\"\n",
            "sites[0].respond.text is a text with variables: no backend",
        ),
    ] {
        let text = format!("backends = [\"127.0.0.1:9001\"]\n{text}");
        let message = Config::parse(&text, "b.toml").unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

/// Returns the id that a backend and a client get.
fn ids(running: &Running, backend: &Scripted, path: &str, own: &str) -> (Vec<String>, Vec<String>) {
    let mut client = running.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{own}\r\n").as_bytes());
    let mut server = backend.accept();
    let at_backend = values(&server.head(), "X-Request-ID");
    server.send(b"HTTP/1.1 200 OK\r\nX-Request-ID: backend\r\nContent-Length: 0\r\n\r\n");
    (at_backend, values(&client.answer().0, "X-Request-ID"))
}

#[test]
fn ids_of_requests_pass_are_added_or_replaced() {
    let backend = Scripted::bind();
    let sites = "[[site]]\nhosts = [\"*\"]\nrequest_id = \"add\"\nroutes = [\
                 { path = \"/pass\", request_id = \"pass\" }, \
                 { path = \"/replace\", request_id = \"replace\" }, \
                 { path = \"/own\", respond.text = \"${request_id}\" }]\n";
    let start = |trusted: &str| {
        let backends = format!("backends = [\"{}\"]\n{trusted}keep_alive = 0\n", backend.address);
        Running::start(&(backends + sites))
    };
    let (open, behind) = (start(""), start("trusted_proxies = [\"127.0.0.1\"]\n"));
    let sent = "X-Request-ID: sent\r\nX_Request_ID: other\r\n";
    let is_drawn = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (running, path, own, kept) in [
        (&open, "/", "", None),
        (&open, "/", sent, None),
        (&behind, "/", "", None),
        (&behind, "/", sent, Some("sent")),
        (&behind, "/replace", sent, None),
        (&open, "/replace", "", None),
    ] {
        let (at_backend, at_client) = ids(running, &backend, path, own);
        assert_eq!(at_backend, at_client, "{path} {own}");
        assert_eq!(at_backend.len(), 1, "{path} {own}");
        let is_it = kept.map_or(is_drawn(&at_backend[0]), |kept| at_backend[0] == kept);
        assert!(is_it, "{path} {own}: {at_backend:?}");
    }
    let (at_backend, at_client) = ids(&open, &backend, "/pass", "X-Request-ID: sent\r\n");
    assert_eq!((at_backend, at_client), (vec!["sent".to_owned()], vec!["backend".to_owned()]));
    let mut client = open.connect();
    client.send(&get("a", "/own"));
    let (head, body) = client.answer();
    assert!(is_drawn(&body), "{head}");
    assert_eq!(values(&head, "X-Request-ID"), [body]);
}

#[test]
fn the_path_for_a_backend_is_shortened_or_rewritten() {
    let backend = Scripted::bind();
    let running = Running::start(&format!(
        "backends = [\"{}\"]\ntrusted_proxies = [\"127.0.0.1\"]\n[[site]]\nhosts = [\"*\"]\n\
         routes = [\
         {{ prefix = \"/api\", strip_prefix = \"/api\" }}, \
         {{ path = \"/v1/{{*rest}}\", rewrite = \"/v2/${{param.rest}}\" }}, \
         {{ path = \"/ws/{{room}}\", rewrite = \"/socket?room=${{param.room}}\" }}]\n",
        backend.address
    ));
    let mut client = running.connect();
    let mut server = None;
    for (target, own, expected, prefix) in [
        ("/api/x?q=1", "", "/x?q=1", Some("/api")),
        ("/api", "X-Forwarded-Prefix: /outer/\r\n", "/", Some("/outer/api")),
        ("http://a.example/api/x", "", "/x", Some("/api")),
        ("/v1/a%2Fb?q", "", "/v2/a%2Fb?q", None),
        ("/v1/", "X-Forwarded-Prefix: /outer\r\n", "/v2/", Some("/outer")),
        ("/other?x", "", "/other?x", None),
    ] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n{own}\r\n").as_bytes());
        let server = server.get_or_insert_with(|| backend.accept());
        let head = server.head();
        assert!(head.starts_with(&format!("GET {expected} HTTP/1.1\r\n")), "{target}: {head}");
        let found = values(&head, "X-Forwarded-Prefix");
        assert_eq!(found, prefix.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{target}");
        server.send(OK);
        client.answer();
    }
    let mut client = running.connect();
    client.send(&upgrade("/ws/7?token=1"));
    let mut server = backend.accept();
    let head = server.head();
    assert!(head.starts_with("GET /socket?room=7 HTTP/1.1\r\n"), "{head}");
}
