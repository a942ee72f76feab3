//! The records of requests that routes and limits cause.

use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_balance::{Access, AccessDetail, AccessLog, Balancer, Config};
use throng_testkit::eventually;

use crate::sites::get;
use crate::support::{Peer, Scripted, accepted, upgrade};

/// The records of a balancer whose log wants this much by default.
#[derive(Debug)]
struct Records {
    detail: AccessDetail,
    lines: Mutex<Vec<String>>,
}

impl AccessLog for Records {
    fn detail(&self) -> AccessDetail {
        self.detail
    }

    fn record(&self, access: &Access<'_>) {
        let Access { status, path, pool, split, limit, queued, tls, .. } = access;
        let status = status.unwrap_or_default();
        let (path, pool, limit) = (path.unwrap_or("-"), pool.unwrap_or("-"), limit.unwrap_or("-"));
        let split = split.map_or("no split", |_| "split");
        let queued = queued.map_or("", |_| " queued");
        assert_eq!(*tls, None);
        self.lines.lock().unwrap().push(format!("{status} {path} {pool} {split} {limit}{queued}"));
    }
}

struct Logged {
    balancer: Balancer,
    records: Arc<Records>,
}

impl Logged {
    fn start(detail: AccessDetail, text: &str) -> Self {
        let text = format!("listen = \"127.0.0.1:0\"\nshards = 1\n{text}");
        let records = Arc::new(Records { detail, lines: Mutex::default() });
        let config = Config::parse(&text, "b.toml").unwrap();
        let access: Arc<dyn AccessLog> = Arc::<Records>::clone(&records);
        let balancer = Balancer::start_with_access_log(config, access).unwrap();
        Self { balancer, records }
    }

    fn connect(&self) -> Peer {
        Peer::new(TcpStream::connect(self.balancer.addresses()[0]).unwrap())
    }

    fn lines(&self) -> Vec<String> {
        self.records.lines.lock().unwrap().clone()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.balancer.shut_down(Duration::ZERO, Duration::ZERO);
    }
}

#[test]
fn a_route_says_which_of_its_requests_are_logged() {
    let text = "[[site]]\nhosts = [\"*\"]\nrespond.text = \"ok\"\naccess = \"all\"\n\
                [[site.route]]\npath = \"/quiet\"\naccess = \"off\"\nrespond.status = 500\n\
                [[site.route]]\npath = \"/errors\"\naccess = \"errors\"\n\
                [[site.route]]\npath = \"/broken\"\naccess = \"errors\"\nrespond.status = 503\n\
                [[site.route]]\npath = \"/inherits\"\n";
    for detail in [AccessDetail::Off, AccessDetail::All] {
        let logged = Logged::start(detail, text);
        let mut client = logged.connect();
        for path in ["/quiet", "/errors", "/broken", "/inherits", "/other"] {
            client.send(&get("a", path));
            client.answer();
        }
        // Each is recorded before it is answered.
        let expected =
            ["503 /broken - no split -", "200 /inherits - no split -", "200 /other - no split -"];
        assert_eq!(logged.lines(), expected, "{detail:?}");
    }
}

#[test]
fn a_refusal_of_a_limit_counts_as_an_error_and_names_the_limit() {
    let text = "[[site]]\nhosts = [\"*\"]\nrespond.text = \"ok\"\nlimits = [\"dial\"]\n\
                [[limit]]\nname = \"dial\"\nrate = \"1/h\"\nburst = 0\n";
    let logged = Logged::start(AccessDetail::Errors, text);
    let mut client = logged.connect();
    for status in ["200", "429"] {
        client.send(&get("a", "/x"));
        assert_eq!(&client.answer().0[9..12], status);
    }
    assert_eq!(logged.lines(), ["429 /x - no split dial"]);
}

#[test]
fn a_tunnel_is_logged_with_its_split_and_the_time_that_it_waited() {
    let backend = Scripted::bind();
    let text = format!(
        "max_handshakes = 1\nbackends = [\"{}\"]\n[[site]]\nhosts = [\"*\"]\n\
         split = [{{ pool = \"default\" }}]\nsplit_by = \"client\"\naccess = \"all\"\n",
        backend.address
    );
    let logged = Logged::start(AccessDetail::Off, &text);
    let mut first = logged.connect();
    first.send(&upgrade("/first"));
    let mut server = backend.accept();
    server.head();
    let mut second = logged.connect();
    second.send(&upgrade("/second"));
    eventually("the second client waits", || logged.balancer.status().metrics.queued == 1);
    server.send(&accepted());
    assert!(first.head().starts_with("HTTP/1.1 101 "));
    let server_of_second = backend.open();
    assert!(second.head().starts_with("HTTP/1.1 101 "));
    drop((first, second));
    drop((server, server_of_second));
    eventually("both tunnels are recorded", || logged.lines().len() == 2);
    let mut lines = logged.lines();
    lines.sort();
    assert_eq!(lines, ["101 /first default split -", "101 /second default split - queued"]);
}
