mod pools;

use std::sync::Arc;

use throng_config::drain_delay;

use super::*;
use crate::cookie::CookieKey;
use crate::settings::{Check, CheckKind, Pick, SameSite, Sticky};

/// The message for `text` after a backend, which is on the first line.
fn message(text: &str) -> String {
    let text = format!("backends = [\"127.0.0.1:9001\"]\n{text}");
    Config::parse(&text, "b.toml").unwrap_err().to_string()
}

/// The configuration of several files; later ones override earlier ones.
fn layered(texts: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    let mut sources = Sources::new(Config::table());
    for (name, text) in texts {
        sources.file(name, text);
    }
    Config::from_draft(sources.finish())
}

#[test]
fn every_mistake_is_reported_with_location_key_value_and_remedy() {
    let table: &[(&str, &str)] = &[
        // Not TOML.
        ("listen = ", "b.toml:2:"),
        // Keys.
        ("shard = 1", "b.toml:2:1: shard is an unknown key: did you mean shards?"),
        (
            "zzzzzz = 1",
            "b.toml:2:1: zzzzzz is an unknown key: `throng config show balance` lists all keys",
        ),
        (
            "[timeouts]\nconect = \"1s\"",
            "b.toml:3:1: timeouts.conect is an unknown key: did you mean timeouts.connect?",
        ),
        (
            "[health.check]\nkind=\"tcp\"\npth=1",
            "b.toml:4:1: health.check.pth is an unknown key: did you mean health.check.path?",
        ),
        (
            "[admin]\nport=1",
            "b.toml:3:1: admin.port is an unknown key: the keys here are listen, token, token_file",
        ),
        // Keys and words of other servers.
        ("leastconn = true", "leastconn is an unknown key: here it is pick=least_connections"),
        (
            "pick = \"least_conn\"",
            "b.toml:2:8: pick is \"least_conn\": here it is least_connections",
        ),
        (
            "[timeout]\ntunnel = \"1h\"",
            "b.toml:2:2: timeout is an unknown key: did you mean timeouts?",
        ),
        // Types.
        (
            "listen = 8080",
            "b.toml:2:10: listen[0] is 8080: it is a port alone: write \"127.0.0.1:8080\" for this \
             machine, or \
             \"0.0.0.0:8080\" for all that reach it",
        ),
        (
            "listen = [\"8080\"]",
            "listen[0] is \"8080\": it is a port alone: write \"127.0.0.1:8080\"",
        ),
        (
            "listen = true",
            "b.toml:2:10: listen[0] is true: write an address such as \"127.0.0.1:9001\"",
        ),
        ("listen = [true]", "listen[0] is true: write an address such as \"127.0.0.1:9001\""),
        (
            "admin.listen = 8081",
            "admin.listen is 8081: it is a port alone: write \"127.0.0.1:8081\"",
        ),
        (
            "pick = 3",
            "b.toml:2:8: pick is 3: write one of power_of_two, least_connections, round_robin",
        ),
        ("sources = 3", "sources[0] is 3: write an IP address such as"),
        ("trusted_proxies = 10", "trusted_proxies[0] is 10: '10' is not a network"),
        ("shards = \"two\"", "b.toml:2:10: shards is \"two\": write a whole number from 0"),
        ("shards = -1", "b.toml:2:10: shards is -1: write a whole number from 0"),
        ("shards = 1.5", "b.toml:2:10: shards is 1.5: write a whole number from 0"),
        ("retries = 256", "b.toml:2:11: retries is 256: write at most 255"),
        ("accept_proxy = 1", "b.toml:2:16: accept_proxy is 1: write true or false"),
        (
            "timeouts = 5",
            "b.toml:2:12: timeouts is 5: write [timeouts], and below it connect = \"5s\"",
        ),
        ("health = 5", "b.toml:2:10: health is 5: write [health]"),
        ("admin = 5", "b.toml:2:9: admin is 5: write [admin]"),
        ("shutdown = 5", "b.toml:2:12: shutdown is 5: write [shutdown]"),
        ("register = 5", "b.toml:2:12: register is 5: write [register]"),
        ("slow_start = 30", "b.toml:2:14: slow_start is 30: it has no unit: write \"30s\""),
        ("slow_start = true", "b.toml:2:14: slow_start is true: write a duration such as \"5s\""),
        ("slow_start = \"30\"", "slow_start is \"30\": it has no unit: write \"30s\" or \"30ms\""),
        ("slow_start = \"30 days\"", "slow_start is \"30 days\": write a duration such as"),
        ("slow_start = \"9999h\"", "slow_start is \"9999h\": write at most \"8784h\""),
        ("max_body = \"much\"", "b.toml:2:12: max_body is \"much\": write a size such as"),
        ("max_body = true", "max_body is true: write a size such as \"16KiB\""),
        // Addresses.
        (
            "listen = \"127.0.0.1\"",
            "listen[0] is \"127.0.0.1\": a port is missing: write \"127.0.0.1:9001\"",
        ),
        ("listen = \"::1\"", "a port is missing: write \"[::1]:9001\""),
        ("listen = \"unix:\"", "a path is missing: write \"unix:/run/app.sock\""),
        ("trusted_proxies = \"unix:\"", "trusted_proxies[0] is \"unix:\": listen has no Unix"),
        ("unix_mode = \"8\"", "unix_mode is \"8\": write permissions in octal"),
        ("listen = \"systemd\"", "write the address of ListenStream= in the"),
        ("listen = \"no.such.invalid:80\"", "it has no address ("),
        ("listen = \"::1:80\"", "an IPv6 address is in brackets: write \"[::1]:80\""),
        ("listen = \"tcp://127.0.0.1:80\"", "no scheme such as tcp://: write \"127.0.0.1:80\""),
        ("listen = \"[fe80::1%nosuch0]:80\"", "this machine has no interface \"nosuch0\""),
        (
            "listen = [\"0.0.0.0:80\", \"127.0.0.1:80\"]",
            "listen[1] is \"127.0.0.1:80\": 0.0.0.0:80 has its connections already",
        ),
        ("listen = \"127.0.0.1:99999\"", "write HOST:PORT, an IP address or a name and a port"),
        ("listen = []", "b.toml:2:10: listen is empty: write where clients connect"),
        (
            "listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]",
            "b.toml:2:26: listen[1] is \"127.0.0.1:1\": it is there already: give it once",
        ),
        ("shards = 5000", "b.toml:2:10: shards is 5000: write at most 1024"),
        // Choices.
        (
            "pick = \"least_connection\"",
            "b.toml:2:8: pick is \"least_connection\": did you mean least_connections?",
        ),
        ("pick = \"best\"", "pick is \"best\": write one of power_of_two, least_connections"),
        (
            "sticky = \"cookie\"",
            "b.toml:2:10: sticky is \"cookie\": write \"none\", \"ip\", { cookie = \"NAME\" }",
        ),
        ("sticky = {}", "sticky is {}: write \"none\""),
        (
            "sticky = { cookie = \"a b\" }",
            "b.toml:2:21: sticky is \"a b\": write a name of letters",
        ),
        ("sticky = { header = \"\" }", "sticky is \"\": write a name"),
        ("sticky = { query = \"a=b\" }", "sticky is \"a=b\": write a name"),
        ("sticky = { cookie = \"a\", query = \"b\" }", "keep one of cookie, header and query"),
        (
            "trusted_proxies = [\"10.0.0.0/33\"]",
            "b.toml:2:20: trusted_proxies[0] is \"10.0.0.0/33\": ",
        ),
        ("sources = [\"lo\"]", "b.toml:2:12: sources[0] is \"lo\": write an IP address such as"),
        ("sources = [\"fe80::1%eth0\"]", "the zone is the zone of each backend"),
        ("sources = [\"0.0.0.0\"]", "sources[0] is \"0.0.0.0\": write an address of this machine"),
        (
            "sources = [\"10.0.0.0/23\"]",
            "sources[0] is \"10.0.0.0/23\": the network has more than 256",
        ),
        (
            "sources = [\"::1\"]",
            "b.toml:2:11: sources is [\"::1\"]: from none of these 127.0.0.1:9001 can be reached: \
             add an IPv4 address",
        ),
        // Ranges and contradictions.
        (
            "accept_proxy = true",
            "b.toml:2:16: accept_proxy is true: any client could claim any address: name the \
             trusted ones in trusted_proxies",
        ),
        (
            "max_header_bytes = 100",
            "b.toml:2:20: max_header_bytes is 100: write \"1KiB\" to \"1MiB\"",
        ),
        ("max_headers = 0", "b.toml:2:15: max_headers is 0: write 8 to 4096"),
        ("close_rate = 0", "b.toml:2:14: close_rate is 0: write at least 1"),
        (
            "[timeouts]\ntunnel = \"0\"",
            "b.toml:3:10: timeouts.tunnel is \"0\": write more than nothing",
        ),
        (
            "[health]\nobserve = \"requests\"",
            "b.toml:3:11: health.observe is \"requests\": write \"connections\" or \"answers\"",
        ),
        (
            "max_response_header_bytes = \"2MiB\"",
            "b.toml:2:29: max_response_header_bytes is \"2MiB\": write \"1KiB\" to \"1MiB\"",
        ),
        (
            "drop_headers = [\"a b\"]",
            "b.toml:2:17: drop_headers[0] is \"a b\": write a header's whole name",
        ),
        (
            "drop_headers = [\"X-A\", \"Content_Length\"]",
            "b.toml:2:24: drop_headers[1] is \"Content_Length\": no request can do without it",
        ),
        (
            "drop_headers = [\"Sec-WebSocket-Key\"]",
            "drop_headers[0] is \"Sec-WebSocket-Key\": no request can do without it",
        ),
        (
            "[health.check]\nkind = \"http\"\nhost = \"a:99999\"",
            "b.toml:4:8: health.check.host is \"a:99999\": write a host as it stands in a request",
        ),
        (
            "sticky = { cookie = \"__Host-node\" }",
            "sticky is \"__Host-node\": browsers drop a cookie with this prefix",
        ),
        (
            "sticky = { cookie = \"__secure-node\" }",
            "sticky is \"__secure-node\": browsers drop a cookie with this prefix",
        ),
        ("max_response_headers = 0", "b.toml:2:24: max_response_headers is 0: write 8 to 4096"),
        ("[health]\nwithin = \"0s\"", "b.toml:3:10: health.within is \"0s\": write more"),
        ("[health]\ndown_for = \"0s\"", "b.toml:3:12: health.down_for is \"0s\": write more"),
        (
            "[health.check]\ninterval = \"1s\"",
            "b.toml:2:1: health.check is [health.check]: the kind of check is missing: add kind",
        ),
        (
            "[health.check]\nkind = \"icmp\"",
            "b.toml:3:8: health.check.kind is \"icmp\": did you mean tcp?",
        ),
        (
            "[health.check]\nkind = \"tcp\"\npath = \"/\"",
            "b.toml:4:8: health.check.path is \"/\": a check of kind \"tcp\" has no path",
        ),
        (
            "[health.check]\nkind = \"http\"\npath = \"x y\"",
            "b.toml:4:8: health.check.path is \"x y\": write a path",
        ),
        (
            "[health.check]\nkind = \"tcp\"\ntimeout = \"3s\"",
            "b.toml:4:11: health.check.timeout is 3s: one check ends before the next begins: write \
             at most health.check.interval, which is 2s",
        ),
        (
            "[health.check]\nkind = \"tcp\"\ninterval = \"1h\"\ntimeout = \"61s\"",
            "b.toml:5:11: health.check.timeout is 61s: a check ends within \"60s\"",
        ),
        (
            "[health.check]\nkind = \"tcp\"\nrise = 0",
            "b.toml:4:8: health.check.rise is 0: write at least 1",
        ),
        (
            "[health.check]\nkind = \"tcp\"\nfall = 0",
            "b.toml:4:8: health.check.fall is 0: write at least 1",
        ),
        (
            "[shutdown]\ndeadline = \"5s\"",
            "b.toml:3:12: shutdown.deadline is 5s: it is at least shutdown.window, which is 10s",
        ),
        (
            "[admin]\nlisten = \"0.0.0.0:81\"",
            "b.toml:3:10: admin.listen is \"0.0.0.0:81\": every client that reaches it can change \
             everything",
        ),
        (
            "[admin]\nlisten = \"127.0.0.1:8080\"",
            "b.toml:3:10: admin.listen is \"127.0.0.1:8080\": clients connect there",
        ),
        // Registration.
        (
            "[register]",
            "b.toml:2:1: register is [register]: the token that backends send is missing: add \
             token_file",
        ),
        (
            "[register]\ntoken = \"a\"\ntoken_file = \"b\"",
            "b.toml:4:14: register.token_file is \"b\": there is a register.token, too",
        ),
        (
            "[register]\ntoken_file = \"no/such\"",
            "b.toml:3:14: register.token_file is \"no/such\": no/such cannot be read",
        ),
        (
            "[register]\ntoken = \"0123456789abcdef\"\ntime_to_live = \"0\"",
            "b.toml:4:16: register.time_to_live is \"0\": write more",
        ),
    ];
    for (text, expected) in table {
        let message = message(text);
        assert!(message.contains(expected), "{text:?}:\n{message}\n{expected}");
        assert!(message.starts_with("b.toml:") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn every_mistake_in_a_backend_is_reported_at_its_item() {
    let table: &[(&str, &str)] = &[
        (
            "",
            "backends is empty: write for example backends = [\"127.0.0.1:9001\"], or a [register] \
             table",
        ),
        ("backends = []", "b.toml:1:12: backends is empty: "),
        ("backends = 1", "b.toml:1:12: backends[0] is 1: it is a port alone"),
        ("backends = [1]", "b.toml:1:13: backends[0] is 1: it is a port alone"),
        (
            "backends = [\n  \"x\"]",
            "b.toml:2:3: backends[0] is \"x\": a port is missing: write \"x:9001\"",
        ),
        (
            "[[backends]]\nweight = 1",
            "b.toml:1:1: backends[0] is [[backends]]: its address is missing: add address",
        ),
        (
            "[[backends]]\naddress = \"127.0.0.1:1\"\nweigth = 1",
            "b.toml:3:1: backends[0].weigth is an unknown key: did you mean weight?",
        ),
        (
            "[[backends]]\naddress = \"127.0.0.1:1\"\nmax_conns = 5",
            "b.toml:3:1: backends[0].max_conns is an unknown key: a backend has no limit of",
        ),
        (
            "[[backends]]\naddress = \"127.0.0.1:1\"\nweight = 0",
            "b.toml:3:10: backends[0].weight is 0: write 1 to 1000",
        ),
        (
            "[[backends]]\naddress = \"127.0.0.1:1\"\nweight = 1001",
            "b.toml:3:10: backends[0].weight is 1001: write 1 to 1000",
        ),
        (
            "[[backends]]\naddress = \"127.0.0.1:1\"\nweight = \"two\"",
            "b.toml:3:10: backends[0].weight is \"two\": write a whole number",
        ),
        (
            "[[backends]]\naddress = \"127.0.0.1:1\"\nsend_proxy = 2",
            "b.toml:3:14: backends[0].send_proxy is 2: write true or false",
        ),
        (
            "backends = [\"127.0.0.1:1\", \"127.0.0.1:2\", \"127.0.0.1:1\"]",
            "b.toml:1:43: backends[2] is \"127.0.0.1:1\": backends[0] has this address already: \
             give each once",
        ),
        (
            "backends = [\"127.0.0.1:1\", \"[::ffff:127.0.0.1]:1\"]",
            "b.toml:1:28: backends[1] is \"127.0.0.1:1\": backends[0] has this address already",
        ),
        ("backends = [\"127.0.0.1:0\"]", "b.toml:1:13: backends[0] is \"127.0.0.1:0\": port 0"),
        (
            "backends = [\"0.0.0.0:1\"]",
            "b.toml:1:13: backends[0] is \"0.0.0.0:1\": it is not the address of one machine",
        ),
        (
            "backends = [\"127.0.0.1:8080\"]",
            "b.toml:1:13: backends[0] is \"127.0.0.1:8080\": the balancer itself listens",
        ),
        (
            "listen = \":7\"\nbackends = [\"[::ffff:127.0.0.1]:7\"]",
            "the balancer itself listens on 0.0.0.0:7",
        ),
    ];
    for (text, expected) in table {
        let message = Config::parse(text, "b.toml").unwrap_err().to_string();
        assert!(message.contains(expected), "{text:?}:\n{message}\n{expected}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_token_is_never_in_a_message() {
    for text in [
        "token = \"secret word\"",
        "tokn = \"secret word\"",
        "token_file = \"secret-word\"\ntoken = \"x\"",
    ] {
        let message = message(&format!("[register]\n{text}"));
        assert!(!message.contains("secret word"), "{message}");
    }
    let config = Config::parse("[register]\ntoken = \"0123456789abcdef\"", "b.toml");
    let config = config.expect("no backends are needed where they register themselves");
    assert!(!format!("{config:?}").contains("0123456789abcdef"));
}

#[test]
fn every_key_sets_its_setting() {
    let text = r#"
        listen = [":8080", "[::1]:8080"]
        shards = 0x2
        lookup_interval = "20s"
        pick = "round_robin"
        sticky = { cookie = "route" }
        cookie_secret = "0123456789abcdef"
        cookie_same_site = "none"
        trusted_proxies = ["10.0.0.0/8", "::1"]
        drop_headers = ["X-Client-IP"]
        loop_id = "edge-1"
        request_ids = true
        accept_proxy = true
        max_handshakes = 7
        max_queue = 11
        retries = 1
        keep_alive = 9
        max_connections = 1_000
        max_connections_per_address = 100
        max_tls_memory = "64MiB"
        max_header_bytes = "32KiB"
        max_headers = 50
        max_response_header_bytes = "33KiB"
        max_response_headers = 51
        max_body = "10MB"
        min_body_rate = "2KiB"
        min_response_rate = 0
        sources = ["127.0.0.2", "127.0.1.4/31", "127.0.1.5"]
        slow_start = "30s"
        close_rate = 11
        removed = "drain"
        [[backends]]
        address = "127.0.0.1:9001"
        weight = 3
        send_proxy = true
        max_connections = 5
        backup = true
        [[backends]]
        address = "127.0.0.1:9002"
        [timeouts]
        connect = "1s"
        response = "2s"
        upgrade = "2500ms"
        body = "3s"
        head = "4s"
        keep_alive = "5s"
        tunnel = "6s"
        half_closed = "7s"
        close = "8s"
        queue = "9s"
        [health]
        observe = "answers"
        failures = 5
        within = "20s"
        down_for = "21s"
        [health.check]
        kind = "websocket"
        path = "/live"
        host = "app.internal"
        interval = "10s"
        timeout = "500ms"
        rise = 4
        fall = 6
        [register]
        token = "0123456789abcdef"
        time_to_live = "15s"
        networks = ["10.0.0.0/8"]
        [admin]
        listen = "127.0.0.1:8081"
        [shutdown]
        window = "1s"
        deadline = "2s"
    "#;
    let config = Config::parse(text, "b.toml").unwrap();
    let seconds = Duration::from_secs;
    assert_eq!(config.listen[0], "0.0.0.0:8080".parse::<PeerAddress>().unwrap());
    assert_eq!((config.listen.len(), config.shards), (2, 2));
    assert_eq!(config.lookup_interval, seconds(20));
    let first = BackendConfig {
        address: "127.0.0.1:9001".parse().unwrap(),
        weight: 3,
        send_proxy: true,
        tls: None,
        tls_name: None,
        passthrough: Arc::default(),
        max_connections: Some(5),
        backup: true,
    };
    assert_eq!(
        config.backends,
        [first, BackendConfig::new("127.0.0.1:9002".parse::<PeerAddress>().unwrap())]
    );
    let check = Check {
        kind: CheckKind::WebSocket("/live".to_owned()),
        host: Some("app.internal".to_owned()),
        interval: seconds(10),
        timeout: Duration::from_millis(500),
        rise: 4,
        fall: 6,
    };
    // No field by default: a new one must be read and tested here.
    let expected = Settings {
        pick: Pick::RoundRobin,
        sticky: Sticky::Cookie("route".to_owned()),
        cookie_key: CookieKey::of(&Token::new("0123456789abcdef").unwrap()),
        cookie_same_site: SameSite::None,
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
        drop_headers: vec!["X-Client-IP".to_owned()],
        loop_id: Some("edge-1".to_owned()),
        request_ids: true,
        accept_proxy: true,
        timeouts: crate::Timeouts {
            connect: seconds(1),
            response: seconds(2),
            upgrade: Duration::from_millis(2500),
            body: seconds(3),
            head: seconds(4),
            keep_alive: seconds(5),
            tunnel: seconds(6),
            half_closed: seconds(7),
            close: seconds(8),
            queue: seconds(9),
        },
        max_handshakes: 7,
        max_backend_connections: 0,
        max_queue: 11,
        retries: 1,
        keep_alive: 9,
        fallback: None,
        max_connections: 1000,
        max_connections_per_address: Some(100),
        max_tls_memory: 64 << 20,
        max_header_bytes: 32 << 10,
        max_headers: 50,
        max_response_header_bytes: 33 << 10,
        max_response_headers: 51,
        max_body: 10_000_000,
        min_body_rate: 2048,
        min_response_rate: 0,
        sources: ["127.0.0.2", "127.0.1.4", "127.0.1.5"]
            .map(|address| address.parse().unwrap())
            .into(),
        slow_start: seconds(30),
        close_rate: 11,
        removed: crate::Removed::Drain,
        health: crate::Health {
            observe: crate::Observe::Answers,
            failures: 5,
            within: seconds(20),
            down_for: seconds(21),
            check: Some(check),
        },
    };
    assert_eq!(config.settings, expected);
    let register = config.register.unwrap();
    assert_eq!(register.time_to_live, seconds(15));
    assert_eq!(register.networks, ["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(config.admin, Some("127.0.0.1:8081".parse().unwrap()));
    assert_eq!(
        config.shutdown,
        Shutdown { delay: drain_delay(), window: seconds(1), deadline: seconds(2) }
    );
}

#[cfg(feature = "acme")]
#[test]
fn an_authority_may_issue_the_certificate() {
    let text = "
        listen = \"127.0.0.1:80\"
        [tls.acme]
        domains = [\"a.example\", \"b.example\"]
        challenge = \"http-01\"
        dir = \"/var/lib/throng\"
        agree_tos = AGREES
    ";
    let good = format!("backends = [\"127.0.0.1:9001\"]\n{}", text.replace("AGREES", "true"));
    let config = Config::parse(&good, "b.toml").unwrap();
    let tls = config.tls.unwrap();
    assert!(tls.server.certificates.is_empty());
    let acme = tls.acme.unwrap();
    assert_eq!(acme.domains, ["a.example", "b.example"]);
    assert_eq!(acme.challenge, throng_acme::Challenge::Http01);
    assert_eq!(acme.directory, throng_acme::LETS_ENCRYPT);
    let message = message(&text.replace("AGREES", "false"));
    assert!(message.contains("tls.acme.agree_tos is false"), "{message}");
    assert!(message.contains("letsencrypt.org/repository"), "{message}");
}

#[test]
fn a_later_text_changes_what_it_mentions() {
    let first = ("b.toml", "shards = 2\nbackends = [\"127.0.0.1:1\", \"127.0.0.1:2\"]");
    let config =
        layered(&[first, ("c.toml", "retries = 0\nbackends = [\"127.0.0.1:3\"]")]).unwrap();
    assert_eq!((config.shards, config.settings.retries, config.backends.len()), (2, 0, 1));
    let errors = layered(&[first, ("c.toml", "backends = [\"127.0.0.1:8080\"]")]).unwrap_err();
    assert_eq!(errors.first().location().unwrap().file(), "c.toml");
    let mut config = Config::default();
    config.backends.push(BackendConfig::new("127.0.0.1:3".parse::<PeerAddress>().unwrap()));
    config.check().unwrap();
    config.backends.push(config.backends[0].clone());
    let errors = config.check().unwrap_err();
    assert_eq!(errors.first().location(), None, "what came by code has no place: {errors}");
    assert!(errors.first().what().contains("backends[1] is \"127.0.0.1:3\""), "{errors}");
}

#[test]
fn every_pick_has_a_name() {
    for word in
        ["power_of_two", "least_connections", "round_robin", "rendezvous", "random", "ip_hash"]
    {
        assert_eq!(word.parse::<Pick>().unwrap().word(), word);
    }
}

#[test]
fn a_token_file_is_read_from_beside_the_configuration() {
    let folder = throng_testkit::TempFolder::new("balance");
    folder.write("token", "0123456789abcdef\nmore\n");
    let file = folder.join("balance.toml");
    let config = Config::parse("[register]\ntoken_file = \"token\"", file.to_str().unwrap());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let warned = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.join("token"), permissions).unwrap();
            let text = "[register]\ntoken_file = \"token\"";
            Config::parse(text, file.to_str().unwrap()).unwrap().warnings().to_vec()
        };
        assert!(warned(0o600).is_empty() && warned(0o640).is_empty());
        let warnings = warned(0o644);
        assert!(warnings.len() == 1 && warnings[0].contains("chmod o-r"), "{warnings:?}");
    }
    folder.write("token", "\n");
    let empty = Config::parse("[register]\ntoken_file = \"token\"", file.to_str().unwrap());
    assert!(config.unwrap().register.unwrap().token.matches(b"0123456789abcdef"));
    assert!(empty.unwrap_err().to_string().contains("at least 16"));
}

#[test]
fn an_admin_api_beyond_this_machine_needs_a_token() {
    let text = "backends = [\"127.0.0.1:1\"]\n[admin]\nlisten = \"0.0.0.0:81\"\n";
    let error = Config::parse(text, "b.toml").unwrap_err();
    assert!(error.to_string().contains("admin.token_file"), "{error}");
    let text = format!("{text}token = \"0123456789abcdef\"\n");
    // A later file that does not mention it leaves it unchanged.
    let config = layered(&[("b.toml", &text), ("c.toml", "[admin]\nlisten = \"0.0.0.0:82\"")]);
    assert!(config.unwrap().admin_token.unwrap().matches(b"0123456789abcdef"));
}

#[cfg(not(unix))]
#[test]
fn a_backend_at_a_unix_socket_is_refused_where_there_are_none() {
    let error = Config::parse("backends = [\"unix:/run/a.sock\"]", "b.toml").unwrap_err();
    let remedy = "this system has no Unix sockets: write an address such as \"127.0.0.1:9001\"";
    assert!(error.to_string().contains(remedy), "{error}");
}

#[cfg(unix)]
#[test]
fn backends_have_names_addresses_or_sockets() {
    let text = "backends = [\"app.internal:80\", \"127.0.0.1:1\", { address = \"b:2\", weight = 3 \
         }, \"unix:/run/a.sock\"]";
    let config = Config::parse(&format!("{text}\nlookup_interval = \"2s\""), "b.toml").unwrap();
    assert_eq!(
        config.backends,
        ["127.0.0.1:1", "unix:/run/a.sock"]
            .map(|it| BackendConfig::new(it.parse::<PeerAddress>().unwrap()))
    );
    let names: Vec<_> = config.names.iter().map(|name| (&*name.name, name.weight)).collect();
    assert_eq!(names, [("app.internal:80", 1), ("b:2", 3)]);
    assert_eq!(config.lookup_interval, Duration::from_secs(2));
    for (text, expected) in [
        ("[\"a:1\", \"a:1\"]", "b.toml:1:12: backends is \"a:1\": it is there twice"),
        ("[\"a:0\"]", "b.toml:1:12: backends is \"a:0\": port 0"),
        ("[\"unix:a.sock\"]", "backends[0] is \"unix:a.sock\": write an absolute path"),
        ("[\"unix:/a\", \"unix:/a\"]", "backends[0] has this address already"),
        ("[\"a\"]", "backends[0] is \"a\": a port is missing: write \"a:9001\""),
        ("[\"a b:1\"]", "backends[0] is \"a b:1\": write HOST:PORT"),
        ("[\"a:1\", \"0.0.0.0:1\"]", "b.toml:1:20: backends[1] is \"0.0.0.0:1\": it is not"),
        ("\"a:1\"\nlookup_interval = \"1ms\"", "lookup_interval is \"1ms\": write at least \"1s\""),
    ] {
        let error = Config::parse(&format!("backends = {text}"), "b.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once_with_their_lines() {
    let text = "shard = 1\nlisten = 8080\nretries = \"many\"\n\n[timeouts]\nconnect = 5\n\
                [shutdown]\ndeadline = \"5s\"\n[register]\ntoken = \"secret word\"\n";
    let errors = Config::parse(text, "b.toml").unwrap_err();
    let lines: Vec<_> = errors.all().iter().map(|e| e.location().unwrap().line()).collect();
    assert_eq!(lines, [1, 2, 3, 6, 8, 10], "{errors}");
    let shown = errors.with_lines();
    assert!(shown.contains("b.toml:3:11: retries is \"many\""), "{shown}");
    assert!(shown.contains("\n  3 | retries = \"many\"\n    |           ^\n"), "{shown}");
    assert!(shown.contains("10 | token = ...") && !shown.contains("secret word"), "{shown}");
}
