//! The table of hosts: from the host of a request to its site.

use std::collections::HashMap;
use std::net::Ipv6Addr;

use throng_http::HostPattern;

use crate::host::{MAX_HOST, fold_host};

/// The sites of hosts, by the patterns of their lists. A name wins over `*.`, that over the longest
/// `**.`, and that over `*`, in any order of the sites.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    exact: Table,
    /// By the domain after `*.`: names with one label more.
    one_label: Table,
    /// By the domain after `**.`: names with one label more, or several.
    deep: Table,
    /// The site of all other hosts: `*`.
    others: Option<u16>,
}

type Table = HashMap<Box<[u8]>, u16>;

impl Hosts {
    /// Adds the site of a pattern.
    ///
    /// # Errors
    /// The remedy: the pattern is not valid, or another site has it.
    pub(super) fn add(&mut self, pattern: &str, site: u16) -> Result<(), HostMistake> {
        let first = if pattern == "*" {
            *self.others.get_or_insert(site)
        } else {
            let (table, name) = match pattern.strip_prefix("**.") {
                Some(domain) => (&mut self.deep, domain),
                None => match pattern.strip_prefix("*.") {
                    Some(domain) => (&mut self.one_label, domain),
                    None => (&mut self.exact, pattern),
                },
            };
            if pattern == "_" {
                let remedy = "write \"*\" for all hosts that no other site has";
                return Err(HostMistake::Invalid(remedy.to_owned()));
            }
            // A domain after stars is checked as a name with one.
            let checked = if name == pattern { name.to_owned() } else { format!("*.{name}") };
            checked.parse::<HostPattern>().map_err(HostMistake::Invalid)?;
            *table.entry(folded(name)).or_insert(site)
        };
        if first == site { Ok(()) } else { Err(HostMistake::TakenBy(first)) }
    }

    /// Returns whether a site has all hosts that no other one has.
    pub(super) fn has_others(&self) -> bool {
        self.others.is_some()
    }

    /// Returns the site of a request's host, which may have a port. Does not allocate.
    pub(super) fn find(&self, host: Option<&str>) -> Option<u16> {
        let mut buffer = [0; MAX_HOST];
        let name = host.and_then(|host| fold_host(host, &mut buffer));
        name.and_then(|name| self.find_name(name)).or(self.others)
    }

    fn find_name(&self, name: &[u8]) -> Option<u16> {
        if let Some(site) = self.exact.get(name) {
            return Some(*site);
        }
        let mut domain = after_label(name)?;
        if let Some(site) = self.one_label.get(domain) {
            return Some(*site);
        }
        if self.deep.is_empty() {
            return None;
        }
        loop {
            if let Some(site) = self.deep.get(domain) {
                return Some(*site);
            }
            domain = after_label(domain)?;
        }
    }
}

/// The reason why a pattern of hosts was not added.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HostMistake {
    /// It is not valid; with the remedy.
    Invalid(String),
    /// The site with this index has it.
    TakenBy(u16),
}

/// Returns the domain after the first label of a name, unless that is empty.
fn after_label(name: &[u8]) -> Option<&[u8]> {
    let dot = name.iter().position(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    Some(&name[dot + 1..])
}

/// Returns a checked name of a pattern in the form in which names are compared.
fn folded(name: &str) -> Box<[u8]> {
    match name.parse::<Ipv6Addr>() {
        Ok(address) => address.to_string().into_bytes().into(),
        Err(_) => name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase().into_bytes().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(patterns: &[&str]) -> Hosts {
        let mut hosts = Hosts::default();
        for (site, pattern) in (0..).zip(patterns) {
            hosts.add(pattern, site).unwrap();
        }
        hosts
    }

    #[test]
    fn the_most_specific_pattern_has_a_host_in_any_order() {
        let patterns = ["*", "**.example", "**.b.example", "*.b.example", "x.b.example"];
        for reversed in [false, true] {
            let mut order = patterns;
            if reversed {
                order.reverse();
            }
            let hosts = hosts(&order);
            for (host, pattern) in [
                ("x.b.example", "x.b.example"),
                ("y.b.example", "*.b.example"),
                ("z.y.b.example", "**.b.example"),
                ("b.example", "**.example"),
                ("a.c.example", "**.example"),
                ("example", "*"),
                ("bexample", "*"),
                ("x.b.example.evil", "*"),
                (".b.example", "*"),
                ("", "*"),
            ] {
                let found = hosts.find(Some(host)).unwrap();
                assert_eq!(order[usize::from(found)], pattern, "{host}");
            }
            assert_eq!(hosts.find(None).map(|at| order[usize::from(at)]), Some("*"));
        }
    }

    /// Also in a table of many hosts.
    #[test]
    fn case_port_and_final_dot_do_not_count() {
        let many: Vec<String> = (0..1000).map(|at| format!("Host{at}.Example.")).collect();
        let mut patterns: Vec<&str> = many.iter().map(String::as_str).collect();
        patterns.extend(["2001:DB8::1", "10.0.0.1"]);
        let hosts = hosts(&patterns);
        for (host, expected) in [
            ("host7.example", Some(7)),
            ("HOST7.EXAMPLE", Some(7)),
            ("host7.example.", Some(7)),
            ("host7.example:8080", Some(7)),
            ("Host7.Example.:443", Some(7)),
            ("host7.example:", Some(7)),
            ("host7.example..", None),
            ("%68ost7.example", None),
            ("[2001:db8::1]", Some(1000)),
            ("[2001:db8:0::0:1]:80", Some(1000)),
            ("[1.2]", None),
            ("10.0.0.1:80", Some(1001)),
        ] {
            assert_eq!(hosts.find(Some(host)), expected, "{host}");
        }
        let long = "a".repeat(300);
        assert_eq!(hosts.find(Some(&long)), None);
        assert_eq!(hosts.find(Some(&format!("{}.example", "a.".repeat(123)))), None);
    }

    #[test]
    fn a_pattern_of_two_sites_and_one_that_cannot_match_are_refused() {
        let mut hosts = hosts(&["a.example", "*.a.example", "**.a.example", "*"]);
        for (pattern, first) in
            [("A.Example.", 0), ("*.A.example", 1), ("**.a.example.", 2), ("*", 3)]
        {
            assert_eq!(hosts.add(pattern, 9), Err(HostMistake::TakenBy(first)), "{pattern}");
            assert_eq!(hosts.add(pattern, first), Ok(()), "{pattern}");
        }
        for (pattern, remedy) in [
            ("a.example:80", "write \"a.example\""),
            ("https://a.example", "write \"a.example\""),
            ("b\u{fc}cher.example", "write \"xn--bcher-kva.example\""),
            ("*.b\u{fc}cher.example", "xn--bcher-kva.example"),
            ("a.*.example", "*.example.com"),
            ("***.example", "*.example.com"),
            ("**.10.0.0.1", "no subdomains"),
            ("", "not a host's name"),
            ("_", "write \"*\""),
        ] {
            let Err(HostMistake::Invalid(error)) = hosts.add(pattern, 9) else {
                panic!("{pattern} is accepted");
            };
            assert!(error.contains(remedy), "{pattern}: {error}");
        }
    }
}
