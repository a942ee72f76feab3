//! Translates nginx's `http`: upstreams to pools, servers to sites, locations to routes.

mod level;
mod limits;
mod locations;
mod pools;
mod servers;

use std::collections::{BTreeMap, BTreeSet};

use self::level::Level;
use self::limits::Zones;
use self::pools::Pools;
use super::output::Table;
use super::parse::Directive;
use super::value::duration;
use super::{Imported, Left};

/// A translation under way.
struct Translation {
    left: Vec<Left>,
    pools: Pools,
    zones: Zones,
    sites: Vec<Site>,
}

/// A site with its routes.
struct Site {
    table: Table,
    routes: Vec<Table>,
}

/// Translates a tree; `left` are parts that were not read.
pub(super) fn translate(tree: &[Directive], left: Vec<Left>) -> Imported {
    let mut translation =
        Translation { left, pools: Pools::default(), zones: Zones::default(), sites: Vec::new() };
    // A file of `conf.d` has the directives of `http` alone.
    let http: Vec<&Directive> = match tree.iter().any(|directive| directive.name == "http") {
        true => {
            translation.outside(tree);
            let blocks = tree.iter().filter(|directive| directive.name == "http");
            blocks.filter_map(|http| http.block.as_deref()).flatten().collect()
        }
        false => tree.iter().collect(),
    };
    let top = translation.http(&http);
    let toml = translation.write(&top);
    // What all servers inherit is named once.
    let mut named: Vec<Left> = Vec::new();
    for left in translation.left {
        if !named.contains(&left) {
            named.push(left);
        }
    }
    Imported { toml, left: named }
}

impl Translation {
    /// Names what is outside `http` and has an effect on traffic.
    fn outside(&mut self, tree: &[Directive]) {
        for directive in tree {
            if matches!(directive.name.as_str(), "stream" | "mail" | "include") {
                self.left.push(directive.left("only `http` is translated"));
            }
        }
    }

    /// Translates the content of `http`, and returns the keys of the whole file.
    fn http(&mut self, http: &[&Directive]) -> Table {
        let maps = upgrade_maps(http);
        for directive in http {
            match directive.name.as_str() {
                "upstream" => self.pools.upstream(directive, &mut self.left),
                "limit_req_zone" => self.zones.declare(directive),
                "map" if !maps.contains(directive.args.get(1).map_or("", String::as_str)) => {
                    self.left.push(directive.left("matchers of routes do what a map is for"));
                }
                _ => {}
            }
        }
        let mut level = Level::of_nginx();
        level.upgrade_variables = maps;
        let own = http.iter().filter(|directive| !is_of_http(&directive.name)).copied();
        level.read(own, &self.zones, &mut self.left);
        let servers = http.iter().filter(|directive| directive.name == "server");
        let mut top = self.servers(&servers.copied().collect::<Vec<_>>(), &level);
        for directive in http {
            let times = [
                ("client_header_timeout", "timeouts.head"),
                ("keepalive_timeout", "timeouts.keep_alive"),
            ];
            let key = times.iter().find(|(name, _)| *name == directive.name);
            if let (Some((_, key)), Some(time)) = (key, duration(directive.arg())) {
                top.text(*key, &time);
            }
        }
        top
    }

    fn write(&mut self, top: &Table) -> String {
        let mut out = String::from(
            "# Translated from nginx. Here a prefix matches whole segments: /api, not /apix.\n",
        );
        top.write(&mut out);
        self.pools.tables().iter().for_each(|table| table.write(&mut out));
        self.zones.tables().iter().for_each(|table| table.write(&mut out));
        for site in &self.sites {
            site.table.write(&mut out);
            site.routes.iter().for_each(|table| table.write(&mut out));
        }
        out
    }
}

/// Returns whether a directive of `http` is read elsewhere.
fn is_of_http(name: &str) -> bool {
    ["server", "upstream", "map", "limit_req_zone", "client_header_timeout", "keepalive_timeout"]
        .contains(&name)
}

/// Returns the variables that only carry the Upgrade header on, which is built in.
fn upgrade_maps(http: &[&Directive]) -> BTreeSet<String> {
    let maps = http.iter().filter(|directive| directive.name == "map");
    let of_upgrade = maps.filter(|map| map.arg() == "$http_upgrade");
    of_upgrade.filter_map(|map| map.args.get(1).cloned()).collect()
}

/// Names that are in use.
#[derive(Default)]
struct Names(BTreeMap<String, usize>);

impl Names {
    /// Returns a new name that is like this one.
    fn unused(&mut self, like: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let name: String = like.chars().map(plain).take(48).collect();
        let name = if name.is_empty() { "site".to_owned() } else { name };
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        match *count {
            1 => name,
            more => self.unused(&format!("{name}-{more}")),
        }
    }
}
