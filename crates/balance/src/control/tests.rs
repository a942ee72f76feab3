//! Threads, sockets and clocks; the rules are in the tests of `core`.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;

fn config(text: &str) -> Config {
    Config::parse(&format!("listen = \"127.0.0.1:0\"\nshards = 1\n{text}"), "b.toml").unwrap()
}

fn end(balancer: &Balancer) {
    balancer.shut_down(Duration::ZERO, Duration::from_secs(5)).unwrap();
}

/// Waits until the rows are as they should be; a minute is a failure.
fn until(balancer: &Balancer, holds: impl Fn(&Status) -> bool) -> Status {
    let began = std::time::Instant::now();
    loop {
        let status = balancer.status();
        if holds(&status) {
            return status;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{status:?}");
        thread::yield_now();
    }
}

#[test]
fn it_starts_listens_and_ends() {
    let balancer = Balancer::start(config("backends = [\"127.0.0.1:1\"]")).unwrap();
    let address = balancer.addresses()[0];
    assert_ne!(address.port(), 0);
    let error = balancer.add(address, 1, false).unwrap_err();
    assert!(error.to_string().contains("the balancer itself listens"), "{error}");
    let other = balancer.clone();
    end(&balancer);
    end(&other);
    assert!(matches!(other.add(address, 1, false), Err(Error::ShuttingDown)));
    TcpListener::bind(address).expect("no process listens there any more");
}

#[test]
fn a_failed_start_is_reported_and_leaves_nothing() {
    assert!(matches!(Balancer::start(Config::default()), Err(Error::Config(_))));
    let mut wrong = config("backends = [\"127.0.0.1:1\"]");
    // A documentation address, which no machine has.
    wrong.listen.push("192.0.2.1:80".parse().unwrap());
    assert!(matches!(Balancer::start(wrong), Err(Error::Start(_))));
}

#[test]
fn a_failure_of_ours_is_reported_with_its_remedy_and_held_against_no_backend() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = listener.local_addr().unwrap();
    let text = format!("sources = \"192.0.2.1\"\nbackends = \"{backend}\"");
    let balancer = Balancer::start(config(&text)).unwrap();
    for _ in 0..4 {
        let mut client = std::net::TcpStream::connect(balancer.addresses()[0]).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    let status = until(&balancer, |status| {
        // The counts and the reports of shards arrive separately.
        status.metrics.own_failures == 4 && status.own_failure.is_some()
    });
    let (row, own) = (&status.backends[0], status.own_failure.expect("it is reported"));
    assert!(own.text.contains(&backend.to_string()) && own.text.contains("sources"), "{own:?}");
    assert!(own.unix_seconds > 0);
    assert_eq!((row.state, row.totals.failures, row.last_failure.is_none()), ("up", 0, true));
    end(&balancer);
}

/// On systems other than Linux only 127.0.0.1 exists by default.
#[cfg(target_os = "linux")]
#[test]
fn checks_come_from_the_sources_in_turn() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let check = "[health.check]\nkind = \"tcp\"\ninterval = \"20ms\"\ntimeout = \"20ms\"\nfall = 1";
    let with_sources = |sources: &str| {
        let address = backend.local_addr().unwrap();
        config(&format!("sources = [{sources}]\nbackends = \"{address}\"\n{check}"))
    };
    let balancer = Balancer::start(with_sources("\"127.0.0.2\", \"::1\", \"127.0.0.3\"")).unwrap();
    let mut seen = [(); 4].map(|()| backend.accept().unwrap().1.ip().to_string());
    seen.sort();
    assert_eq!(seen, ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]);
    // An address that no machine has: a check that cannot be made does not count against the
    // backend.
    balancer.apply(with_sources("\"192.0.2.1\"")).unwrap();
    let status = until(&balancer, |status| status.own_failure.is_some());
    assert_eq!(status.backends[0].state, "up", "{status:?}");
    end(&balancer);
}

#[test]
fn a_registration_ends_without_anybody_asking() {
    let text = "[register]\ntoken = \"0123456789abcdef\"";
    let balancer = Balancer::start(config(text)).unwrap();
    assert!(balancer.check_token(b"0123456789abcdef").is_ok());
    assert!(matches!(balancer.check_token(b"0123456789abcdeX"), Err(Error::Token)));
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    balancer.register(address, 1, Some(Duration::from_secs(3600))).unwrap();
    balancer.heartbeat(address).unwrap();
    assert_eq!(balancer.status().backends[0].source, "registered");
    // Another second without a heartbeat.
    balancer.register(address, 1, Some(Duration::from_secs(1))).unwrap();
    until(&balancer, |status| status.backends.is_empty());
    balancer.apply(config("backends = [\"127.0.0.1:2\"]")).unwrap();
    assert!(matches!(balancer.check_token(b"0123456789abcdef"), Err(Error::RegistrationIsOff)));
    end(&balancer);
}

#[test]
fn active_checks_follow_the_configuration() {
    // The kernel accepts; no process listens at port 1.
    let alive = TcpListener::bind("127.0.0.1:0").unwrap();
    let backends = format!("backends = [\"{}\", \"127.0.0.1:1\"]\n", alive.local_addr().unwrap());
    let check = "[health.check]\nkind = \"tcp\"\ninterval = \"300ms\"\ntimeout = \"300ms\"\n";
    let balancer = Balancer::start(config(&format!("{backends}{check}"))).unwrap();
    let status = until(&balancer, |status| status.backends[1].state == "down");
    assert_eq!(status.backends[0].state, "up");
    assert!(status.backends[1].last_failure.as_ref().unwrap().text.contains("cannot connect"));
    // Without checks it gets clients again after its time.
    balancer.apply(config(&format!("{backends}[health]\ndown_for = \"1ms\""))).unwrap();
    until(&balancer, |status| status.backends[1].state == "up");
    end(&balancer);
}

#[test]
fn reports_of_shards_are_heard() {
    let balancer =
        Balancer::start(config("backends = [\"127.0.0.1:1\", \"127.0.0.1:2\"]")).unwrap();
    let client = |_| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(balancer.addresses()[0]).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    // No process listens at either: each request fails at both.
    let answers: Vec<String> = (0..3).map(client).collect();
    assert!(answers[0].starts_with("HTTP/1.1 502 "), "{answers:?}");
    let status = until(&balancer, |status| status.backends.iter().all(|row| row.state == "down"));
    assert!(status.backends[0].totals.failures > 0);
    assert!(client(3).starts_with("HTTP/1.1 502 "), "they are asked all the same");
    end(&balancer);
}

#[test]
fn a_status_is_plain_json() {
    let balancer = Balancer::start(config("backends = [\"127.0.0.1:1\"]")).unwrap();
    balancer.drain("127.0.0.1:1".parse::<PeerAddress>().unwrap(), None).unwrap();
    let json = serde_json::to_value(balancer.status()).unwrap();
    assert_eq!(json["pick"], "power_of_two");
    let row = &json["backends"][0];
    assert_eq!(row["address"], "127.0.0.1:1");
    assert_eq!((&row["state"], &row["source"]), (&"draining".into(), &"file".into()));
    assert_eq!((&row["drain"]["left"], &row["share"]), (&0.into(), &1.0.into()));
    assert_eq!(row["last_failure"], serde_json::Value::Null);
    end(&balancer);
}

/// A resolver that answers with the addresses that a test sets; without any it fails.
fn resolver(addresses: &Arc<Mutex<Vec<SocketAddr>>>) -> Arc<Resolver> {
    let addresses = Arc::clone(addresses);
    Arc::new(move |name: &str| {
        assert_eq!(name, "app.internal:80");
        let found = addresses.lock().unwrap().clone();
        match found.is_empty() {
            true => Err(io::Error::other("there is no such name")),
            false => Ok(found),
        }
    })
}

#[test]
fn a_name_without_an_address_is_looked_up_until_it_has_one() {
    let addresses: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    let text = "backends = [\"app.internal:80\"]\nlookup_interval = \"1s\"";
    let balancer = Balancer::start_with_resolver(config(text), resolver(&addresses)).unwrap();
    let status = balancer.status();
    assert!(status.backends.is_empty(), "{status:?}");
    let failure = status.names[0].last_failure.as_ref().unwrap();
    assert_eq!(failure.text, "there is no such name");
    let one = "127.0.0.1:1".parse().unwrap();
    addresses.lock().unwrap().push(one);
    let status = until(&balancer, |status| !status.backends.is_empty());
    assert_eq!(status.backends[0].address, one);
    assert_eq!(status.backends[0].name.as_deref(), Some("app.internal:80"));
    // After a failure they stay.
    addresses.lock().unwrap().clear();
    let status = until(&balancer, |status| status.names[0].last_failure.is_some());
    assert_eq!((status.backends.len(), status.backends[0].state), (1, "up"));
    end(&balancer);
}

#[test]
fn a_lookup_that_hangs_holds_up_nothing() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let resolver = move |name: &str| match name.starts_with("slow") {
        true => {
            let _ = held.lock().unwrap().recv();
            Err(io::Error::other("too late"))
        }
        false => Ok(vec!["127.0.0.1:1".parse().unwrap()]),
    };
    let text = "backends = [\"slow.internal:80\", \"app.internal:80\"]";
    let balancer = Balancer::start_with_resolver(config(text), Arc::new(resolver)).unwrap();
    let status = balancer.status();
    assert_eq!((status.backends.len(), status.names[0].addresses.len()), (1, 0));
    // Its end does not wait for the resolver either.
    end(&balancer);
    drop(release);
}

#[test]
fn more_names_than_threads_are_all_looked_up_and_again_after_the_interval() {
    let asked = Arc::new(Mutex::new(Vec::<String>::new()));
    let seen = Arc::clone(&asked);
    let resolver = move |name: &str| {
        seen.lock().unwrap().push(name.to_owned());
        let number: u8 = name[1..].split(':').next().unwrap().parse().unwrap();
        Ok(vec![SocketAddr::from(([127, 0, 0, number], 1))])
    };
    let names: Vec<_> = (1..=40).map(|number| format!("\"n{number}:1\"")).collect();
    let text = format!("lookup_interval = \"1s\"\nbackends = [{}]", names.join(", "));
    let balancer = Balancer::start_with_resolver(config(&text), Arc::new(resolver)).unwrap();
    assert_eq!(balancer.status().backends.len(), 40);
    until(&balancer, |_| asked.lock().unwrap().len() >= 80);
    let mut asked = asked.lock().unwrap().clone();
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), 40);
    end(&balancer);
}

#[test]
fn a_reload_looks_up_new_names_before_it_removes_the_old_backends() {
    let addresses: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    addresses.lock().unwrap().push("127.0.0.1:2".parse().unwrap());
    let own = resolver(&addresses);
    let balancer =
        Balancer::start_with_resolver(config("backends = [\"127.0.0.1:1\"]"), own).unwrap();
    let changes = balancer.apply(config("backends = [\"app.internal:80\"]")).unwrap();
    assert_eq!(changes.added, ["127.0.0.1:2".parse::<PeerAddress>().unwrap()]);
    assert_eq!(changes.removed[0].address, "127.0.0.1:1".parse::<PeerAddress>().unwrap());
    end(&balancer);
}

#[test]
fn localhost_is_found_by_the_system() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = format!("backends = [\"localhost:{port}\"]");
    let balancer = Balancer::start(config(&text)).unwrap();
    let status = balancer.status();
    assert!(
        status.backends.iter().any(|row| row.address == listener.local_addr().unwrap()),
        "{status:?}"
    );
    end(&balancer);
}
