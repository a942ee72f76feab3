use super::*;
use crate::config::Token;
use crate::cookie::CookieKey;
use crate::forward::{Bound, came_by_https, set_cookie, sticky_key};
use crate::settings::{SameSite, Sticky};

fn bound(sticky: &Sticky, target: &str, lines: &str, client: &str) -> Option<Bound> {
    bound_by(&CookieKey::default(), sticky, target, lines, client)
}

fn bound_by(
    key: &CookieKey,
    sticky: &Sticky,
    target: &str,
    lines: &str,
    client: &str,
) -> Option<Bound> {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    with_request(&head, |request| sticky_key(sticky, key, request, ip(client))).unwrap()
}

#[test]
fn a_secret_keys_every_hash_alike_in_all_processes() {
    let key = |secret: &str| CookieKey::of(&Token::new(secret).unwrap());
    let (one, other) = (key("0123456789abcdef"), key("0123456789abcdeF"));
    for sticky in [Sticky::Header("room".into()), Sticky::Query("room".into()), Sticky::Ip] {
        let by = |key: &CookieKey| bound_by(key, &sticky, "/?room=7", "Room: 7\r\n", "192.0.2.1");
        assert_eq!(by(&one), by(&key("0123456789abcdef")), "{sticky}");
        assert_ne!(by(&one), by(&other), "{sticky}");
        assert_ne!(by(&one), by(&CookieKey::default()), "{sticky}");
    }
}

#[test]
fn our_cookie_comes_back_as_the_backends_tag() {
    let key = CookieKey::default().tag("127.0.0.1:9001".parse().unwrap());
    let line = set_cookie("route", key, false, SameSite::Lax);
    assert!(line.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{line}");
    let pair = line.split(';').next().unwrap();
    let (_, value) = pair.split_once('=').unwrap();
    let sticky = Sticky::Cookie("route".into());
    let of = |lines: &str| bound(&sticky, "/", lines, "::1");
    for lines in [
        format!("Cookie: {pair}\r\n"),
        format!("Cookie: a=b; {pair};c=d\r\n"),
        format!("Cookie: a=b\r\ncookie: x;{pair}\r\n"),
        format!("Cookie: route=\"{value}\"\r\n"),
        format!("Cookie: route=nonsense; {pair}\r\n"),
    ] {
        assert_eq!(of(&lines), Some(Bound::Backend(key)), "{lines}");
    }
    for lines in [
        String::new(),
        format!("Cookie: Route={value}\r\n"),
        format!("Cookie: xroute={value}\r\n"),
        format!("Cookie: route={value}0\r\n"),
        format!("Cookie: route=+{}\r\n", &value[1..]),
        format!("X-Cookie: {pair}\r\n"),
        "Cookie: route\r\n".into(),
    ] {
        assert_eq!(of(&lines), None, "{lines}");
    }
    let secure = "r=000000000000000a; Path=/; HttpOnly; SameSite=Lax; Secure";
    assert_eq!(set_cookie("r", 0xa, true, SameSite::Lax), secure);
    for (same_site, is_secure, end) in [
        (SameSite::Strict, false, "SameSite=Strict"),
        (SameSite::Strict, true, "SameSite=Strict; Secure"),
        // Browsers accept it with Secure only.
        (SameSite::None, false, "SameSite=None; Secure"),
        (SameSite::None, true, "SameSite=None; Secure"),
    ] {
        let cookie = set_cookie("r", 0xa, is_secure, same_site);
        assert!(cookie.ends_with(&format!("HttpOnly; {end}")), "{cookie}");
    }
}

#[test]
fn the_first_proxy_decides_whether_it_is_https() {
    for (lines, expected) in [
        ("", false),
        ("X-Forwarded-Proto: https\r\n", true),
        ("x-forwarded-proto: HTTPS, http\r\n", true),
        ("X-Forwarded-Proto: http, https\r\n", false),
        ("X-Forwarded-Proto: http\r\nX-Forwarded-Proto: https\r\n", false),
        ("Forwarded: for=1.1.1.1;proto=https, for=10.0.0.2;Proto=\"https\"\r\n", true),
        ("Forwarded: for=1.1.1.1;proto=https, for=10.0.0.2\r\n", false),
        ("Forwarded: proto=https\r\nX-Forwarded-Proto: http\r\n", false),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        assert_eq!(with_request(&head, came_by_https).unwrap(), expected, "{lines}");
    }
}

#[test]
fn header_query_and_address_are_hashed() {
    let header = Sticky::Header("X-Room".into());
    let query = Sticky::Query("room".into());
    let of_header = |line: &str| bound(&header, "/", line, "::1");
    assert_eq!(of_header("x-room: 7\r\n"), of_header("X-Room:   7 \r\n"));
    assert_ne!(of_header("X-Room: 7\r\n"), of_header("X-Room: 8\r\n"));
    assert!(of_header("X-Room: 7\r\n").is_some());
    assert_eq!((of_header(""), of_header("X-Room:\r\n")), (None, None));
    let of_query = |target: &str| bound(&query, target, "", "::1");
    assert_eq!(of_query("/a?x=1&room=7"), of_header("X-Room: 7\r\n"), "the value decides");
    for target in ["/", "/?", "/?room", "/?room=", "/?rooms=7", "/?xroom=7", "/room=7"] {
        assert_eq!(of_query(target), None, "{target}");
    }
    let of_ip = |client: &str| bound(&Sticky::Ip, "/", "", client);
    assert_eq!(of_ip("192.0.2.1"), of_ip("::ffff:192.0.2.1"));
    assert_ne!(of_ip("192.0.2.1"), of_ip("192.0.2.2"));
    assert!(of_ip("2001:db8::1").is_some());
    assert_eq!(bound(&Sticky::None, "/?room=7", "Cookie: room=7\r\n", "::1"), None);
}

#[test]
fn a_thousand_rooms_spread_evenly_over_any_bits_of_the_hash() {
    let query = Sticky::Query("room".into());
    let hashes: Vec<u64> = (0..1000)
        .map(|room| match bound(&query, &format!("/?room={room}"), "", "::1") {
            Some(Bound::Hash(hash)) => hash,
            other => panic!("{other:?}"),
        })
        .collect();
    for bit in 0..64 {
        let ones = hashes.iter().filter(|hash| *hash >> bit & 1 == 1).count();
        assert!((400..=600).contains(&ones), "bit {bit}: {ones}");
    }
}
