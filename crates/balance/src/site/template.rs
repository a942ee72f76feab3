//! Texts with variables: headers, the targets of redirections, and answers.

use std::str::FromStr;

use super::RuleNames;
use super::variables::{Form, PartOfPath, Variable, Variables};

/// A text with variables of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    Text(Box<str>),
    Variable(Variable),
}

/// The error is the remedy.
impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or_else(Variable::unended)?;
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            parts.push(Part::Variable(Variable::parse(name)?));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self(parts))
    }
}

impl Template {
    fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Variable(variable) => Some(variable),
        })
    }

    /// Returns whether it has the variable of the backend.
    pub(super) fn has_backend(&self) -> bool {
        self.variables().any(|variable| *variable == Variable::Backend)
    }

    /// Returns whether its text depends on the names of the route or on its patterns.
    pub(super) fn depends_on_route(&self) -> bool {
        self.variables().any(|variable| {
            let is_name = matches!(variable, Variable::Site | Variable::Route | Variable::Pool);
            is_name || matches!(variable, Variable::PathPart(_))
        })
    }

    /// Returns whether it is the same for each request, apart from the backend.
    pub(super) fn is_fixed(&self) -> bool {
        self.variables().all(|variable| *variable == Variable::Backend)
    }

    /// Returns whether all its variables are parts of the request's target.
    pub(super) fn is_of_target(&self) -> bool {
        use Variable::{FoundPart, Path, PathPart, Query, Uri};
        let is_part = |it: &Variable| matches!(it, Path | Query | Uri | PathPart(_) | FoundPart(_));
        self.variables().all(is_part)
    }

    /// Writes the names of a route into it, and finds parts of the path in these patterns. A pool
    /// that a split chooses has no name yet.
    ///
    /// # Errors
    /// The remedy: a pattern does not have a part.
    pub(super) fn bind(&mut self, names: &RuleNames, patterns: &[String]) -> Result<(), String> {
        for part in &mut self.0 {
            let Part::Variable(variable) = part else { continue };
            *part = match variable {
                Variable::Site => Part::Text((*names.site).into()),
                Variable::Route => Part::Text((*names.route).into()),
                Variable::Pool if !names.pool.is_empty() => Part::Text((*names.pool).into()),
                Variable::PathPart(name) => {
                    let found = PartOfPath::in_patterns(patterns, name);
                    let remedy = || {
                        format!(
                            "each path of the route has {{{name}}} or at its end {{*{name}}}: \
                             write path = \"/a/{{*{name}}}\""
                        )
                    };
                    Part::Variable(Variable::FoundPart(found.ok_or_else(remedy)?))
                }
                _ => continue,
            };
        }
        Ok(())
    }

    /// Appends the text for a request.
    pub(super) fn write(&self, of: &Variables<'_>, form: Form, out: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(variable) => variable.write(of, form, out),
            }
        }
    }

    /// Appends its text, which [is the same](Self::is_fixed) for each request.
    pub(super) fn write_fixed(&self, out: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(_) => out.push(crate::forward::BACKEND),
            }
        }
    }

    /// Returns the text for a request; `None` if it needs the host, and the request has none.
    pub(crate) fn render(&self, of: Variables<'_>) -> Option<String> {
        self.render_as(of, Form::Text)
    }

    fn render_as(&self, of: Variables<'_>, form: Form) -> Option<String> {
        if of.request.host().is_none() && self.variables().any(|it| *it == Variable::Host) {
            return None;
        }
        let mut out = Vec::new();
        self.write(&of, form, &mut out);
        let text = String::from_utf8(out);
        Some(text.unwrap_or_else(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()))
    }
}

/// The target of a redirection: no part of it that clients choose can name another host than
/// theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectTarget(Template);

/// The error is the remedy.
impl FromStr for RedirectTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a URL has only printable ASCII: encode other characters with %".to_owned());
        }
        let template: Template = text.parse()?;
        let is_relative = text.starts_with('/') && !text.starts_with("//")
            || text.starts_with("${uri}")
            || text.starts_with("${path}");
        if is_relative {
            return Ok(Self(template));
        }
        let schemes = ["https://", "http://", "${scheme}://"];
        let Some(rest) = schemes.iter().find_map(|scheme| text.strip_prefix(scheme)) else {
            return Err("begin with https://, http://, / or ${uri}, for example \
                        \"https://${host}${uri}\""
                .to_owned());
        };
        let ends = ["/", "?", "#", "${uri}", "${path}"];
        let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
        let host = rest[..end].replacen("${host}", "h", 1);
        if host.is_empty() || host.contains(['$', '@', '\\']) {
            return Err("its host is a name, or ${host}: write for example \
                        \"https://www.example.com${uri}\""
                .to_owned());
        }
        Ok(Self(template))
    }
}

impl RedirectTarget {
    pub(super) fn template(&mut self) -> &mut Template {
        &mut self.0
    }

    /// Returns the target for a request, as [`Template::render`] does. Slashes at the beginning
    /// become one: browsers take two, or a backslash, for the beginning of a host.
    pub(crate) fn render(&self, of: Variables<'_>) -> Option<String> {
        let target = self.0.render_as(of, Form::Url)?;
        Some(match target.starts_with('/') {
            true => format!("/{}", target.trim_start_matches(['/', '\\'])),
            false => target,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_proto::Input;
    use throng_proto::http1::{Decoder, Event, Limits};

    fn location(to: &str, head: &str) -> Option<String> {
        let mut bytes = format!("{head}\r\n\r\n").into_bytes();
        let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut bytes));
        let event = decoder.next_event(&mut input, &Limits::default()).unwrap();
        let Some(Event::Head(request)) = event else { panic!("{event:?}") };
        to.parse::<RedirectTarget>().unwrap().render(crate::site::tests::variables(&request))
    }

    #[test]
    fn a_redirection_has_the_parts_of_the_request() {
        let head = "GET /a/b?c=d HTTP/1.1\r\nHost: A.example:8080";
        for (to, expected) in [
            ("https://${host}${uri}", "https://A.example/a/b?c=d"),
            ("${scheme}://www.${host}:81/x?${query}", "http://www.A.example:81/x?c=d"),
            ("https://b.example${path}", "https://b.example/a/b"),
            ("/new${uri}", "/new/a/b?c=d"),
            ("https://b.example", "https://b.example"),
        ] {
            assert_eq!(location(to, head).as_deref(), Some(expected), "{to}");
        }
        let head = "GET /a HTTP/1.1\r\nHost: [::1]:8080";
        assert_eq!(location("http://${host}:81/", head).as_deref(), Some("http://[::1]:81/"));
        let head = "GET http://c.example?d HTTP/1.1\r\nHost: a.example";
        assert_eq!(
            location("https://${host}${uri}", head).as_deref(),
            Some("https://c.example/?d")
        );
        assert_eq!(location("https://${host}${uri}", "GET //evil/ HTTP/1.0"), None);
    }

    #[test]
    fn a_redirection_never_leads_to_a_host_that_the_path_names() {
        for path in
            ["//evil.example/a", "/\\evil.example/a", "/\\/evil.example/a", "///evil.example/a"]
        {
            let head = format!("GET {path} HTTP/1.1\r\nHost: a.example");
            for to in ["${uri}", "${path}", "/${uri}", "/${path}"] {
                assert_eq!(location(to, &head).as_deref(), Some("/evil.example/a"), "{to} {path}");
            }
            let expected = format!("https://a.example{path}");
            assert_eq!(location("https://${host}${uri}", &head), Some(expected));
        }
    }

    #[test]
    fn targets_that_clients_could_choose_are_refused_with_the_form_that_is_safe() {
        for (to, remedy) in [
            ("", "begin with https://"),
            ("b.example", "begin with https://"),
            ("//b.example", "begin with https://"),
            ("${query}", "begin with https://"),
            ("javascript:alert(1)", "begin with https://"),
            ("https://${query}", "its host is a name"),
            ("https://b.example${query}", "its host is a name"),
            ("https://${host}${host}/", "its host is a name"),
            ("https://a@${host}/", "its host is a name"),
            ("https://${uri}", "its host is a name"),
            ("https:///x", "its host is a name"),
            ("/a b", "printable ASCII"),
            ("/a\r\nX: y", "printable ASCII"),
            ("/${url}", "${url} is not a variable"),
            ("/${uri", "ends with }"),
        ] {
            let error = to.parse::<RedirectTarget>().unwrap_err();
            assert!(error.contains(remedy), "{to}: {error}");
        }
    }
}
