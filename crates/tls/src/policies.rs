//! Rules for clients by the server name that they ask for: other versions, and other certificates
//! of clients, than the server's own.
//!
//! The name in the ClientHello decides, before the handshake begins. Each policy has session
//! tickets of its own, which no other one opens.

use std::collections::HashMap;

use crate::challenges::is_validation;
use crate::handshake::read_hello;
use crate::passthrough::canonical;

/// The policies of a server, by the names of clients.
pub(crate) struct Policies<P> {
    exact: HashMap<Box<str>, PolicyIndex>,
    one_label: HashMap<Box<str>, PolicyIndex>,
    deep: HashMap<Box<str>, PolicyIndex>,
    others: PolicyIndex,
    all: Vec<P>,
}

/// Creates the list without policies.
impl<P> Default for Policies<P> {
    fn default() -> Self {
        let (exact, one_label, deep) = Default::default();
        Self { exact, one_label, deep, others: None, all: Vec::new() }
    }
}

/// The index of a policy; `None`: the server's own rules.
type PolicyIndex = Option<usize>;

impl<P> Policies<P> {
    /// Returns whether all clients have the server's own rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns all policies.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &P> {
        self.all.iter()
    }

    /// Adds names whose clients have the server's own rules.
    pub(crate) fn add_own(&mut self, names: &[Box<str>]) {
        names.iter().for_each(|name| self.add_name(name, None));
    }

    /// Adds a policy.
    pub(crate) fn add(&mut self, names: &[Box<str>], policy: P) {
        let place = Some(self.all.len());
        self.all.push(policy);
        names.iter().for_each(|name| self.add_name(name, place));
    }

    fn add_name(&mut self, name: &str, place: PolicyIndex) {
        if name == "*" {
            self.others = place;
        } else if let Some(domain) = name.strip_prefix("**.") {
            self.deep.insert(domain.into(), place);
        } else if let Some(domain) = name.strip_prefix("*.") {
            self.one_label.insert(domain.into(), place);
        } else {
            self.exact.insert(name.into(), place);
        }
    }

    /// Returns the policy of a client by its whole ClientHello. A client without a name has the
    /// server's own rules, and so has an authority that validates a name: it has no certificate.
    pub(crate) fn of_hello(&self, hello: &[u8]) -> Option<&P> {
        if self.is_empty() {
            return None;
        }
        let name = read_hello(hello, |hello| match is_validation(hello) {
            true => None,
            false => hello.server_name().map(canonical),
        })?;
        self.find(&name?)
    }

    fn find(&self, name: &str) -> Option<&P> {
        self.place(name).map(|at| &self.all[at])
    }

    fn place(&self, name: &str) -> PolicyIndex {
        if let Some(place) = self.exact.get(name) {
            return *place;
        }
        let Some((_, mut domain)) = name.split_once('.') else { return self.others };
        if let Some(place) = self.one_label.get(domain) {
            return *place;
        }
        loop {
            if let Some(place) = self.deep.get(domain) {
                return *place;
            }
            match domain.split_once('.') {
                Some((_, shorter)) => domain = shorter,
                None => return self.others,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_wins_over_patterns_and_a_longer_one_over_a_shorter() {
        let mut policies = Policies::<()>::default();
        let names = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect::<Vec<_>>();
        for (place, of) in [
            (Some(0), names(&["a.example", "*.b.example"])),
            (Some(1), names(&["**.example"])),
            (None, names(&["www.b.example", "**.c.example"])),
            (Some(2), names(&["*"])),
        ] {
            of.iter().for_each(|name| policies.add_name(name, place));
        }
        for (name, expected) in [
            ("a.example", Some(0)),
            ("x.b.example", Some(0)),
            ("www.b.example", None),
            ("x.y.b.example", Some(1)),
            ("b.example", Some(1)),
            ("x.y.c.example", None),
            ("example", Some(2)),
            ("other", Some(2)),
            ("x.other", Some(2)),
        ] {
            assert_eq!(policies.place(name), expected, "{name}");
        }
    }
}
