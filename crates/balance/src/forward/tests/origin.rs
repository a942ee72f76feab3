use std::net::SocketAddr;

use super::*;
use crate::forward::client_address;
use throng_http::Network;

const FORWARDED: &str = "GET / HTTP/1.1\r\nHost: a.example:80\r\n\
    X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 10.0.0.2\r\n\
    Forwarded: for=203.0.113.9;proto=https, for=10.0.0.2\r\nX-Forwarded-Proto: https\r\n\
    X-Forwarded-Host: public.example\r\nX-Forwarded-Port: 443\r\nX-Real-IP: 203.0.113.9\r\n\r\n";

#[test]
fn claims_of_a_stranger_are_dropped() {
    let text = forwarded_by(FORWARDED, &hop("192.0.2.1", false));
    assert_eq!(
        text,
        "GET / HTTP/1.1\r\nHost: a.example:80\r\nX-Forwarded-For: 192.0.2.1\r\n\
         X-Forwarded-Proto: http\r\nX-Forwarded-Host: a.example:80\r\n\
         Forwarded: for=192.0.2.1;proto=http;host=\"a.example:80\"\r\n\r\n"
    );
}

#[test]
fn claims_of_a_trusted_proxy_are_added_to() {
    let text = forwarded_by(FORWARDED, &hop("10.0.0.1", true));
    assert_eq!(
        text,
        "GET / HTTP/1.1\r\nHost: a.example:80\r\nX-Forwarded-Proto: https\r\n\
         X-Forwarded-Host: public.example\r\nX-Forwarded-Port: 443\r\nX-Real-IP: 203.0.113.9\r\n\
         X-Forwarded-For: 203.0.113.9, 10.0.0.2, 10.0.0.1\r\n\
         Forwarded: for=203.0.113.9;proto=https, for=10.0.0.2, \
         for=10.0.0.1;proto=http;host=\"a.example:80\"\r\n\r\n"
    );
    // The balancer adds the elements that the proxy omitted; and an unclosed quote does not swallow
    // the balancer's element.
    let open = "GET / HTTP/1.1\r\nHost: a\r\nForwarded: for=\"x\\\"\r\n\r\n";
    let text = forwarded_by(open, &hop("10.0.0.1", true));
    assert_eq!(lines_of(&text, "Forwarded"), ["Forwarded: for=10.0.0.1;proto=http;host=a"]);
    assert_eq!(lines_of(&text, "X-Forwarded-Proto"), ["X-Forwarded-Proto: http"]);
    assert_eq!(lines_of(&text, "X-Forwarded-For"), ["X-Forwarded-For: 10.0.0.1"]);
}

#[test]
fn rfc7239_7_4_a_claim_in_one_header_is_written_into_both() {
    let trusted: Vec<Network> = vec!["10.0.0.0/8".parse().unwrap()];
    for (lines, listed, elements, scheme) in [
        (
            "X-Forwarded-For: 1.1.1.1, [2001:db8::9]:80, 10.0.0.2\r\nX-Forwarded-Proto: https\r\n",
            "1.1.1.1, [2001:db8::9]:80, 10.0.0.2, 10.0.0.1",
            "for=1.1.1.1;proto=https, for=\"[2001:db8::9]\";proto=https, for=10.0.0.2;proto=https, \
             for=10.0.0.1;proto=http;host=a",
            "https",
        ),
        (
            "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: hidden\r\n",
            "1.1.1.1, hidden, 10.0.0.1",
            "for=1.1.1.1, for=unknown, for=10.0.0.1;proto=http;host=a",
            "http",
        ),
        (
            "Forwarded: for=1.1.1.1;proto=https\r\n\
             Forwarded: proto=HTTPS;for=\"[2001:db8::9]:80\"\r\n",
            "1.1.1.1, 2001:db8::9, 10.0.0.1",
            "for=1.1.1.1;proto=https, proto=HTTPS;for=\"[2001:db8::9]:80\", \
             for=10.0.0.1;proto=http;host=a",
            "https",
        ),
        // The first element may be the client's own.
        (
            "Forwarded: for=_x;proto=https, for=1.1.1.1;proto=http\r\nX-Forwarded-For: ,\r\n",
            "unknown, 1.1.1.1, 10.0.0.1",
            "for=_x;proto=https, for=1.1.1.1;proto=http, for=10.0.0.1;proto=http;host=a",
            "http",
        ),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let text = forwarded_by(&head, &hop("10.0.0.1", true));
        assert_eq!(lines_of(&text, "X-Forwarded-For"), [format!("X-Forwarded-For: {listed}")]);
        assert_eq!(lines_of(&text, "Forwarded"), [format!("Forwarded: {elements}")]);
        assert_eq!(lines_of(&text, "X-Forwarded-Proto"), [format!("X-Forwarded-Proto: {scheme}")]);
        // The backend finds the client that the balancer has found.
        let client = |head: &str, peer: &str| {
            let peer: SocketAddr = peer.parse().unwrap();
            with_request(head, |request| client_address(request, peer, &trusted)).unwrap()
        };
        assert_eq!(client(&text, "10.0.0.7:1"), client(&head, "10.0.0.1:1"), "{lines}");
    }
}

#[test]
fn rfc7239_6_an_ipv6_address_is_in_brackets_and_quotes() {
    let head = "GET / HTTP/1.0\r\n\r\n";
    let hop = Hop { scheme: Scheme::Https, ..hop("2001:db8::1", false) };
    assert_eq!(
        forwarded_by(head, &hop),
        "GET / HTTP/1.1\r\nHost: backend\r\nX-Forwarded-For: 2001:db8::1\r\n\
         X-Forwarded-Proto: https\r\n\
         Forwarded: for=\"[2001:db8::1]\";proto=https\r\n\r\n"
    );
    let mapped = Hop { peer: ip("::ffff:192.0.2.7"), ..hop };
    assert!(forwarded_by(head, &mapped).contains("for=192.0.2.7;"));
}

#[test]
fn the_client_is_the_rightmost_that_is_no_proxy_of_ours() {
    let trusted: Vec<Network> =
        ["10.0.0.0/8", "2001:db8::/32"].map(|network| network.parse().unwrap()).into();
    let client = |lines: &str, peer: &str| {
        let peer: SocketAddr = peer.parse().unwrap();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        with_request(&head, |request| client_address(request, peer, &trusted)).unwrap()
    };
    for (lines, expected) in [
        ("", "10.0.0.1"),
        ("X-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1"),
        ("X-Forwarded-For: 6.6.6.6, 1.1.1.1\r\n", "1.1.1.1"),
        ("X-Forwarded-For: 6.6.6.6, 1.1.1.1, 10.0.0.3,10.0.0.2\r\n", "1.1.1.1"),
        ("X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1"),
        ("X-Forwarded-For: 10.0.0.3, 10.0.0.2\r\n", "10.0.0.3"),
        ("X-Forwarded-For: 1.1.1.1:4711\r\n", "1.1.1.1"),
        ("X-Forwarded-For: [2001:db9::1]:4711, 2001:db8::2, [2001:db8::3]\r\n", "2001:db9::1"),
        ("X-Forwarded-For: ::ffff:1.1.1.1\r\n", "1.1.1.1"),
        // Before an element that is not an address, the list proves nothing.
        ("X-Forwarded-For: 6.6.6.6, unknown\r\n", "10.0.0.1"),
        ("X-Forwarded-For: 6.6.6.6, unknown, 10.0.0.3, 10.0.0.2\r\n", "10.0.0.3"),
        ("X-Forwarded-For: 6.6.6.6, , 1.1.1.1\r\n", "1.1.1.1"),
        ("X-Forwarded-For:\r\n", "10.0.0.1"),
        // RFC 9110 section 5.6.1.2: an empty element does not count.
        ("X-Forwarded-For: 1.1.1.1, \r\n", "1.1.1.1"),
        ("X-Forwarded-For: 1.1.1.1,,\r\n", "1.1.1.1"),
        ("X-Forwarded-For: , 1.1.1.1 ,\t,10.0.0.2,\r\n", "1.1.1.1"),
        ("X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: ,\r\n", "1.1.1.1"),
        ("Forwarded: for=1.1.1.1, ,\r\n", "1.1.1.1"),
        ("Forwarded: ,for=1.1.1.1,,for=10.0.0.2\r\nX-Forwarded-For: ,\r\n", "1.1.1.1"),
        ("X-Forwarded-For: 6.6.6.6, \"\"\r\n", "10.0.0.1"),
        ("Forwarded: for=1.1.1.1\r\n", "1.1.1.1"),
        ("Forwarded: proto=http; For=\"[2001:db9::1]:80\";by=x, for=10.0.0.2\r\n", "2001:db9::1"),
        ("Forwarded: for=\"6.6.6.6, for=7.7.7.7\", for=1.1.1.1\r\n", "1.1.1.1"),
        ("Forwarded: for=1.1.1.1, for=_hidden, for=10.0.0.2\r\n", "10.0.0.2"),
        ("Forwarded: proto=http\r\n", "10.0.0.1"),
        ("Forwarded: for=1.1.1.1\r\nX-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1"),
        // One of them came from the client, through a proxy that writes only the other.
        ("Forwarded: for=6.6.6.6\r\nX-Forwarded-For: 1.1.1.1\r\n", "10.0.0.1"),
    ] {
        assert_eq!(client(lines, "10.0.0.1:5"), ip(expected), "{lines:?}");
        assert_eq!(client(lines, "192.0.2.1:5"), ip("192.0.2.1"), "a stranger: {lines:?}");
    }
    assert_eq!(client("X-Forwarded-For: 1.1.1.1\r\n", "[::ffff:10.0.0.1]:5"), ip("1.1.1.1"));
}
