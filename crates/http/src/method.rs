//! Methods, and sets of them for `Allow`.
//! [RFC 9110 section 9](https://www.rfc-editor.org/rfc/rfc9110#section-9).

use std::fmt;

/// A method of a route. Methods are case-sensitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// GET; also answers HEAD, unless HEAD has a route of its own.
    Get,
    /// HEAD: GET without the body.
    Head,
    /// POST, [RFC 9110 section 9.3.3](https://www.rfc-editor.org/rfc/rfc9110#section-9.3.3).
    Post,
    /// PUT, [RFC 9110 section 9.3.4](https://www.rfc-editor.org/rfc/rfc9110#section-9.3.4).
    Put,
    /// DELETE, [RFC 9110 section 9.3.5](https://www.rfc-editor.org/rfc/rfc9110#section-9.3.5).
    Delete,
    /// PATCH, RFC 5789.
    Patch,
    /// OPTIONS; answered with `Allow` where it has no route.
    Options,
    /// TRACE, [RFC 9110 section 9.3.8](https://www.rfc-editor.org/rfc/rfc9110#section-9.3.8).
    Trace,
}

impl Method {
    /// In the order of `Allow`.
    const ALL: [Self; 8] = [
        Self::Get,
        Self::Head,
        Self::Post,
        Self::Put,
        Self::Delete,
        Self::Patch,
        Self::Options,
        Self::Trace,
    ];

    /// Returns the method of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        // Spelled out: it runs for each request, and so it compiles to a jump by length.
        Some(match name {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "DELETE" => Self::Delete,
            "PATCH" => Self::Patch,
            "OPTIONS" => Self::Options,
            "TRACE" => Self::Trace,
            _ => return None,
        })
    }

    /// Returns its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Patch => "PATCH",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// For `request.method() == Method::Get`: a request may have a method that is not among these.
impl PartialEq<Method> for &str {
    fn eq(&self, method: &Method) -> bool {
        *self == method.as_str()
    }
}

impl PartialEq<&str> for Method {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

/// The set of methods of a path, for `Allow`. Its `Display` is the header's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow(u8);

impl Allow {
    /// No methods.
    pub const NONE: Self = Self(0);
    /// Each method that [`Method`] knows.
    pub const ALL: Self = Self(u8::MAX);

    /// Adds `method`. GET adds HEAD and any method adds OPTIONS, which are answered without a
    /// route.
    #[must_use]
    pub const fn with(self, method: Method) -> Self {
        let implied = match method {
            Method::Get => 1 << Method::Head as u8,
            _ => 0,
        };
        Self(self.0 | 1 << method as u8 | implied | 1 << Method::Options as u8)
    }

    /// Adds `method` alone: a GET that does not answer HEAD.
    #[must_use]
    pub(crate) const fn with_only(self, method: Method) -> Self {
        Self(self.0 | 1 << method as u8 | 1 << Method::Options as u8)
    }

    /// Returns the union.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the set is empty: the path does not exist.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether `method` is in the set.
    #[must_use]
    pub const fn contains(self, method: Method) -> bool {
        self.0 & (1 << method as u8) != 0
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for method in Method::ALL.into_iter().filter(|method| self.contains(*method)) {
            write!(f, "{separator}{method}")?;
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_case_sensitive_and_round_trip() {
        for method in Method::ALL {
            assert_eq!(Method::parse(method.as_str()), Some(method));
        }
        assert_eq!(Method::parse("get"), None);
        assert_eq!(Method::parse("BREW"), None);
    }

    #[test]
    fn allow_lists_the_supported_methods() {
        assert_eq!(Allow::NONE.with(Method::Get).to_string(), "GET, HEAD, OPTIONS");
        assert_eq!(Allow::NONE.with(Method::Post).to_string(), "POST, OPTIONS");
        assert_eq!(Allow::NONE.to_string(), "");
    }
}
