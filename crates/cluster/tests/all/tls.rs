//! Nodes with TLS connections to Redis.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "tls")]

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use throng_cluster::redis::{Bus, Health, Settings, StartError, Tls};
use throng_testkit::{Redis, RedisCluster, RedisTls, TempFolder, eventually};

use crate::nodes::{CHANNELS, Node, check_all, keep, traffic};
use crate::support::Recorder;

/// An authority, with its own files and the files of its certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: TempFolder,
}

impl Authority {
    fn new(name: &str) -> Self {
        let directory = TempFolder::new(&format!("redis-tls-{name}"));
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("ca.pem"), certificate.pem()).unwrap();
        Self { issuer: Issuer::new(params, key), directory }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Writes a certificate for a name or address, and its key.
    fn issue(&self, name: &str) -> (PathBuf, PathBuf) {
        let files = (self.directory.join("own.pem"), self.directory.join("own.key"));
        self.write(name, &files);
        files
    }

    fn write(&self, name: &str, files: &(PathBuf, PathBuf)) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(&files.0, certificate.pem()).unwrap();
        std::fs::write(&files.1, key.serialize_pem()).unwrap();
    }
}

fn files<'a>(
    (certificate, key): &'a (PathBuf, PathBuf),
    authority: &'a Path,
    demands: bool,
) -> RedisTls<'a> {
    RedisTls { certificate, key, authority, demands }
}

fn trusting(authority: &Authority) -> Tls {
    Tls { ca: Some(authority.file()), ..Tls::default() }
}

fn url(redis: &Redis) -> String {
    format!("rediss://127.0.0.1:{}", redis.tls_port())
}

fn three(url: &str, tls: &Tls) -> [Node; 3] {
    let place = || (url.to_owned(), tls.clone());
    [1, 2, 3].map(|node| Node::start_secured(place(), node, keep(), CHANNELS))
}

/// Checks that nodes have no connection to a port without TLS.
fn is_secured(servers: &[&Redis]) {
    eventually("no connection is without TLS", || {
        servers.iter().all(|server| server.plain_clients() == 0)
    });
}

/// Returns the reason why a node does not start.
fn refusal(url: String, tls: Tls) -> StartError {
    let settings = Settings { url, prefix: "test".to_owned(), node: 1, tls };
    let (_bus, starter) = match Bus::new(settings) {
        Ok(both) => both,
        Err(error) => return error,
    };
    starter.start(Recorder([].into())).unwrap_err()
}

/// Asserts that the error contains these parts.
fn says(error: &StartError, is_lasting: bool, parts: &[&str]) {
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(error.is_lasting(), is_lasting, "{text}");
}

#[test]
fn a_server_with_tls_is_used_with_it_also_after_it_was_killed() {
    let authority = Authority::new("single");
    let own = authority.issue("127.0.0.1");
    let redis = Redis::start_with_tls("tls", files(&own, &authority.file(), false), None);
    let Some(mut redis) = redis else { return };
    let nodes = three(&url(&redis), &trusting(&authority));
    let mut kills = 0;
    // The server restarts without its data: the channels begin again.
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 50 && kills == 0 {
            kills += 1;
            redis.kill();
            eventually("it is noticed", || nodes.iter().all(|node| !node.bus.status().is_up()));
            redis.run();
            eventually("all are back", || nodes.iter().all(|node| node.bus.status().is_up()));
        }
        rounds < 100
    });
    let last = format!("2 {} ", rounds - 1);
    for node in &nodes {
        eventually("the last message of the third arrives", || {
            let got = node.got(0);
            // The sequence may also begin again with this message.
            got.sequence.iter().any(|payload| payload.starts_with(last.as_bytes()))
        });
    }
    is_secured(&[&redis]);
}

#[test]
fn a_master_that_sentinels_name_is_used_with_tls_also_after_a_failover() {
    let authority = Authority::new("sentinel");
    let (own, ca) = (authority.issue("127.0.0.1"), authority.file());
    let tls = files(&own, &ca, false);
    let Some(master) = Redis::start_with_tls("tls-master", tls, None) else { return };
    let replica = Redis::start_with_tls("tls-replica", tls, Some(&master)).unwrap();
    let configuration = format!(
        "sentinel monitor mymaster 127.0.0.1 {} 1\n\
         sentinel down-after-milliseconds mymaster 600000\n\
         sentinel failover-timeout mymaster 10000\n",
        master.tls_port()
    );
    let sentinel = Redis::start_sentinel_with("tls-sentinel", &configuration, Some(tls));
    eventually("it knows the replica", || sentinel.ask("SENTINEL REPLICAS mymaster") == "*1");
    let url = format!("rediss-sentinel://127.0.0.1:{}/mymaster", sentinel.tls_port());
    let nodes = three(&url, &trusting(&authority));
    let mut is_replaced = false;
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 20 && !is_replaced {
            sentinel.ask_until_taken("SENTINEL FAILOVER mymaster");
            eventually("all nodes are at the new master", || {
                replica.ask("PUBSUB CHANNELS test.q.*") == "*3"
                    && nodes.iter().all(|node| node.bus.status().is_up())
            });
            is_replaced = true;
        }
        !is_replaced || rounds < 100
    });
    let last = format!("0 {} ", rounds - 1);
    eventually("the last message of the first arrives at the third", || {
        nodes[2].got(0).sequence.iter().any(|payload| payload.starts_with(last.as_bytes()))
    });
    is_secured(&[&master, &replica, &sentinel]);
    says(&refusal(url, Tls::default()), true, &["the sentinel 127.0.0.1:", "cluster.tls_ca"]);
}

#[test]
fn servers_that_a_redis_cluster_names_are_used_with_tls_also_after_a_failover() {
    let authority = Authority::new("cluster");
    let (own, ca) = (authority.issue("127.0.0.1"), authority.file());
    let cluster = RedisCluster::start_with_tls("tls-cluster", 3, files(&own, &ca, false));
    let Some(cluster) = cluster else { return };
    // The node asks this server for the others.
    let url = format!("rediss-cluster://127.0.0.1:{}", cluster.servers[0].tls_port());
    let nodes = three(&url, &trusting(&authority));
    let mut is_replaced = false;
    let rounds = traffic(&nodes, 10, |rounds| {
        if rounds > 20 && !is_replaced {
            (0..3).for_each(|master| _ = cluster.fail_over(master));
            is_replaced = true;
        }
        !is_replaced || rounds < 60
    });
    check_all(&nodes, rounds);
    is_secured(&cluster.servers.iter().collect::<Vec<_>>());
    says(&refusal(url, Tls::default()), true, &["cluster.url: 127.0.0.1:", "cluster.tls_ca"]);
}

#[test]
fn certificates_that_do_not_fit_are_named_with_the_remedy() {
    let (authority, other) = (Authority::new("right"), Authority::new("wrong"));
    let own = authority.issue("redis.test");
    let Some(redis) = Redis::start_with_tls("tls-name", files(&own, &authority.file(), true), None)
    else {
        return;
    };
    let named = |tls: Tls| Tls { name: Some("redis.test".to_owned()), ..tls };
    let ca = other.file();
    let parts = ["no trusted authority", "cluster.tls_ca", ca.to_str().unwrap()];
    says(&refusal(url(&redis), named(trusting(&other))), true, &parts);
    let parts = ["no trusted authority", "set cluster.tls_ca"];
    says(&refusal(url(&redis), named(Tls::default())), true, &parts);
    let parts = ["another name", "redis.test", "cluster.tls_name"];
    says(&refusal(url(&redis), trusting(&authority)), true, &parts);
    let tls = named(trusting(&authority));
    let error = refusal(url(&redis), tls.clone());
    assert!(error.to_string().contains("cluster.tls_cert and cluster.tls_key"), "{error}");
    let with = |certificate| Tls { certificate: Some(certificate), ..tls.clone() };
    let parts = ["cluster.tls_cert", "own.pem"];
    says(&refusal(url(&redis), with(other.issue("node.test"))), true, &parts);

    // The node connects with the right certificate.
    let certificate = (authority.directory.join("node.pem"), authority.directory.join("node.key"));
    authority.write("node.test", &certificate);
    let tls = with(certificate.clone());
    let nodes = three(&url(&redis), &tls);
    let rounds = traffic(&nodes, 10, |rounds| rounds < 50);
    check_all(&nodes, rounds);
    is_secured(&[&redis]);
    let _other = Node::start(&redis, 4, None);
    assert!(redis.plain_clients() >= 2, "one without TLS is seen");
    let plain = format!("redis://127.0.0.1:{}", redis.tls_port());
    says(&refusal(plain, Tls::default()), false, &["rediss://"]);
}

#[test]
fn files_that_are_replaced_are_used_for_later_connections() {
    let (authority, other) = (Authority::new("before"), Authority::new("after"));
    let own = authority.issue("127.0.0.1");
    let Some(mut redis) =
        Redis::start_with_tls("tls-new", files(&own, &authority.file(), false), None)
    else {
        return;
    };
    let tls = trusting(&authority);
    let node = Node::start_secured((url(&redis), tls), 1, keep(), CHANNELS);
    redis.kill();
    other.write("127.0.0.1", &own);
    redis.run();
    let untrusted = || match node.bus.status().health() {
        Health::Degraded(_, why) => why.contains("no trusted authority"),
        _ => false,
    };
    eventually("the new certificate is not trusted", untrusted);
    std::fs::copy(other.file(), authority.file()).unwrap();
    eventually("it is", || node.bus.status().is_up());
}

#[test]
fn settings_and_files_that_cannot_be_used_are_named() {
    let authority = Authority::new("files");
    let (chain, key) = authority.issue("node.test");
    let missing = authority.directory.join("missing.pem");
    let refusal = |tls| refusal("rediss://127.0.0.1:1".to_owned(), tls);
    let ca = |file: &Path| Tls { ca: Some(file.to_owned()), ..Tls::default() };
    let own = |chain: &Path, key: &Path| Tls {
        certificate: Some((chain.to_owned(), key.to_owned())),
        ..trusting(&authority)
    };
    says(&refusal(ca(&missing)), false, &["cluster.tls_ca: ", "missing.pem"]);
    says(&refusal(ca(&key)), true, &["cluster.tls_ca: ", "own.key", "no certificate"]);
    says(&refusal(own(&missing, &key)), false, &["cluster.tls_cert: ", "missing.pem"]);
    says(&refusal(own(&chain, &missing)), false, &["cluster.tls_key: ", "missing.pem"]);
    says(&refusal(own(&chain, &chain)), true, &["cluster.tls_key: ", "own.pem"]);
    let name = Tls { name: Some("https://a".to_owned()), ..trusting(&authority) };
    says(&refusal(name), true, &["cluster.tls_name: "]);
    for url in ["redis://a", "redis-sentinel://a/mymaster", "redis-cluster://a"] {
        let error = self::refusal(url.to_owned(), trusting(&authority));
        says(&error, true, &["cluster.tls_ca is set", "rediss://"]);
    }
    let error = self::refusal("rediss+unix:///tmp/redis.sock".to_owned(), Tls::default());
    says(&error, true, &["cluster.url", "does not begin with redis://"]);
}
