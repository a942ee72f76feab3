//! For any request that passes: the backend reads exactly the client's request.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::forward::validate;

/// Names and values with a special meaning, and their near misses.
fn line() -> impl Strategy<Value = String> {
    let name = select(vec![
        "Connection",
        "Content-Length",
        "content_length",
        "Transfer-Encoding",
        "Transfer_Encoding",
        "TE",
        "Trailer",
        "Upgrade",
        "Keep-Alive",
        "Proxy-Connection",
        "Proxy",
        "Expect",
        "Host",
        "X-Forwarded-For",
        "Forwarded",
        "X-Forwarded-Proto",
        "X-Forwarded-Host",
        "X_Forwarded_For",
        "Cookie",
        "Sec-WebSocket-Key",
        "X-Own",
        "Accept",
    ]);
    let value = select(vec![
        "close",
        "keep-alive",
        "upgrade",
        "Upgrade, X-Own",
        "Host",
        "Content-Length, Transfer-Encoding",
        "X-Own, cookie",
        "chunked",
        "gzip, chunked",
        "0",
        "7",
        "00",
        "websocket",
        "h2c, WebSocket",
        "trailers",
        "100-continue",
        "a",
        "a:80",
        "[::1]",
        "1.1.1.1",
        "for=\"",
        "for=1.1.1.1;proto=https",
        "",
        "dGhlIHNhbXBsZSBub25jZQ==",
        "\u{e9}\t x",
    ]);
    let end =
        select(vec!["\r\n"; 12].into_iter().chain(["\n", "\r\n ", " \r\n"]).collect::<Vec<_>>());
    (name, select(vec![":", ": ", ":\t", ": ", " :"]), value, end)
        .prop_map(|(name, colon, value, end)| format!("{name}{colon}{value}{end}"))
}

/// Mostly meaningful lines, since the decoder refuses most of the rest.
fn lines() -> impl Strategy<Value = String> {
    let sane = select(vec![
        "Content-Length: 7\r\n",
        "Content-Length: 00\r\n",
        "Transfer-Encoding: chunked\r\n",
        "transfer-encoding:CHUNKED,\r\nTrailer: ETag\r\n",
        "Connection: close\r\n",
        "Connection: keep-alive, X-Own, Host, Content-Length, Transfer-Encoding, Cookie\r\n",
        "X-Own: 1\r\nCookie: a=b\r\n",
        "Expect: 100-continue\r\n",
        "Upgrade: h2c\r\nConnection: upgrade\r\n",
        "TE: trailers\r\n",
        "Content_Length: 9\r\nTransfer_Encoding: chunked\r\n",
        "X-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n",
    ]);
    let handshake = "Upgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let sane = prop::collection::vec(sane, 0..4).prop_map(|lines| lines.concat());
    let wild = prop::collection::vec(line(), 0..3).prop_map(|lines| lines.concat());
    let before = prop_oneof![4 => Just(String::new()), 1 => Just(handshake.to_owned())];
    (before, sane, prop_oneof![3 => Just(String::new()), 1 => wild])
        .prop_map(|(before, sane, wild)| before + &sane + &wild)
}

fn head() -> impl Strategy<Value = String> {
    let start = select(vec![
        "GET / HTTP/1.1",
        "POST /a?b=c HTTP/1.1",
        "GET http://other:8?q HTTP/1.1",
        "HEAD //x HTTP/1.0",
        "OPTIONS * HTTP/1.1",
        "OPTIONS http://a HTTP/1.1",
        "PUT /%00 HTTP/1.1",
        "CONNECT a:1 HTTP/1.1",
        "BREW / HTTP/1.0",
        "TRACE / HTTP/1.1",
    ]);
    (start, prop::bool::weighted(0.9), lines()).prop_map(|(start, host, lines)| {
        let host = if host { "Host: a\r\n" } else { "" };
        format!("{start}\r\n{host}{lines}\r\n")
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_request_means_the_same_to_the_backend(head in head(), trusted: bool, close: bool) {
        let Ok((sent, refused, expects)) = with_request(&head, |request| {
            (meaning(request), validate(request), request.expects_continue())
        }) else { return Ok(()) };
        let Ok(asked) = refused else { return Ok(()) };
        let hop = Hop { close, ..hop("10.0.0.1", trusted) };
        let text = forwarded_by(&head, &hop);
        let read = with_request(&text, |request| {
            assert_eq!(request.expects_continue(), expects);
            assert_eq!(request.wants_upgrade(), asked.key().is_some());
            assert_eq!(
                validate(request).unwrap().key().map(|key| key.as_str().to_owned()),
                asked.key().map(|key| key.as_str().to_owned())
            );
            assert_eq!(request.keep_alive(), !close || asked.key().is_some());
            meaning(request)
        });
        prop_assert_eq!(read.as_ref(), Ok(&sent), "{}", text);
        let needed = usize::from(sent.body != BodyLength::Known(0));
        prop_assert!(framings(&text) == needed || needed == 0 && framings(&text) == 1, "{}", text);
        for name in ["Host", "X-Forwarded-For", "Forwarded"] {
            prop_assert_eq!(lines_of(&text, name).len(), 1, "{} in {}", name, text);
        }
        let client = *lines_of(&text, "X-Forwarded-For").first().unwrap();
        prop_assert!(client.ends_with(if trusted { "10.0.0.1" } else { ": 10.0.0.1" }), "{}", text);
        // Forwarding it again only extends the list of proxies.
        let again = forwarded_by(&text, &hop);
        let without = |text: &str| {
            let is_ours = |line: &&str| !line.contains("orwarded");
            text.split("\r\n").filter(is_ours).collect::<Vec<_>>().join("\n")
        };
        prop_assert_eq!(without(&again), without(&text));
    }
}
