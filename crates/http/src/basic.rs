//! Basic authentication: RFC 7617.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq as _;

/// The user and the password of `Authorization: Basic`, from
/// [`Request::basic`](crate::Request::basic).
#[derive(Clone)]
pub struct BasicCredentials {
    /// `user:password`.
    pair: String,
    /// The place of the first colon.
    colon: usize,
}

impl BasicCredentials {
    /// Reads the value of an `Authorization` header. A user has no colon, and neither part a
    /// control character ([RFC 7617 section 2](https://www.rfc-editor.org/rfc/rfc7617#section-2)).
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let (scheme, encoded) = value.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let pair = STANDARD.decode(encoded.trim_matches(' ')).ok()?;
        let pair = String::from_utf8(pair).ok()?;
        let colon = pair.find(':')?;
        (!pair.contains(char::is_control)).then_some(Self { pair, colon })
    }

    /// Returns the user; it may be empty.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.pair[..self.colon]
    }

    /// Returns the password; it may be empty.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.pair[self.colon + 1..]
    }

    /// Returns whether user and password equal these. The running time depends on the lengths, and
    /// reveals whether the user or the password is equal, but nothing about the content.
    #[must_use]
    pub fn matches(&self, user: &str, password: &str) -> bool {
        let same_user = self.user().as_bytes().ct_eq(user.as_bytes());
        let same_password = self.password().as_bytes().ct_eq(password.as_bytes());
        (same_user & same_password).into()
    }
}

/// Omits the password, which must not appear in a log.
impl fmt::Debug for BasicCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicCredentials").field("user", &self.user()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7617_2_credentials_are_decoded() {
        let long = format!("Basic {}", STANDARD.encode("a:b\n"));
        for (value, expected) in [
            // The RFC's own examples, the second in UTF-8 (section 2.1).
            ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", Some(("Aladdin", "open sesame"))),
            ("Basic dGVzdDoxMjPCow==", Some(("test", "123£"))),
            ("bAsIc  QTpi ", Some(("A", "b"))),
            ("Basic Og==", Some(("", ""))),
            // A colon belongs to the password.
            ("Basic YTpiOmM=", Some(("a", "b:c"))),
            ("Basic YWI=", None),
            ("Basic QTpi=", None),
            ("Basic /w==", None),
            ("Basic", None),
            ("Basic ", None),
            ("Bearer QTpi", None),
            (&long, None),
        ] {
            let read = BasicCredentials::parse(value);
            let read = read.as_ref().map(|read| (read.user(), read.password()));
            assert_eq!(read, expected, "{value:?}");
        }
    }

    #[test]
    fn both_parts_must_match_and_the_password_is_not_shown() {
        let given = BasicCredentials::parse("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").unwrap();
        assert!(given.matches("Aladdin", "open sesame"));
        for (user, password) in [
            ("Aladdin", "open sesamE"),
            ("Aladdin", "open sesame "),
            ("Aladdin", ""),
            ("aladdin", "open sesame"),
            ("", ":open sesame"),
        ] {
            assert!(!given.matches(user, password), "{user:?} {password:?}");
        }
        assert_eq!(format!("{given:?}"), "BasicCredentials { user: \"Aladdin\", .. }");
    }
}
