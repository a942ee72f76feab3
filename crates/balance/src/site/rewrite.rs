//! Changes of the path of requests for backends.

use throng_http::percent;

use super::template::Template;
use super::variables::{Form, Variables};

/// A change of the path, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathChange {
    /// This beginning, of whole segments, is taken off; backends get it in X-Forwarded-Prefix.
    Strip(String),
    /// The path is this text with variables of the path. The query stays, unless the text has one.
    Rewrite(String),
}

/// A change of the path in the form in which it is applied.
#[derive(Debug)]
pub(super) enum Rewrite {
    Strip(Box<str>),
    To { target: Template, has_query: bool },
}

impl PathChange {
    /// Returns the field, the value and the remedy of a mistake. `patterns`: the paths and prefixes
    /// of the route.
    pub(super) fn mistake(&self, patterns: &[String]) -> Option<(String, String, String)> {
        let (field, value, remedy) = match self {
            Self::Strip(prefix) => ("strip_prefix", prefix, strip_mistake(prefix, patterns)?),
            Self::Rewrite(to) => ("rewrite", to, rewrite_mistake(to)?),
        };
        Some((field.to_owned(), format!("{value:?}"), remedy))
    }

    pub(super) fn depends_on_route(&self) -> bool {
        match self {
            Self::Strip(_) => false,
            Self::Rewrite(to) => to.parse::<Template>().is_ok_and(|to| to.depends_on_route()),
        }
    }
}

fn strip_mistake(prefix: &str, patterns: &[String]) -> Option<String> {
    let whole = prefix.trim_end_matches('/');
    if whole.is_empty() || !prefix.starts_with('/') || whole != prefix {
        return Some("write the beginning of a path such as \"/api\"".to_owned());
    }
    if prefix.contains(['{', '}', '?', '#', '%', ';', '\\']) || has_dots(prefix) {
        return Some(
            "write whole segments as they are: for parts of the path there is rewrite".to_owned(),
        );
    }
    let other = patterns.iter().find(|pattern| rest_after(prefix, pattern).is_none())?;
    Some(format!("the route is also for {other:?}, which does not begin with it"))
}

fn rewrite_mistake(to: &str) -> Option<String> {
    let template = match to.parse::<Template>() {
        Ok(template) => template,
        Err(remedy) => return Some(remedy),
    };
    let starts = ["/", "${path}", "${uri}"];
    let (path, query) = to.split_once('?').map_or((to, None), |(path, query)| (path, Some(query)));
    Some(match () {
        () if !starts.iter().any(|start| to.starts_with(start)) => {
            "begin with /, for example \"/v2/${param.rest}\"".to_owned()
        }
        () if !to.bytes().all(|it| it.is_ascii_graphic() && it != b'#' && it != b'\\') => {
            "a path has only printable ASCII: encode other characters with %".to_owned()
        }
        () if !template.is_of_target() => {
            "it has only ${path}, ${query}, ${uri} and ${param.NAME}: clients choose the others \
             apart from the path that was looked up"
                .to_owned()
        }
        () if path.contains("${query}") => "${query} is behind a question mark".to_owned(),
        () if path.contains("${uri}") && (query.is_some() || !path.ends_with("${uri}")) => {
            "${uri} has the query: write it last, or ${path}".to_owned()
        }
        () if has_dots(path) => "no segment is made of dots".to_owned(),
        () => return None,
    })
}

/// Returns whether a segment of a text has nothing but dots, perhaps with variables.
fn has_dots(path: &str) -> bool {
    let is_dots = |segment: &str| {
        let mut rest = segment.to_owned();
        while let Some((start, end)) = rest.find("${").zip(rest.find('}')) {
            if end < start {
                break;
            }
            rest.replace_range(start..=end, "");
        }
        !rest.is_empty() && rest.bytes().all(|byte| byte == b'.')
    };
    path.split('/').any(is_dots)
}

impl Rewrite {
    /// Creates a change without mistakes.
    ///
    /// # Errors
    /// The remedy: a pattern of the route does not have a part of the path.
    pub(super) fn new(
        change: &PathChange,
        names: &super::RuleNames,
        patterns: &[String],
    ) -> Result<Self, (String, String, String)> {
        match change {
            PathChange::Strip(prefix) => Ok(Self::Strip(prefix.as_str().into())),
            PathChange::Rewrite(to) => {
                let mut target: Template = to.parse().unwrap_or_default();
                let mistake = |remedy| ("rewrite".to_owned(), format!("{to:?}"), remedy);
                target.bind(names, patterns).map_err(mistake)?;
                let has_query = to.contains('?') || to.contains("${uri}");
                Ok(Self::To { target, has_query })
            }
        }
    }

    /// Returns the beginning that is taken off the path of a request.
    pub(super) fn prefix(&self, of: &Variables<'_>) -> Option<&str> {
        match self {
            Self::Strip(prefix) => rest_after(prefix, of.request.path()).map(|_| &**prefix),
            Self::To { .. } => None,
        }
    }

    /// Returns whether it changes the path of a request.
    pub(super) fn applies(&self, of: &Variables<'_>) -> bool {
        matches!(self, Self::To { .. }) || self.prefix(of).is_some()
    }

    /// Appends the target of a request that it applies to.
    pub(super) fn write(&self, of: &Variables<'_>, out: &mut Vec<u8>) {
        let path = of.request.path();
        let (start, has_query) = (out.len(), matches!(self, Self::To { has_query: true, .. }));
        out.push(b'/');
        match self {
            Self::Strip(prefix) => {
                let rest = rest_after(prefix, path).unwrap_or(path);
                out.extend_from_slice(rest.as_bytes());
            }
            Self::To { target, .. } => target.write(of, Form::Url, out),
        }
        // Two slashes at the beginning would look like a host.
        let slashes = out[start..].iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
        out.drain(start + 1..start + slashes);
        if !has_query && let Some(query) = of.request.query() {
            out.push(b'?');
            out.extend_from_slice(query.as_bytes());
        }
    }
}

/// Returns what follows a prefix of whole segments, as it was sent; `None` if a path does not begin
/// with it.
fn rest_after<'p>(prefix: &str, path: &'p str) -> Option<&'p str> {
    let mut rest = path.strip_prefix('/')?;
    let mut segments = prefix.split('/').skip(1).peekable();
    while let Some(wanted) = segments.next() {
        let end = rest.find('/').unwrap_or(rest.len());
        let (segment, after) = rest.split_at(end);
        if segment != wanted && !wanted.bytes().eq(percent::decoded_bytes(segment)) {
            return None;
        }
        rest = match after.strip_prefix('/') {
            None if segments.peek().is_some() => return None,
            None => "",
            Some(after) => after,
        };
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::RuleNames;
    use crate::site::tests::{get, variables, with_request};

    fn target(change: &PathChange, patterns: &[&str], target: &str) -> (String, Option<String>) {
        let patterns: Vec<_> = patterns.iter().map(|it| (*it).to_owned()).collect();
        assert_eq!(change.mistake(&patterns), None, "{change:?}");
        let rewrite = Rewrite::new(change, &RuleNames::default(), &patterns).unwrap();
        with_request(&get("a", target), |request| {
            let mut out = Vec::new();
            rewrite.write(&variables(request), &mut out);
            let prefix = rewrite.prefix(&variables(request)).map(str::to_owned);
            (String::from_utf8(out).unwrap(), prefix)
        })
    }

    #[test]
    fn a_prefix_is_taken_off_by_whole_segments() {
        let strip = PathChange::Strip("/api/v1".to_owned());
        for (path, expected) in [
            ("/api/v1", "/"),
            ("/api/v1?q", "/?q"),
            ("/api/v1/", "/"),
            ("/api/v1/a%2Fb/c?q=1", "/a%2Fb/c?q=1"),
            // Letters may be encoded, and an empty segment must not begin the path.
            ("/%61pi/v1/x", "/x"),
            ("/api/v1//evil/", "/evil/"),
            ("/api/v1/\\evil", "/evil"),
        ] {
            let prefix = Some("/api/v1".to_owned());
            assert_eq!(target(&strip, &["/api/v1"], path), (expected.to_owned(), prefix));
        }
        for path in ["/api/v12/x", "/api", "/other?q", "//api/v1/x"] {
            with_request(&get("a", path), |request| {
                let rewrite = Rewrite::new(&strip, &RuleNames::default(), &[]).unwrap();
                assert!(!rewrite.applies(&variables(request)), "{path}");
            });
        }
    }

    #[test]
    fn a_rewritten_path_has_parts_of_the_path_and_keeps_the_query() {
        for (to, path, expected) in [
            ("/v2/${param.rest}", "/v1/a/b%20c?q=1", "/v2/a/b%20c?q=1"),
            ("/v2/${param.rest}", "/v1/", "/v2/"),
            ("/v2${path}", "/v1/x", "/v2/v1/x"),
            ("/v2${uri}", "/v1/x?y", "/v2/v1/x?y"),
            ("/v2?from=${path}&${query}", "/v1/x?y=1", "/v2?from=/v1/x&y=1"),
            ("/${path}", "/v1/x", "/v1/x"),
            ("/${param.rest}", "/v1//evil", "/evil"),
            ("/fixed", "/v1/x?y", "/fixed?y"),
        ] {
            let change = PathChange::Rewrite(to.to_owned());
            assert_eq!(target(&change, &["/v1/{*rest}"], path).0, expected, "{to} {path}");
        }
    }

    #[test]
    fn changes_that_clients_could_steer_are_refused() {
        for (to, remedy) in [
            ("v2", "begin with /"),
            ("", "begin with /"),
            ("/a b", "printable ASCII"),
            ("/a#b", "printable ASCII"),
            ("/${header.X}", "it has only"),
            ("/${query.x}", "it has only"),
            ("/${host}", "it has only"),
            ("/x/${query}", "behind a question mark"),
            ("/${uri}/x", "write it last"),
            ("/${uri}?x", "write it last"),
            ("/../x", "made of dots"),
            ("/.${param.a}/x", "made of dots"),
            ("/${nope}", "is not a variable"),
        ] {
            let (field, _, found) = PathChange::Rewrite(to.to_owned()).mistake(&[]).unwrap();
            assert!(field == "rewrite" && found.contains(remedy), "{to}: {found}");
        }
        let patterns = ["/api/x".to_owned(), "/apix".to_owned()];
        for (prefix, remedy) in [
            ("", "the beginning of a path"),
            ("/", "the beginning of a path"),
            ("api", "the beginning of a path"),
            ("/api/", "the beginning of a path"),
            ("/{a}", "whole segments"),
            ("/a/../b", "whole segments"),
            ("/api", "is also for \"/apix\""),
        ] {
            let found = PathChange::Strip(prefix.to_owned()).mistake(&patterns).unwrap();
            assert!(found.2.contains(remedy), "{prefix}: {}", found.2);
        }
    }
}
