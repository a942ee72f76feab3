//! Keys that a route asks its clients for, by a file of their hashes.

use std::path::Path;
use std::sync::Arc;

use throng_http::{BasicCredentials, Response, Status};
use throng_proto::http1::Request;
use throng_token::ApiKeys;

/// Keys of clients, from one or several files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets(Vec<Arc<ApiKeys>>);

impl Secrets {
    /// Reads lines such as `NAME:HASH`, with the SHA-256 of a key.
    ///
    /// # Errors
    /// The remedy: the file cannot be read, other users of the machine can read it, or a line is
    /// not valid.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        if is_public(path) {
            return Err(format!(
                "{shown} can be read by every user of this machine: chmod o-r {shown}"
            ));
        }
        let text = throng_io::file::read_text(path).map_err(|error| format!("{shown} {error}"))?;
        let keys = ApiKeys::parse(&text).map_err(|why| format!("{shown}: {why}"))?;
        Ok(Self(vec![Arc::new(keys)]))
    }

    /// Creates a key of 128 random bits. Returns it with its line for a file.
    ///
    /// # Errors
    /// The name is not valid, or the system has no random numbers.
    pub fn create(name: &str) -> Result<(String, String), String> {
        ApiKeys::create(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns them with the keys of the level above.
    pub(crate) fn within(&self, outer: &Self) -> Self {
        Self([&outer.0[..], &self.0].concat())
    }

    /// Returns whether a request has one of the keys: as a Bearer token, or as the password of its
    /// name.
    pub(super) fn admit(&self, request: &Request<'_>) -> bool {
        let mut values = request.lines().all_bytes("Authorization");
        // Backends differ in which of several they take.
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let Ok(value) = std::str::from_utf8(value) else { return false };
        let name_of = |key: &str| self.0.iter().find_map(|keys| keys.name_of(key.as_bytes()));
        if let Some(basic) = BasicCredentials::parse(value) {
            return name_of(basic.password()).is_some_and(|name| name == basic.user());
        }
        let bearer = value.split_once(' ').filter(|(it, _)| it.eq_ignore_ascii_case("bearer"));
        bearer.is_some_and(|(_, key)| name_of(key.trim_matches(' ')).is_some())
    }
}

/// Returns the answer to a request without a key (RFC 9110 section 15.5.2).
pub(crate) fn ask_for_key() -> Response {
    let new = || Response::error(Status::UNAUTHORIZED, "this needs a key");
    // The headers are valid.
    let asked = new().header("WWW-Authenticate", "Basic realm=\"throng\", charset=\"UTF-8\"");
    let asked = asked.and_then(|it| it.header("WWW-Authenticate", "Bearer realm=\"throng\""));
    asked.unwrap_or_else(|_| new())
}

#[cfg(unix)]
fn is_public(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn is_public(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::tests::with_request;

    /// SHA-256 of `secret`.
    const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    #[test]
    fn a_key_comes_as_a_bearer_token_or_as_the_password_of_its_name() {
        let keys = ApiKeys::parse(&format!("ci:{HASH}\n")).unwrap();
        let secrets = Secrets(vec![Arc::new(keys)]);
        for (lines, expected) in [
            ("", false),
            ("Authorization: Bearer secret", true),
            ("Authorization: bearer  secret", true),
            ("Authorization: Bearer secre", false),
            ("Authorization: Bearer", false),
            ("Authorization: secret", false),
            // ci:secret, ci:wrong, cj:secret
            ("Authorization: Basic Y2k6c2VjcmV0", true),
            ("Authorization: Basic Y2k6d3Jvbmc=", false),
            ("Authorization: Basic Y2o6c2VjcmV0", false),
            ("Authorization: Basic Y2k6c2VjcmV0!", false),
            ("Authorization: Bearer secret\nAuthorization: Bearer secret", false),
        ] {
            let head = format!("GET / HTTP/1.1\nHost: a\n{lines}");
            with_request(head.trim_end(), |request| {
                assert_eq!(secrets.admit(request), expected, "{lines}");
            });
        }
    }
}
