use super::*;
use crate::forward::{MAX_CONNECTION_OPTIONS, Refusal, RequestKind, has_looped, validate};

#[test]
fn rfc9110_7_6_1_what_concerns_one_hop_goes_no_further() {
    // The client's fields besides request line and Host, and the forwarded ones.
    let table = [
        ("", ""),
        ("Accept: */*\r\nx-Y:  z \r\n", "Accept: */*\r\nx-Y: z\r\n"),
        ("Connection: close\r\n", ""),
        ("Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n", ""),
        ("Proxy-Connection: keep-alive\r\n", ""),
        ("Proxy-Authorization: Basic eA==\r\nProxy-Authenticate: Basic\r\n", ""),
        (
            "Proxy-Authentication-Info: x\r\nProxy-Authorization-Rest: x\r\n",
            "Proxy-Authorization-Rest: x\r\n",
        ),
        ("Proxy: http://evil/\r\n", ""),
        ("Connection: X-Own, close\r\nX-Own: 1\r\nX-Other: 2\r\n", "X-Other: 2\r\n"),
        ("X-Own: 1\r\nConnection: close\r\nConnection: ,,x-own\r\n", ""),
        // Not hop-by-hop: the field is dropped even if Connection does not name it.
        ("TE: deflate\r\n", ""),
        ("TE: deflate;q=0.5, trailers\r\nConnection: TE\r\n", "Connection: TE\r\nTE: trailers\r\n"),
        ("TE: trailers\r\n", "Connection: TE\r\nTE: trailers\r\n"),
        ("Trailer: ETag\r\n", ""),
        (
            "Transfer-Encoding: Chunked\r\nTrailer: ETag\r\n",
            "Trailer: ETag\r\nTransfer-Encoding: chunked\r\n",
        ),
        ("Content-Length: 007\r\n", "Content-Length: 7\r\n"),
        ("Content-Length: 0\r\n", "Content-Length: 0\r\n"),
        ("Expect: 100-Continue\r\n", ""),
        (
            "Expect: 100-continue\r\nContent-Length: 1\r\n",
            "Expect: 100-continue\r\nContent-Length: 1\r\n",
        ),
        ("Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAM\r\n", ""),
        ("Upgrade: websocket\r\n", ""),
        ("Connection: Upgrade\r\n", ""),
    ];
    for (sent, kept) in table {
        let got = forwarded(&format!("GET / HTTP/1.1\r\nHost: a\r\n{sent}\r\n"));
        assert_eq!(got, format!("GET / HTTP/1.1\r\nHost: a\r\n{kept}"), "{sent:?}");
    }
}

#[test]
fn connection_cannot_strip_what_the_backend_relies_on() {
    for name in [
        "Host",
        "Content-Length",
        "Content-Type",
        "Cookie",
        "Authorization",
        "Origin",
        "Referer",
        "Cache-Control",
        "Range",
        "Sec-Fetch-Site",
        "Sec-WebSocket-Protocol",
        "Via",
        "Access-Control-Request-Method",
    ] {
        let value = if name == "Host" || name == "Content-Length" { "7" } else { "x" };
        let host = if name == "Host" { "" } else { "Host: a\r\n" };
        let head = format!(
            "POST / HTTP/1.1\r\n{host}Connection: close, {}\r\n{name}: {value}\r\n\r\n",
            name.to_ascii_uppercase()
        );
        let got = forwarded(&head);
        assert_eq!(lines_of(&got, name), [format!("{name}: {value}")], "{got}");
        assert_eq!(lines_of(&got, "Connection"), [""; 0]);
    }
    // Claims of earlier proxies are dropped as well.
    for name in ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "X-Real-IP"] {
        let head = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: {name}\r\n{name}: for=10.0.0.9\r\n\r\n"
        );
        let got = forwarded_by(&head, &hop("10.0.0.1", true));
        assert!(lines_of(&got, name)[0].contains("for=10.0.0.9"), "{got}");
    }
}

#[test]
fn rfc8586_2_a_request_that_comes_again_is_known_by_the_id_that_nothing_removes() {
    let dropped = ["CDN-Loop".to_owned()];
    let hop = Hop { dropped: &dropped, ..hop("192.0.2.1", false) };
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: CDN-Loop\r\n\
         CDN-Loop: one; x=\"a, own\"\r\n\
        CDN_Loop: two\r\n\r\n";
    let text = written(head, &hop);
    assert_eq!(lines_of(&text, "CDN-Loop"), ["CDN-Loop: one; x=\"a, own\"", "CDN-Loop: own"]);
    let has = |lines: &str, id: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        with_request(&head, |request| has_looped(request, id)).unwrap()
    };
    let lines = "CDN-Loop: one;v=1 ,,\tTwo ; x\r\nCDN-Loop: three\r\n";
    for id in ["one", "two", "three"] {
        assert!(has(lines, id), "{id}");
    }
    for (lines, id) in [(lines, "x"), (lines, "on"), ("", "one"), ("CDN-Loop: \r\n", "one")] {
        assert!(!has(lines, id), "{lines:?} {id}");
    }
}

#[test]
fn names_that_cgi_takes_for_ours_are_dropped_and_other_underscores_pass() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 1\r\nX-Forwarded_Proto: https\r\n\
        X_Real_IP: 1\r\nContent_Length: 4\r\nTransfer_Encoding: chunked\r\nSec_WebSocket_Key: x\r\n\
        Proxy_Authorization: x\r\napi_key: 7\r\nX_User: 8\r\n\r\n";
    assert_eq!(forwarded(head), "GET / HTTP/1.1\r\nHost: a\r\napi_key: 7\r\nX_User: 8\r\n");
    // Not even from a trusted proxy, which would not write it.
    let got = forwarded_by(head, &hop("10.0.0.1", true));
    assert!(!got.contains("https") && !got.contains("Forwarded_"), "{got}");
}

#[test]
fn the_target_is_in_origin_form_and_the_version_is_ours() {
    for (line, host, written) in [
        ("GET /a?b HTTP/1.1", "h", "GET /a?b HTTP/1.1\r\nHost: h\r\n"),
        ("GET http://other:81/a?b HTTP/1.1", "h", "GET /a?b HTTP/1.1\r\nHost: other:81\r\n"),
        ("GET http://other HTTP/1.1", "h", "GET / HTTP/1.1\r\nHost: other\r\n"),
        ("GET http://other?b HTTP/1.1", "h", "GET /?b HTTP/1.1\r\nHost: other\r\n"),
        ("BREW //x HTTP/1.0", "h", "BREW //x HTTP/1.1\r\nHost: h\r\n"),
        ("GET / HTTP/1.9", "h", "GET / HTTP/1.1\r\nHost: h\r\n"),
        // The target's host counts.
        ("GET http://other HTTP/1.1", "", "GET / HTTP/1.1\r\nHost: other\r\n"),
    ] {
        let head = format!("{line}\r\nHost: {host}\r\n\r\n");
        assert_eq!(forwarded(&head), written, "{line}");
        with_request(&head, |request| assert!(validate(request).is_ok())).unwrap();
    }
    // RFC 9112 section 3.2: HTTP/1.1 must have one.
    assert_eq!(forwarded("GET / HTTP/1.0\r\n\r\n"), "GET / HTTP/1.1\r\nHost: backend\r\n");
    // HTTP/1.0 had no expectations, upgrades or trailers.
    let old = "GET / HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\
        TE: trailers\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(forwarded(old), "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n");
}

const HANDSHAKE: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: WebSocket\r\n\
    Connection: keep-alive, Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Extensions: permessage-deflate; x=\"a,b\"\r\n\
    Sec-WebSocket-Protocol: chat, mqtt\r\n\r\n";

#[test]
fn a_websocket_handshake_passes_with_everything_that_is_between_the_ends() {
    assert_eq!(
        forwarded(HANDSHAKE),
        "GET /chat HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate; x=\"a,b\"\r\n\
         Sec-WebSocket-Protocol: chat, mqtt\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    );
    let close = Hop { close: true, ..hop("192.0.2.1", false) };
    let text = forwarded_by(HANDSHAKE, &close);
    assert_eq!(lines_of(&text, "Connection"), ["Connection: Upgrade"]);
    let text = forwarded_by("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &close);
    assert_eq!(lines_of(&text, "Connection"), ["Connection: close"]);
    // This project's server accepts it.
    let text = forwarded_by(HANDSHAKE, &hop("192.0.2.1", false));
    let key = with_request(&text, |request| match validate(request) {
        Ok(RequestKind::WebSocket(key)) => key.as_str().to_owned(),
        other => panic!("{other:?}"),
    });
    assert_eq!(key.unwrap(), "dGhlIHNhbXBsZSBub25jZQ==");
}

#[test]
fn refused_requests_are_answered() {
    let get = "GET / HTTP/1.1\r\nHost: a\r\n";
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let many: String = (0..=MAX_CONNECTION_OPTIONS).map(|n| format!("x{n},")).collect();
    for (head, refusal) in [
        ("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n".to_owned(), Refusal::Connect),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n".to_owned(), Refusal::Trace),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n".to_owned(), Refusal::Asterisk),
        ("OPTIONS http://a HTTP/1.1\r\nHost: a\r\n".to_owned(), Refusal::Asterisk),
        (format!("POST / HTTP/1.1\r\nHost: a\r\n{upgrade}{key}"), Refusal::UpgradeMethod),
        (format!("{get}{upgrade}{key}Content-Length: 1\r\n"), Refusal::UpgradeBody),
        (format!("{get}{upgrade}{key}Transfer-Encoding: chunked\r\n"), Refusal::UpgradeBody),
        (format!("{get}{upgrade}"), Refusal::UpgradeKey),
        (format!("{get}{upgrade}{key}{key}"), Refusal::UpgradeKey),
        (format!("{get}{upgrade}Sec-WebSocket-Key: short\r\n"), Refusal::UpgradeKey),
        (format!("{get}Connection: {many}\r\n"), Refusal::ConnectionOptions),
        ("GET / HTTP/1.1\r\nHost:\r\n".to_owned(), Refusal::EmptyHost),
        ("GET / HTTP/1.1\r\nHost: \t \r\n".to_owned(), Refusal::EmptyHost),
        ("GET / HTTP/1.1\r\nHost: :80\r\n".to_owned(), Refusal::EmptyHost),
        ("GET / HTTP/1.0\r\nHost:\r\n".to_owned(), Refusal::EmptyHost),
        (format!("GET / HTTP/1.1\r\nHost:\r\n{upgrade}{key}"), Refusal::EmptyHost),
    ] {
        let refused = with_request(&format!("{head}\r\n"), |request| validate(request).err());
        assert_eq!(refused.unwrap(), Some(refusal), "{head}");
        assert!(matches!(refusal.status(), 400 | 501) && !refusal.reason().is_empty());
    }
    for head in [
        get.to_owned(),
        "GET / HTTP/1.0\r\n".to_owned(),
        "OPTIONS http://a/ HTTP/1.1\r\nHost: a\r\n".to_owned(),
        format!("{get}Connection: {}\r\n", &many[many.find(',').unwrap() + 1..]),
        // Not a handshake, so its rules do not apply: it is forwarded as a plain request.
        "POST / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\
                 Content-Length: 1\r\n"
            .to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nContent-Length: 1\r\n".to_owned(),
    ] {
        let refused = with_request(&format!("{head}\r\n"), |request| {
            assert!(matches!(validate(request), Ok(RequestKind::Http)), "{head}");
        });
        refused.unwrap();
    }
}

#[test]
fn fields_that_backends_trust_come_from_trusted_proxies_only() {
    let dropped = crate::Settings::default().drop_headers;
    let lines = "True-Client-IP: 10.0.0.1\r\nCF-Connecting-IP: 10.0.0.1\r\n\
                 X-Client-IP: 10.0.0.1\r\nClient-IP: 10.0.0.1\r\nForwarded-For: 10.0.0.1\r\n\
                 X-Original-URL: /admin\r\n\
                 X-Rewrite-URL: /admin\r\nX-Host: evil\r\ntrue-client-ip: 10.0.0.1\r\n\
                 X-Cluster-Client-IP: 10.0.0.1\r\nFastly-Client-IP: 10.0.0.1\r\n\
                 Remote-User: admin\r\nX-Remote-User: admin\r\nX-Original-Host: evil\r\n\
                 X_Client_IP: 10.0.0.1\r\n";
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}X-Client: stays\r\n\r\n");
    let untrusted = Hop { dropped: &dropped, ..hop("192.0.2.1", false) };
    let text = forwarded_by(&head, &untrusted);
    assert!(!text.contains("10.0.0.1") && !text.contains("admin"), "{text}");
    assert!(!text.contains("evil") && text.contains("X-Client: stays\r\n"), "{text}");
    let trusted = Hop { dropped: &dropped, ..hop("192.0.2.1", true) };
    let text = forwarded_by(&head, &trusted);
    assert!(text.contains("True-Client-IP: 10.0.0.1") && text.contains("X-Host: evil"), "{text}");
    // Without a list they pass like any other field.
    assert!(forwarded_by(&head, &hop("192.0.2.1", false)).contains("X-Host: evil"));
}
