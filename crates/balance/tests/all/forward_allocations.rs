//! Work done for every request allocates nothing once the buffer has grown.

use std::net::SocketAddr;

use throng_balance::forward::{
    Client, Hop, Scheme, client_address, sticky_key, validate, write_chunk, write_error,
    write_last_chunk, write_request, write_response,
};
use throng_balance::{CookieKey, Network, Settings, Sticky};
use throng_proto::Input;
use throng_proto::http1::{Decoder, Event, Limits, ResponseDecoder, ResponseEvent};

#[test]
fn a_head_that_is_passed_on_allocates_nothing() {
    let mut asked = b"GET /chat?room=7 HTTP/1.1\r\nHost: a:80\r\nConnection: keep-alive, X-Own, \
        Upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Own: 1\r\nTE: \
        trailers\r\n\
        X-Forwarded-For: 203.0.113.9, 10.0.0.2\r\nForwarded: for=203.0.113.9, \
        for=\"[2001:db8::2]\"\r\n\
        Cookie: a=b; route=0123456789abcdef\r\n\r\n"
        .to_vec();
    let mut answer =
        b"HTTP/1.1 200 OK\r\nConnection: close, X-Own\r\nX-Own: 1\r\nETag: x\r\n\r\n".to_vec();
    let (limits, mut decoder, mut answers) =
        (Limits::default(), Decoder::new(), ResponseDecoder::new());
    let (mut asked, mut answer) = (Input::new(&mut asked), Input::new(&mut answer));
    let event = decoder.next_event(&mut asked, &limits);
    let Ok(Some(Event::Head(request))) = event else { panic!("{event:?}") };
    let event = answers.next_event(&mut answer, &limits);
    let Ok(Some(ResponseEvent::Head(response))) = event else { panic!("{event:?}") };
    let trusted: [Network; 1] = ["10.0.0.0/8".parse().unwrap()];
    let peer: SocketAddr = "10.0.0.1:5".parse().unwrap();
    let sticky = [Sticky::Cookie("route".into()), Sticky::Query("room".into()), Sticky::Ip];
    let dropped = Settings::default().drop_headers;
    let secret = CookieKey::default();
    let to = Client {
        http11: true,
        keep_alive: true,
        is_head: false,
        hsts: Some("max-age=31536000"),
        date: "Sun, 06 Nov 1994 08:49:37 GMT",
    };
    let mut out = Vec::with_capacity(4096);
    let mut pass = || {
        for (trusts, ip) in [(true, peer.ip()), (false, "2001:db8::1".parse().unwrap())] {
            out.clear();
            assert!(validate(&request).is_ok());
            let client = client_address(&request, peer, &trusted);
            assert!(
                sticky.iter().all(|sticky| sticky_key(sticky, &secret, &request, client).is_some())
            );
            let dropped = &dropped[..];
            let hop = Hop {
                peer: ip,
                trusted: trusts,
                scheme: Scheme::Http,
                certificate: None,
                close: false,
                dropped,
                loop_id: "own",
            };
            write_request(&mut out, &request, &hop);
            write_response(&mut out, &response, &to, Some("route=0123456789abcdef"));
            write_chunk(&mut out, b"piece");
            write_last_chunk(&mut out, request.lines());
            write_error(&mut out, 503, "no backend is up", &to);
        }
        assert!(out.len() < 4096 && out.len() > 500);
    };
    assert_eq!(allocation_counter::measure(&mut pass).count_total, 0);
}
