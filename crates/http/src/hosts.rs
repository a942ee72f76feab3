//! Host names in lists: of origins, and of hosts that requests may name.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A host name; or `*.` and a domain, which matches all of its subdomains but not the domain
/// itself. Case does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern(Box<str>);

impl HostPattern {
    /// Returns whether the pattern matches this host name, given without its port.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.0, name)
    }
}

/// Returns whether a checked pattern matches a name.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        // The domain keeps its dot, and a label must precede it.
        Some(domain) => name.len().checked_sub(domain.len()).is_some_and(|label| {
            let (label, rest) = name.as_bytes().split_at(label);
            rest.eq_ignore_ascii_case(domain.as_bytes()) && label.iter().any(|it| *it != b'.')
        }),
        None => pattern.eq_ignore_ascii_case(name),
    }
}

/// The error is the remedy.
impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((scheme, rest)) = text.split_once("://") {
            let name = rest.split(['/', ':']).next().unwrap_or_default();
            return Err(format!("a host has no scheme such as {scheme}://: write {name:?}"));
        }
        if let Some(address) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
            let address = address.0;
            return Err(format!(
                "write the address without brackets and port, {address:?}, or leave it out: \
                 addresses are hosts anyway"
            ));
        }
        if text.parse::<Ipv6Addr>().is_err() {
            if let Some((name, _)) = text.split_once(':') {
                return Err(format!("the port does not count: write {name:?}"));
            }
            check(text)?;
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks that clients can send a name, or a name that `*.` and a domain match. The error is the
/// remedy.
pub(crate) fn check(text: &str) -> Result<(), String> {
    if text.contains(|c: char| c.is_whitespace() || matches!(c, ';' | ',')) {
        return Err("several are separated by commas, or are a list".to_owned());
    }
    if let Some((name, _)) = text.split_once(['/', '?', '#']) {
        return Err(format!("a path does not count: write {name:?}"));
    }
    if !text.is_ascii() {
        return Err(match ascii(text) {
            Some(ascii) => format!("clients send it in ASCII: write {ascii:?}"),
            None => {
                "clients send it in ASCII: write each label as xn-- and its Punycode".to_owned()
            }
        });
    }
    if let Some(domain) = text.strip_prefix('.') {
        return Err(format!("write \"*.{domain}\" for the subdomains, and {domain:?} for itself"));
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    if name.contains('*') {
        return Err("`*` stands for all labels before a domain, as in \"*.example.com\"".to_owned());
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    // Drops the final dot of a complete name.
    let labels = name.strip_suffix('.').unwrap_or(name);
    if !labels.split('.').all(is_label) {
        return Err("it is not a host's name: write one such as \"app.example.com\"".to_owned());
    }
    // Browsers convert numeric hosts to this form.
    let is_number = labels.rsplit('.').next().is_some_and(|label| label.parse::<u32>().is_ok());
    if is_number && labels.parse::<Ipv4Addr>().is_err() {
        return Err("it is no IPv4 address: write its four numbers, as in \"10.0.0.1\"".to_owned());
    }
    if is_number && name != text {
        return Err(format!("an address has no subdomains: write {labels:?}"));
    }
    Ok(())
}

/// Returns a name with labels in other scripts in its DNS form (RFC 5891), in lower case.
pub(crate) fn ascii(name: &str) -> Option<String> {
    let label = |label: &str| match label.is_ascii() {
        true => Some(label.to_owned()),
        false => punycode(&label.to_lowercase()).map(|label| format!("xn--{label}")),
    };
    Some(name.split('.').map(label).collect::<Option<Vec<_>>>()?.join("."))
}

/// Encodes a label (RFC 3492 section 6.3). Written here because only one error message needs it: a
/// crate for international names would bring tables for all of Unicode.
fn punycode(label: &str) -> Option<String> {
    const BASE: u32 = 36;
    let mut encoded: String = label.chars().filter(char::is_ascii).collect();
    let basic = encoded.len() as u32;
    let (mut handled, mut n, mut delta, mut bias) = (basic, 128_u32, 0_u32, 72);
    if basic > 0 {
        encoded.push('-');
    }
    let length = label.chars().count() as u32;
    while handled < length {
        let next = label.chars().map(u32::from).filter(|c| *c >= n).min()?;
        delta = delta.checked_add((next - n).checked_mul(handled + 1)?)?;
        n = next;
        for c in label.chars().map(u32::from) {
            if c < n {
                delta = delta.checked_add(1)?;
            }
            if c != n {
                continue;
            }
            let mut rest = delta;
            for k in (BASE..).step_by(BASE as usize) {
                let least = k.saturating_sub(bias).clamp(1, 26);
                if rest < least {
                    break;
                }
                encoded.push(digit(least + (rest - least) % (BASE - least)));
                rest = (rest - least) / (BASE - least);
            }
            encoded.push(digit(rest));
            let first = if handled == basic { delta / 700 } else { delta / 2 };
            let mut scaled = first + first / (handled + 1);
            bias = 0;
            while scaled > 455 {
                scaled /= BASE - 1;
                bias += BASE;
            }
            bias += BASE * scaled / (scaled + 38);
            delta = 0;
            handled += 1;
        }
        delta += 1;
        n += 1;
    }
    Some(encoded)
}

fn digit(value: u32) -> char {
    char::from(b"abcdefghijklmnopqrstuvwxyz0123456789"[value as usize % 36])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_all_subdomains_of_one() {
        for (pattern, name, expected) in [
            ("app.example", "app.example", true),
            ("app.example", "APP.Example", true),
            ("app.example", "x.app.example", false),
            ("*.example.com", "a.example.com", true),
            ("*.Example.com", "b.a.EXAMPLE.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("*.example.com", "evilexample.com", false),
            ("*.example.com", "a.example.com.evil", false),
            ("::1", "::1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("my_service", "my_service", true),
        ] {
            let parsed: HostPattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(name), expected, "{pattern} and {name}");
        }
    }

    #[test]
    fn entries_that_can_never_match_are_refused_with_the_form_that_does() {
        for (text, remedy) in [
            ("app.example:443", "write \"app.example\""),
            (".example.com", "write \"*.example.com\""),
            ("https://app.example", "write \"app.example\""),
            ("https://app.example:8/x", "write \"app.example\""),
            ("[::1]", "\"::1\""),
            ("[::1]:80", "\"::1\""),
            ("a.example b.example", "commas"),
            ("a.example;b.example", "commas"),
            ("app.example/path", "write \"app.example\""),
            ("a*.example", "*.example.com"),
            ("a.*.example", "*.example.com"),
            ("b\u{fc}cher.example", "write \"xn--bcher-kva.example\""),
            ("", "not a host's name"),
            ("a..b", "not a host's name"),
            ("127.1", "four numbers"),
        ] {
            let error = text.parse::<HostPattern>().unwrap_err();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }

    /// Names from RFC 3492 section 7.1, and some registered names.
    #[test]
    fn other_scripts_have_a_form_in_ascii() {
        for (name, expected) in [
            ("M\u{fc}nchen.de", "xn--mnchen-3ya.de"),
            (
                "\u{4ed6}\u{4eec}\u{4e3a}\u{4ec0}\u{4e48}\u{4e0d}\u{8bf4}\u{4e2d}\u{6587}",
                "xn--ihqwcrb4cv8a8dqg056pqjye",
            ),
            ("\u{43f}\u{440}\u{438}\u{43c}\u{435}\u{440}.\u{440}\u{444}", "xn--e1afmkfd.xn--p1ai"),
            ("fa\u{df}.example", "xn--fa-hia.example"),
            ("\u{4f8b}\u{3048}.jp", "xn--r8jz45g.jp"),
        ] {
            assert_eq!(ascii(name).as_deref(), Some(expected), "{name}");
        }
    }
}
