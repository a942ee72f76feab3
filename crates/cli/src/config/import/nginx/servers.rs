//! Servers as sites, and where they listen.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Left;
use super::super::output::Table;
use super::super::parse::Directive;
use super::level::Level;
use super::{Names, Site, Translation};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listen {
    address: String,
    is_tls: bool,
}

/// A server, read before all sites are known.
struct Server<'d> {
    directive: &'d Directive,
    listens: BTreeSet<Listen>,
    hosts: Vec<String>,
    is_default: bool,
    /// It only redirects to https.
    is_redirect: bool,
}

impl Translation {
    /// Translates all servers, and returns the keys of the whole file.
    pub(super) fn servers(&mut self, servers: &[&Directive], outer: &Level) -> Table {
        let mut top = Table::new("", "");
        let mut read: Vec<Server<'_>> = servers.iter().map(|server| self.server(server)).collect();
        name_defaults(&mut read);
        let all: BTreeSet<Listen> = read.iter().flat_map(|server| server.listens.clone()).collect();
        let addresses = |is_tls: bool| -> Vec<String> {
            let own = all.iter().filter(|listen| listen.is_tls == is_tls);
            own.map(|listen| listen.address.clone()).collect()
        };
        let (plain, tls) = (addresses(false), addresses(true));
        top.list("listen", if plain.is_empty() { &tls } else { &plain });
        if !tls.is_empty() {
            top.list("tls.listen", &tls);
        }
        let redirects = read.iter().any(|server| server.is_redirect);
        let plain_is_redirect = read
            .iter()
            .all(|server| server.is_redirect || !server.listens.iter().any(|it| !it.is_tls));
        if redirects && plain_is_redirect && !tls.is_empty() {
            top.text("tls.plain", "redirect");
            read.retain(|server| !server.is_redirect);
        }
        let wanted: BTreeSet<&Listen> = read.iter().flat_map(|server| &server.listens).collect();
        let mut taken = BTreeMap::new();
        let mut names = Names::default();
        for server in &read {
            let mut closed = None;
            if server.listens.iter().collect::<BTreeSet<_>>() != wanted {
                closed = Some(server.directive.left(
                    "all sites are on all addresses: give it a process of its own, or the same \
                     `listen` as the others",
                ));
            }
            self.site(server, outer, closed, &mut taken, &mut names);
        }
        top
    }

    fn server<'d>(&mut self, directive: &'d Directive) -> Server<'d> {
        let inner = || directive.block.iter().flatten();
        let of = |name: &'static str| inner().filter(move |one| one.name == name);
        let mut listens = BTreeSet::new();
        let mut is_default = false;
        for listen in of("listen") {
            let flags = &listen.args[1..];
            let is_tls = flags.iter().any(|flag| flag == "ssl");
            is_default |= flags.iter().any(|flag| flag == "default_server" || flag == "default");
            for flag in flags.iter().filter(|flag| !is_known_flag(flag)) {
                self.left.push(listen.left(format!("a listener has no {flag}")));
            }
            listens.insert(Listen { address: address(listen.arg()), is_tls });
        }
        if listens.is_empty() {
            listens.insert(Listen { address: address("80"), is_tls: false });
        }
        let mut hosts = Vec::new();
        for names in of("server_name") {
            for name in &names.args {
                match host(name) {
                    Some(own) => hosts.extend(own),
                    None => self.left.push(names.left("a host is a name, *.NAME or **.NAME")),
                }
            }
        }
        let actions: Vec<&Directive> =
            inner().filter(|one| matches!(one.name.as_str(), "return" | "location")).collect();
        let is_redirect = matches!(&actions[..], [one]
            if one.name == "return" && one.args.len() == 2 && one.arg() == "301"
                && ["https://$host$request_uri", "https://$server_name$request_uri",
                    "https://$http_host$request_uri"].contains(&one.args[1].as_str()))
            && listens.iter().all(|listen| !listen.is_tls);
        Server { directive, listens, hosts, is_default, is_redirect }
    }

    fn site(
        &mut self,
        server: &Server<'_>,
        outer: &Level,
        closed: Option<Left>,
        taken: &mut BTreeMap<String, String>,
        names: &mut Names,
    ) {
        let directive = server.directive;
        let mut table = Table::new("[[site]]", format!("{}: server", directive.place()));
        let mut hosts = Vec::new();
        for host in &server.hosts {
            match taken.get(host) {
                None => hosts.push(host.clone()),
                Some(place) => {
                    let why = format!("{host} is the site of {place}, which came first");
                    self.left.push(directive.left(why));
                }
            }
        }
        if hosts.is_empty() {
            self.left.push(directive.left("no request is for it: it has no host of its own"));
            return;
        }
        taken.extend(hosts.iter().map(|host| (host.clone(), directive.place())));
        let name = names.unused(hosts[0].trim_start_matches(['*', '.']));
        table.list("hosts", &hosts);
        table.text("name", &name);
        let inner: Vec<&Directive> = directive.block.iter().flatten().collect();
        let mut level = outer.clone();
        level.read(inner.iter().copied(), &self.zones, &mut self.left);
        level.closed.extend(closed);
        certificates(&inner, &mut table);
        let mut routes = Vec::new();
        if level.closed.is_empty()
            && let Err(problem) = self.routes(&inner, &level, &mut routes)
        {
            level.closed.push(problem);
        }
        if !level.closed.is_empty() {
            self.left.append(&mut level.closed);
            routes.clear();
            table = Table::new("[[site]]", format!("{}: closed", directive.place()));
            table.list("hosts", &hosts);
            table.text("name", &name);
            certificates(&inner, &mut table);
            table.set("respond.status", "503");
            table.text("respond.text", "this part of the configuration is not translated");
        }
        self.sites.push(Site { table, routes });
    }
}

impl Translation {
    /// Translates the locations of a server, and what is for no location. All settings stand in
    /// routes: lists of a site and of its route would add up.
    fn routes(
        &mut self,
        inner: &[&Directive],
        level: &Level,
        routes: &mut Vec<Table>,
    ) -> Result<(), Left> {
        // It comes before all locations.
        let returns = inner.iter().any(|one| one.name == "return");
        let locations = inner.iter().filter(|one| one.name == "location");
        let locations: Vec<&Directive> = locations.copied().filter(|_| !returns).collect();
        for location in &locations {
            self.location(location, level, routes)?;
        }
        if locations.iter().any(|one| one.args.last().is_some_and(|path| path == "/")) {
            return Ok(());
        }
        let mut table = Table::new("[[site.route]]", "");
        table.list("prefix", &["/"]);
        if let Err(problem) = self.action(inner, None, level, &mut table) {
            // Files of the server, beside its locations.
            if locations.is_empty() {
                return Err(problem);
            }
            self.left.push(problem);
        }
        routes.push(table);
        Ok(())
    }
}

/// The first server of an address, or its default server, is for all hosts that no other has.
fn name_defaults(servers: &mut [Server<'_>]) {
    let default = servers.iter().position(|server| server.is_default && !server.is_redirect);
    let first = || servers.iter().position(|server| !server.is_redirect);
    if let Some(at) = default.or_else(first) {
        servers[at].hosts.push("*".to_owned());
    }
}

fn certificates(inner: &[&Directive], table: &mut Table) {
    for (name, key) in [("ssl_certificate", "cert"), ("ssl_certificate_key", "key")] {
        let files: Vec<&str> =
            inner.iter().filter(|one| one.name == name).map(|one| one.arg()).collect();
        if !files.is_empty() {
            table.list(key, &files);
        }
    }
}

fn is_known_flag(flag: &str) -> bool {
    let name = flag.split('=').next().unwrap_or_default();
    let known = [
        "ssl",
        "default_server",
        "default",
        "http2",
        "reuseport",
        "backlog",
        "deferred",
        "so_keepalive",
        "ipv6only",
        "rcvbuf",
        "sndbuf",
        "fastopen",
    ];
    known.contains(&name)
}

/// Returns an address and port as Throng reads them.
fn address(listen: &str) -> String {
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    match listen.strip_prefix("*:") {
        Some(port) => format!("0.0.0.0:{port}"),
        None if is_port(listen) => format!("0.0.0.0:{listen}"),
        None if listen.starts_with("unix:") => listen.to_owned(),
        None => {
            let after_address = listen.rsplit(']').next().unwrap_or(listen);
            let host = if listen == "localhost" { "127.0.0.1" } else { listen };
            match after_address.contains(':') {
                true => listen.replace("localhost:", "127.0.0.1:"),
                false => format!("{host}:80"),
            }
        }
    }
}

/// Returns the patterns of hosts of a name; `None` for a regular expression and the like.
fn host(name: &str) -> Option<Vec<String>> {
    if matches!(name, "_" | "" | "\"\"") {
        return Some(Vec::new());
    }
    if let Some(rest) = name.strip_prefix('.') {
        return Some(vec![rest.to_ascii_lowercase(), format!("**.{}", rest.to_ascii_lowercase())]);
    }
    let (stars, rest) = match name.strip_prefix("*.") {
        Some(rest) => ("**.", rest),
        None => ("", name),
    };
    let is_plain = rest.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    is_plain.then(|| vec![format!("{stars}{}", rest.to_ascii_lowercase())])
}
