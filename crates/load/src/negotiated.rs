//! The negotiated TLS of a run's connections.

use std::cmp::Reverse;

use serde::Serialize;
use throng_io::TlsInfo;

use crate::merge::Merge;
use crate::units::grouped;

/// A combination of version, cipher suite and group, with the number of connections that negotiated
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TlsReport {
    /// `TLS 1.2` or `TLS 1.3`.
    pub version: &'static str,
    /// The registered name of the cipher suite.
    pub cipher_suite: &'static str,
    /// The registered name of the key exchange's group; `null` if sessions were resumed without a
    /// key exchange, as in TLS 1.2.
    pub group: Option<&'static str>,
    /// Connections whose handshake ended with this combination.
    pub connections: u64,
    /// Handshakes among them that resumed an earlier session.
    pub resumed: u64,
}

impl TlsReport {
    fn combination(&self) -> (&'static str, &'static str, Option<&'static str>) {
        (self.version, self.cipher_suite, self.group)
    }

    fn words(&self) -> String {
        let Self { version, cipher_suite, .. } = self;
        let group = self.group.map_or(String::new(), |group| format!(", {group}"));
        let (all, resumed) = (grouped(self.connections), grouped(self.resumed));
        let noun = if self.connections == 1 { "handshake" } else { "handshakes" };
        format!("{version}, {cipher_suite}{group} ({all} {noun}, {resumed} resumed)")
    }
}

/// All combinations: few, since this side offers few.
#[derive(Clone, Debug, Default)]
pub struct Negotiated(Vec<TlsReport>);

impl From<Vec<TlsReport>> for Negotiated {
    fn from(combinations: Vec<TlsReport>) -> Self {
        Self(combinations)
    }
}

impl Negotiated {
    /// Counts a connection.
    pub(crate) fn add(&mut self, info: &TlsInfo) {
        const OTHER: &str = "other";
        self.count(TlsReport {
            version: info.version_name().unwrap_or(OTHER),
            cipher_suite: info.cipher_suite_name().unwrap_or(OTHER),
            group: info.group.map(|_| info.group_name().unwrap_or(OTHER)),
            connections: 1,
            resumed: u64::from(info.is_resumed),
        });
    }

    fn count(&mut self, more: TlsReport) {
        match self.0.iter_mut().find(|it| it.combination() == more.combination()) {
            Some(counted) => {
                counted.connections += more.connections;
                counted.resumed += more.resumed;
            }
            None => self.0.push(more),
        }
    }

    /// Returns the combinations, the most frequent first. Equally frequent ones are sorted by name,
    /// so that the result does not depend on the order in which threads end.
    pub(crate) fn into_report(mut self) -> Vec<TlsReport> {
        self.0.sort_by_key(|it| (Reverse(it.connections), it.combination()));
        self.0
    }
}

impl Merge for Negotiated {
    fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|more| self.count(more));
    }
}

/// Returns the line about TLS, if the run used TLS.
pub(crate) fn tls_remark(tls: &[TlsReport]) -> Option<(&'static str, String)> {
    let words: Vec<String> = tls.iter().map(TlsReport::words).collect();
    (!words.is_empty()).then(|| ("TLS", words.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_counted_over_all_threads() {
        let full = TlsInfo {
            version: 0x304,
            cipher_suite: 0x1302,
            group: Some(0x11ec),
            ..TlsInfo::default()
        };
        let resumed = TlsInfo { is_resumed: true, ..full.clone() };
        let old = TlsInfo { version: 0x303, cipher_suite: 0xc02b, ..TlsInfo::default() };
        let mut one = Negotiated::default();
        let mut other = Negotiated::default();
        [&old, &full].into_iter().for_each(|info| one.add(info));
        [&resumed, &resumed].into_iter().for_each(|info| other.add(info));
        one.merge(other);
        let report = one.into_report();
        let (_, text) = tls_remark(&report).unwrap();
        assert_eq!(
            text,
            "TLS 1.3, TLS_AES_256_GCM_SHA384, X25519MLKEM768 (3 handshakes, 2 resumed); \
             TLS 1.2, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 (1 handshake, 0 resumed)"
        );
        assert_eq!(tls_remark(&[]), None);
    }

    #[test]
    fn combinations_that_are_as_frequent_have_one_order() {
        let new = TlsInfo { version: 0x304, cipher_suite: 0x1301, ..TlsInfo::default() };
        let other = TlsInfo { cipher_suite: 0x1302, ..new.clone() };
        let old = TlsInfo { version: 0x303, cipher_suite: 0xc02b, ..TlsInfo::default() };
        let report = |order: [&TlsInfo; 3]| {
            let mut counted = Negotiated::default();
            order.into_iter().for_each(|info| counted.add(info));
            counted.into_report()
        };
        let first = report([&new, &other, &old]);
        assert_eq!(first[0].version, "TLS 1.2");
        assert_eq!(report([&other, &old, &new]), first);
    }
}
