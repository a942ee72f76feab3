//! Texts with variables: the targets of redirections, and answers.

use std::str::FromStr;

use throng_proto::http1::Request;

/// The variables, as errors list them.
const VARIABLES: &str = "${scheme}, ${host}, ${path}, ${query} or ${uri}";

/// A text with variables of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    /// `http` or `https`, as the client uses it.
    Scheme,
    /// Without the port.
    Host,
    Path,
    Query,
    /// Path and query.
    Uri,
}

/// The values of variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variables<'r> {
    pub(crate) request: &'r Request<'r>,
    pub(crate) is_secure: bool,
}

/// The error is the remedy.
impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((name, after)) = after.split_once('}') else {
                return Err(format!("a variable ends with }}: write {VARIABLES}"));
            };
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            parts.push(match name {
                "scheme" => Part::Scheme,
                "host" => Part::Host,
                "path" => Part::Path,
                "query" => Part::Query,
                "uri" => Part::Uri,
                _ => return Err(format!("${{{name}}} is not a variable: write {VARIABLES}")),
            });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self(parts))
    }
}

impl Template {
    /// Returns the text for a request; `None` if it needs the host, and the request has none.
    pub(crate) fn render(&self, of: Variables<'_>) -> Option<String> {
        let request = of.request;
        let mut out = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Scheme => out.push_str(if of.is_secure { "https" } else { "http" }),
                Part::Host => out.push_str(name_of(request.host()?)),
                Part::Path => out.push_str(request.path()),
                Part::Query => out.push_str(request.query().unwrap_or_default()),
                Part::Uri => {
                    out.push_str(request.path());
                    if let Some(query) = request.query() {
                        out.push('?');
                        out.push_str(query);
                    }
                }
            }
        }
        Some(out)
    }
}

/// Returns a host without its port.
fn name_of(host: &str) -> &str {
    let port = host.rfind(':').filter(|colon| !host[*colon..].contains(']'));
    port.map_or(host, |colon| &host[..colon])
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
    /// Returns the target for a request, as [`Template::render`] does. Slashes at the beginning
    /// become one: browsers take two, or a backslash, for the beginning of a host.
    pub(crate) fn render(&self, of: Variables<'_>) -> Option<String> {
        let target = self.0.render(of)?;
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
        to.parse::<RedirectTarget>()
            .unwrap()
            .render(Variables { request: &request, is_secure: false })
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
