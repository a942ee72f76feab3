//! Comparison of this balancer with nginx and HAProxy: with the same sites, each must choose the
//! same route.
//!
//! nginx decodes a path, merges its slashes and resolves its dots before it looks; HAProxy looks at
//! the path as it was sent. So what both agree on is what no reading of a path changes. The
//! differences that are allowed are in [`may_differ`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use throng_balance::{Balancer, Config};
use throng_testkit::{Random, TempFolder, poll};

use crate::support::TIMEOUT;

/// Seeds of sites, and requests to the sites of each.
const SEEDS: u64 = 40;
const REQUESTS: usize = 200;

/// The sites of a seed: hosts with their routes, a path or a prefix each.
struct Site {
    host: String,
    routes: BTreeMap<(bool, String), String>,
}

impl Site {
    fn new(host: String, random: &mut Random) -> Self {
        let mut routes = BTreeMap::new();
        for _ in 0..2 + random.below(5) {
            let depth = random.below(4);
            let names = ["a", "b", "ab", "admin", "public"];
            let path: String =
                (0..depth).map(|_| format!("/{}", names[random.below(names.len())])).collect();
            let path = if path.is_empty() { "/".to_owned() } else { path };
            let is_prefix = random.below(2) == 0;
            let kind = if is_prefix { "prefix" } else { "path" };
            let name = format!("{host} {kind} {path}");
            routes.insert((is_prefix, path), name);
        }
        Self { host, routes }
    }
}

/// Returns the sites of all seeds; no two seeds have a host in common.
fn sites() -> Vec<Site> {
    let mut sites = Vec::new();
    for seed in 0..SEEDS {
        let random = &mut Random::new(seed * 1000 + 7);
        let hosts = ["a.s", "b.s", "**.s", "**.deep.s", "*.one"];
        let of_seed = hosts.iter().map(|host| format!("{host}{seed}.test"));
        let chosen: Vec<_> = of_seed.filter(|_| random.below(4) > 0).collect();
        sites.extend(chosen.into_iter().map(|host| Site::new(host, random)));
    }
    sites
}

fn ours(sites: &[Site]) -> String {
    let mut text = "listen = \"127.0.0.1:0\"\nshards = 1\n\
                    [[site]]\nhosts = [\"*\"]\nrespond.text = \"any\"\n"
        .to_owned();
    for site in sites {
        write!(text, "[[site]]\nhosts = [{:?}]\n", site.host).unwrap();
        for ((is_prefix, path), name) in &site.routes {
            let kind = if *is_prefix { "prefix" } else { "path" };
            write!(text, "[[site.route]]\n{kind} = {path:?}\nrespond.text = {name:?}\n").unwrap();
        }
    }
    text
}

fn of_nginx(sites: &[Site], folder: &Path) -> String {
    let folder = folder.display();
    let mut text = format!(
        "daemon off; worker_processes 1; pid {folder}/pid; error_log stderr crit;\nevents {{}}\n\
         http {{\naccess_log off; default_type text/plain; keepalive_requests 1000000;\n\
         server_names_hash_max_size 8192; server_names_hash_bucket_size 128;\n\
         client_body_temp_path {folder}/1; proxy_temp_path {folder}/2;\n\
         fastcgi_temp_path {folder}/3; uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;\n\
         server {{ listen unix:{folder}/nginx default_server; location / {{ return 200 any; }} }}\n"
    );
    for site in sites {
        // It has no pattern of one label, only expressions.
        let name = match site.host.strip_prefix("**.") {
            Some(domain) => format!("*.{domain}"),
            None => match site.host.strip_prefix("*.") {
                Some(domain) => format!("~^[^.]+\\.{}$", domain.replace('.', "\\.")),
                None => site.host.clone(),
            },
        };
        writeln!(text, "server {{ listen unix:{folder}/nginx; server_name {name};").unwrap();
        let mut has_all = false;
        for ((is_prefix, path), name) in &site.routes {
            let whole = path.trim_end_matches('/');
            has_all |= *is_prefix && whole.is_empty();
            let has_path = site.routes.contains_key(&(false, path.clone()));
            if !is_prefix || !has_path && !whole.is_empty() {
                writeln!(text, "location = {path} {{ return 200 {name:?}; }}").unwrap();
            }
            if *is_prefix {
                writeln!(text, "location {whole}/ {{ return 200 {name:?}; }}").unwrap();
            }
        }
        let rest = if has_all { "" } else { "location / { return 404 none; }" };
        writeln!(text, "{rest} }}").unwrap();
    }
    text + "}\n"
}

fn of_haproxy(sites: &[Site], folder: &Path) -> String {
    let mut text = format!(
        "defaults\nmode http\ntimeout client 60s\ntimeout http-keep-alive 60s\nfrontend f\n\
         bind unix@{}/haproxy\n\
         http-request set-var(txn.h) req.hdr(host),field(1,:),lower,regsub(\\.$,)\n",
        folder.display()
    );
    // Its rules are tried in their order: the most specific host first.
    let rank = |site: &&Site| match site.host.split_once('.') {
        Some(("**", domain)) => (2, usize::MAX - domain.len()),
        Some(("*", _)) => (1, 0),
        _ => (0, 0),
    };
    let mut ordered: Vec<&Site> = sites.iter().collect();
    ordered.sort_by_key(rank);
    for site in ordered {
        let host = match site.host.split_once('.') {
            Some(("**", domain)) => format!("-m end .{domain}"),
            Some(("*", domain)) => format!("-m reg ^[^.]+\\.{}$", domain.replace('.', "\\.")),
            _ => format!("-m str {}", site.host),
        };
        let host = format!("{{ var(txn.h) {host} }}");
        let answer = |status, name: &str| {
            let name = name.replace(' ', "\\ ");
            format!("http-request return status {status} content-type text/plain string {name}")
        };
        let mut routes: Vec<_> = site.routes.iter().collect();
        routes.sort_by_key(|((is_prefix, path), _)| (*is_prefix, usize::MAX - path.len()));
        for ((is_prefix, path), name) in routes {
            let (whole, answer) = (path.trim_end_matches('/'), answer(200, name));
            if !is_prefix || !whole.is_empty() {
                writeln!(text, "{answer} if {host} {{ path -m str {path} }}").unwrap();
            }
            if *is_prefix {
                writeln!(text, "{answer} if {host} {{ path -m beg {whole}/ }}").unwrap();
            }
        }
        writeln!(text, "{} if {host}", answer(404, "none")).unwrap();
    }
    text + "http-request return status 200 content-type text/plain string any\n"
}

/// A random request to a site, as host and path.
fn request(sites: &[Site], seed: u64, random: &mut Random) -> (String, String) {
    let hosts =
        ["a.s", "b.s", "x.s", "y.x.s", "z.deep.s", "deep.s", "w.z.deep.s", "s", "q.one", "r.q.one"];
    let host = format!("{}{seed}.test", hosts[random.below(hosts.len())]);
    let host = match random.below(6) {
        0 => host.to_ascii_uppercase(),
        1 => host + ".",
        2 => host + ":8080",
        _ => host,
    };
    let domain = format!("{seed}.test");
    let of_seed: Vec<_> = sites
        .iter()
        .filter(|site| {
            let end = site.host.strip_suffix(&domain);
            end.is_some_and(|rest| !rest.ends_with(|it: char| it.is_ascii_digit()))
        })
        .flat_map(|site| site.routes.keys())
        .collect();
    let mut path = match of_seed.len() {
        0 => "/a".to_owned(),
        number => of_seed[random.below(number)].1.clone(),
    };
    for _ in 0..random.below(3) {
        let ends = ["/", "/x", "x", "/a", "?q=/admin", "/.x"];
        let odd = ["/..", "%2F", "//", "/./", "/../", "%5c", "\\", ";x", "/;x/", "%2e%2e/", "%61"];
        let at = random.below(path.len() + 1);
        match random.below(3) {
            0 => path.insert_str(at, odd[random.below(odd.len())]),
            1 => path = path.replacen('/', odd[random.below(odd.len())], 1),
            _ => path.push_str(ends[random.below(ends.len())]),
        }
    }
    if !path.starts_with('/') {
        path.insert(0, '/');
    }
    (host, path)
}

/// Returns whether a proxy may choose otherwise than this balancer does, which serves the path.
fn may_differ(proxy: &str, path: &str, status: u16) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    match proxy {
        // It compares encoded letters with the letters of its rules, and refuses a backslash.
        "haproxy" => path.contains("%61") || status == 400 && path.contains('\\'),
        _ => false,
    }
}

pub(crate) trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A way to a proxy, on one connection as long as that stays open.
pub(crate) struct Way {
    connect: Box<dyn Fn() -> Option<Box<dyn Stream>>>,
    stream: Option<Box<dyn Stream>>,
}

impl Way {
    pub(crate) fn tcp(address: SocketAddr) -> Self {
        let connect = move || {
            let stream = TcpStream::connect(address).ok()?;
            stream.set_read_timeout(Some(TIMEOUT)).ok()?;
            stream.set_nodelay(true).ok()?;
            Some(Box::new(stream) as Box<dyn Stream>)
        };
        Self { connect: Box::new(connect), stream: None }
    }

    pub(crate) fn unix(path: PathBuf) -> Self {
        let connect = move || {
            let stream = UnixStream::connect(&path).ok()?;
            stream.set_read_timeout(Some(TIMEOUT)).ok()?;
            Some(Box::new(stream) as Box<dyn Stream>)
        };
        Self { connect: Box::new(connect), stream: None }
    }

    /// Sends the head of a request. Returns the status and the body of the answer.
    fn ask(&mut self, head: &str) -> (u16, String) {
        let (head, body) = self.answer(head);
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body)
    }

    /// Sends the head of a request. Returns the head of the answer in lower case, and its body.
    pub(crate) fn answer(&mut self, head: &str) -> (String, String) {
        let connect = &self.connect;
        let stream = self.stream.get_or_insert_with(|| poll("the proxy serves", connect));
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
        let field = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name));
        let length = field("content-length: ").map_or(0, |length| length.trim().parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        if field("connection: close").is_some() || answer.starts_with("http/1.0") {
            self.stream = None;
        }
        (answer, String::from_utf8(body).unwrap())
    }
}

/// Returns the path of a program, if it is installed. On CI it has to be.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    let is_ci = std::env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "0" | "false"));
    assert!(found.is_some() || !is_ci, "on CI {name} has to be installed");
    if found.is_none() {
        println!("skipped: {name} is not installed: apt-get install {name}");
    }
    found
}

/// A proxy that ends with this.
pub(crate) struct Proxy(Child);

impl Proxy {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Not SIGKILL: nginx ends its workers.
        let kill = format!("kill -TERM {}", self.0.id());
        let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// This balancer and the proxies beside it, with the same sites.
struct World {
    balancer: Balancer,
    _proxies: [Proxy; 2],
    ours: Way,
    others: [(&'static str, Way); 2],
    _folder: TempFolder,
}

impl World {
    fn start(sites: &[Site]) -> Option<Self> {
        let (nginx, haproxy) = (program("nginx")?, program("haproxy")?);
        let folder = TempFolder::new("oracle");
        let file = folder.write("nginx.conf", of_nginx(sites, &folder));
        let mut nginx = Command::new(nginx);
        nginx.arg("-p").arg(&*folder).arg("-c").arg(file).args(["-e", "stderr"]);
        let file = folder.write("haproxy.cfg", of_haproxy(sites, &folder));
        let mut haproxy = Command::new(haproxy);
        haproxy.args(["-db", "-q", "-f"]).arg(file);
        let proxies = [Proxy::start(&mut nginx), Proxy::start(&mut haproxy)];
        let balancer = Balancer::start(Config::parse(&ours(sites), "b.toml").unwrap()).unwrap();
        let address = balancer.addresses()[0];
        let others = ["nginx", "haproxy"].map(|name| (name, Way::unix(folder.join(name))));
        let ours = Way::tcp(address);
        Some(Self { balancer, _proxies: proxies, ours, others, _folder: folder })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.balancer.shut_down(Duration::ZERO, Duration::ZERO);
    }
}

#[test]
fn nginx_and_haproxy_choose_the_same_routes() {
    let sites = sites();
    let Some(mut world) = World::start(&sites) else { return };
    let (mut refused, mut disputed, mut served) = (0, 0, 0);
    for seed in 0..SEEDS {
        let random = &mut Random::new(seed + 99);
        for _ in 0..REQUESTS {
            let (host, path) = request(&sites, seed, random);
            let head = format!("GET {path} HTTP/1.1\r\nHost: {host}");
            let own = world.ours.ask(&head);
            let others = world.others.each_mut().map(|(name, way)| (*name, way.ask(&head)));
            if own.0 == 400 {
                refused += 1;
                disputed += usize::from(others[0].1 != others[1].1);
                continue;
            }
            served += 1;
            // Pages of errors differ.
            let own = (own.0, if own.0 == 200 { own.1 } else { String::new() });
            for (proxy, (status, body)) in others {
                let other = (status, if status == 200 { body } else { String::new() });
                let is_allowed = may_differ(proxy, &path, status);
                assert!(
                    own == other || is_allowed,
                    "seed {seed}, {proxy}: {other:?}, {own:?}: {head}"
                );
            }
        }
    }
    println!(
        "{served} served alike, {refused} refused here, {disputed} of them routed differently"
    );
    assert!(served > refused && disputed > 100, "{served}, {refused}, {disputed}");
}

/// Requests that the three treat differently, with the reason.
#[test]
fn known_differences_from_nginx_and_haproxy_stay_as_they_are() {
    let route = |path: &str, name: &str| ((true, path.to_owned()), name.to_owned());
    let site = |host: &str| Site {
        host: host.to_owned(),
        routes: [route("/public", "public"), route("/admin", "admin"), route("/", host)].into(),
    };
    let Some(mut world) = World::start(&[site("a.test"), site("**.b.test")]) else { return };
    for (target, host, expected) in [
        // nginx decodes, merges and resolves before it chooses; HAProxy does not; we refuse.
        ("/public/..%2fadmin", "a.test", ["400", "admin", "public"]),
        ("/public/%2e%2e/admin", "a.test", ["400", "admin", "public"]),
        ("//admin", "a.test", ["400", "admin", "a.test"]),
        // A letter is a letter, encoded or not.
        ("/%61dmin", "a.test", ["admin", "admin", "a.test"]),
        ("/admin%00", "a.test", ["400", "400", "a.test"]),
        // RFC 9112 section 3.2.2: the authority of the target wins.
        ("http://a.test/", "x.b.test", ["a.test", "a.test", "400"]),
        // A URL has a host: RFC 9110 section 4.2.1.
        ("/", "", ["400", "400", "any"]),
        // A fragment is not part of a target.
        ("/x#y", "a.test", ["400", "a.test", "400"]),
        ("/", "b.test", ["any", "any", "any"]),
        ("/", "y.x.b.test", ["**.b.test", "**.b.test", "**.b.test"]),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: {host}");
        let [(_, nginx), (_, haproxy)] = &mut world.others;
        let found = [&mut world.ours, nginx, haproxy].map(|way| match way.ask(&head) {
            (200, body) => body,
            (status, _) => status.to_string(),
        });
        assert_eq!(found, expected, "{head}");
    }
}
