//! The counters of sites and routes: each request once, by its last status.

use throng_balance::{Config, SiteRow};
use throng_testkit::eventually;

use crate::sites::{Running, get};
use crate::support::{Scripted, upgrade};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";

/// The counters of a site or route.
fn row(running: &Running, name: &str) -> SiteRow {
    let rows = running.0.status().sites;
    let full = |row: &SiteRow| row.site.clone() + row.route.as_deref().unwrap_or_default();
    rows.into_iter().find(|row| full(row) == name).unwrap()
}

#[test]
fn each_request_of_a_site_is_counted_once() {
    let backend = Scripted::bind();
    let text = |more: &str| {
        format!(
            "backends = [\"{}\"]\nretries = 0\n\
             [[limit]]\nname = \"l\"\nrate = \"1/h\"\nburst = 0\n\
             [[site]]\nhosts = [\"a\"]\nname = \"shop\"\nroutes = [\n\
             {{ path = \"/ws\", metrics = true }},\n\
             {{ path = \"/own\", respond.status = 204, limits = [\"l\"] }},\n\
             {{ path = \"/closed\", deny = [\"127.0.0.1\"] }},\n{more}]\n\
             [[site]]\nhosts = [\"b\"]\n",
            backend.address
        )
    };
    let running = Running::start(&text(""));
    let mut client = running.connect();
    let mut server = None;
    for (host, path, status) in [
        ("a", "/x", "200"),
        ("a", "/own", "204"),
        ("a", "/own", "429"),
        ("a", "/closed", "403"),
        ("a", "//own", "400"),
        ("b", "/own", "200"),
    ] {
        client.send(&get(host, path));
        if status == "200" {
            let server = server.get_or_insert_with(|| backend.accept());
            server.head();
            server.send(OK);
        }
        assert_eq!(&client.answer().0[9..12], status, "{path}");
    }
    let shop = row(&running, "shop");
    assert_eq!((shop.statuses, shop.refused), ([0, 2, 0, 3, 0], 3));
    assert_eq!((shop.first_bytes.count, row(&running, "b").statuses), (1, [0, 1, 0, 0, 0]));
    // An answer that is taken back, since its first bytes have a fault.
    client.send(&get("a", "/bad"));
    let server = server.as_mut().unwrap();
    server.head();
    server.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n");
    assert_eq!(&client.answer().0[9..12], "502");
    // A tunnel counts for its route and its site.
    let mut tunnel = running.connect();
    let handshake = String::from_utf8(upgrade("/ws")).unwrap();
    tunnel.send(handshake.replace("Host: example.com", "Host: a").as_bytes());
    let _server = backend.open();
    assert!(tunnel.head().starts_with("HTTP/1.1 101 "));
    eventually("the tunnel is counted", || row(&running, "shop/ws").statuses[0] == 1);
    let shop = row(&running, "shop");
    assert_eq!((shop.statuses, shop.refused), ([1, 2, 0, 3, 1], 3));
    // The name keeps its counters, also with more routes.
    let more = "{ path = \"/new\", metrics = true },\n";
    let text = format!("listen = \"127.0.0.1:0\"\nshards = 1\n{}", text(more));
    running.0.apply(Config::parse(&text, "b.toml").unwrap()).unwrap();
    assert_eq!(row(&running, "shop").statuses, [1, 2, 0, 3, 1]);
    assert_eq!(row(&running, "shop/new").statuses, [0; 5]);
}

#[test]
fn pools_have_the_sums_of_their_backends() {
    let (one, other) = (Scripted::bind(), Scripted::bind());
    let running = Running::start(&format!(
        "backends = [\"{}\"]\n[[pool]]\nname = \"p\"\npick = \"random\"\nbackends = [\"{}\"]\n\
         [[site]]\nhosts = [\"*\"]\npool = \"p\"\n",
        one.address, other.address
    ));
    let mut client = running.connect();
    client.send(&upgrade("/"));
    let _server = other.open();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    eventually("the tunnel is open", || running.0.status().pools[1].tunnels == 1);
    let pools = running.0.status().pools;
    assert_eq!((pools[0].name.as_str(), pools[0].backends, pools[0].tunnels), ("default", 1, 0));
    assert_eq!((pools[1].name.as_str(), pools[1].up, pools[1].pick), ("p", 1, "random"));
    assert_eq!(pools[1].statuses, [1, 0, 0, 0, 0]);
}
