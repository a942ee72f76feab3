//! Rules of the headers of requests and answers.

use throng_proto::ws::handshake::is_token;

use super::RuleNames;
use super::template::Template;
use super::variables::{Form, Variables};
use crate::forward;

/// Rules of headers, of a site, a route or the whole file. The rules of all levels apply: first all
/// `remove`, then all `set`, where a route's value replaces its site's, then all `add`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderRulesConfig {
    /// Headers that replace others of the name, with their values. Values have variables such as
    /// `${client}`; a header with an empty value is not sent.
    pub set: Vec<(String, String)>,
    /// Headers that are added to others of the name.
    pub add: Vec<(String, String)>,
    /// The names of headers that are removed.
    pub remove: Vec<String>,
}

/// A mistake in rules: the rest of the key, the value, and the remedy.
pub(super) type HeaderMistake = (String, String, String);

/// The messages that rules are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderSide {
    Requests,
    Answers,
}

/// Rules in the form in which they are applied.
#[derive(Debug, Default)]
pub(crate) struct HeaderRules {
    /// The names of the headers that are removed or replaced.
    removed: Box<[String]>,
    lines: Lines,
}

#[derive(Debug)]
enum Lines {
    /// Lines of every message, apart from the backend.
    Fixed(Box<[u8]>),
    /// Names and values.
    Templates(Box<[(String, Template)]>),
}

impl Default for Lines {
    fn default() -> Self {
        Self::Fixed(Box::default())
    }
}

impl HeaderRulesConfig {
    /// Returns the rules with the rules of the level above.
    pub(super) fn within(&self, outer: &Self) -> Self {
        let is_replaced = |name: &String| self.set.iter().any(|it| it.0.eq_ignore_ascii_case(name));
        let kept = outer.set.iter().filter(|(name, _)| !is_replaced(name));
        Self {
            set: kept.chain(&self.set).cloned().collect(),
            add: outer.add.iter().chain(&self.add).cloned().collect(),
            remove: outer.remove.iter().chain(&self.remove).cloned().collect(),
        }
    }

    fn templates(&self) -> impl Iterator<Item = (String, &(String, String))> {
        let set = self.set.iter().map(|pair| (format!("set.{}", pair.0), pair));
        set.chain(self.add.iter().map(|pair| (format!("add.{}", pair.0), pair)))
    }

    /// Returns the mistakes of one level.
    pub(super) fn mistakes(&self, side: HeaderSide) -> Vec<HeaderMistake> {
        let mut mistakes = Vec::new();
        let removed = (0..).zip(&self.remove).map(|(at, name)| (format!("remove[{at}]"), name));
        let written = self.templates().map(|(key, (name, _))| (key, name));
        for (key, name) in removed.chain(written) {
            if let Some(remedy) = name_mistake(name, side) {
                mistakes.push((key, format!("{name:?}"), remedy));
            }
        }
        for (key, (_, value)) in self.templates() {
            let remedy = match value.parse::<Template>() {
                Err(remedy) => remedy,
                Ok(_) if value.chars().any(char::is_control) => {
                    "a header has no control characters".to_owned()
                }
                Ok(template) if template.has_backend() && side == HeaderSide::Requests => {
                    "a request is written before its backend is chosen: ${backend} is for \
                     response_headers"
                        .to_owned()
                }
                Ok(_) => continue,
            };
            mistakes.push((key, format!("{value:?}"), remedy));
        }
        mistakes
    }

    /// Returns whether a value depends on the names of the route or on its patterns.
    pub(super) fn depends_on_route(&self) -> bool {
        let depends = |template: Template| template.depends_on_route();
        self.templates().any(|(_, (_, value))| value.parse().is_ok_and(depends))
    }
}

/// Returns the remedy of a name that rules must not have.
fn name_mistake(name: &str, side: HeaderSide) -> Option<String> {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    Some(match () {
        () if !is_token(name) => {
            "write the name of a header such as \"X-Frame-Options\"".to_owned()
        }
        () if is("host") && side == HeaderSide::Requests => {
            "write host = \"app.internal\" in its place".to_owned()
        }
        () if forward::is_written_by_balancer(name) || is("date") => {
            "the balancer writes it, for each connection: drop it".to_owned()
        }
        () => return None,
    })
}

impl HeaderRules {
    /// Compiles rules without mistakes.
    ///
    /// # Errors
    /// A pattern of the route does not have a part of the path.
    pub(super) fn new(
        config: &HeaderRulesConfig,
        names: &RuleNames,
        patterns: &[String],
    ) -> Result<Self, HeaderMistake> {
        let mut templates = Vec::new();
        for (key, (name, value)) in config.templates() {
            // The mistakes of each level were reported.
            let mut template: Template = value.trim().parse().unwrap_or_default();
            template.bind(names, patterns).map_err(|remedy| (key, format!("{value:?}"), remedy))?;
            templates.push((name.clone(), template));
        }
        let removed = config.remove.iter().chain(config.set.iter().map(|(name, _)| name));
        let lines = match templates.iter().all(|(_, template)| template.is_fixed()) {
            true => {
                let mut lines = Vec::new();
                for (name, template) in &templates {
                    push_line(name, &mut lines, |out| template.write_fixed(out));
                }
                Lines::Fixed(lines.into())
            }
            false => Lines::Templates(templates.into()),
        };
        Ok(Self { removed: removed.cloned().collect(), lines })
    }

    /// Returns the names of the headers that are removed or replaced.
    pub(crate) fn removed(&self) -> &[String] {
        &self.removed
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.removed.is_empty() && matches!(&self.lines, Lines::Fixed(lines) if lines.is_empty())
    }

    /// Appends the lines for a message. Does not allocate, except for values that are decoded.
    pub(crate) fn write(&self, of: &Variables<'_>, out: &mut Vec<u8>) {
        match &self.lines {
            Lines::Fixed(lines) => out.extend_from_slice(lines),
            Lines::Templates(templates) => {
                for (name, template) in templates {
                    push_line(name, out, |out| template.write(of, Form::Header, out));
                }
            }
        }
    }

    /// Returns the lines, without the backend, for an answer to this request; `None` if they are
    /// the same for all.
    pub(crate) fn lines_of(&self, of: &Variables<'_>) -> Option<Box<[u8]>> {
        let Lines::Templates(_) = &self.lines else { return None };
        let mut lines = Vec::new();
        self.write(of, &mut lines);
        Some(lines.into())
    }

    /// Returns the lines that are the same for all answers, apart from the backend.
    pub(crate) fn fixed_lines(&self) -> &[u8] {
        match &self.lines {
            Lines::Fixed(lines) => lines,
            Lines::Templates(_) => &[],
        }
    }
}

/// Appends a line, unless its value is empty.
fn push_line(name: &str, out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    let before = out.len();
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    let start = out.len();
    value(out);
    match out[start..].iter().all(u8::is_ascii_whitespace) {
        true => out.truncate(before),
        false => out.extend_from_slice(b"\r\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::tests::{get, variables, with_request};

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn set(values: &[(&str, &str)]) -> HeaderRulesConfig {
        HeaderRulesConfig { set: pairs(values), ..HeaderRulesConfig::default() }
    }

    /// Returns the lines of rules for a request, or the remedy.
    fn lines(config: &HeaderRulesConfig, patterns: &[&str], head: &str) -> String {
        let patterns: Vec<_> = patterns.iter().map(|it| (*it).to_owned()).collect();
        let (site, route, pool) = ("shop".into(), "r".into(), "p".into());
        let names = RuleNames { site, route, pool, ..RuleNames::default() };
        let rules = match HeaderRules::new(config, &names, &patterns) {
            Ok(rules) => rules,
            Err((key, value, remedy)) => return format!("{key} {value} {remedy}"),
        };
        with_request(head, |request| {
            let (names, request_id) = (Some(&names), Some("id"));
            let mut out = Vec::new();
            rules.write(&Variables { names, request_id, ..variables(request) }, &mut out);
            String::from_utf8(out).unwrap().replace("\r\n", "\n")
        })
    }

    fn value(text: &str, patterns: &[&str], head: &str) -> String {
        let lines = lines(&set(&[("X", text)]), patterns, head);
        lines.strip_prefix("X: ").map_or(lines.clone(), |value| value.trim_end().to_owned())
    }

    #[test]
    fn each_variable_has_its_value() {
        let head = "GET /a/b%20c/d?q=1&r=x%0d%0ay HTTP/1.1\nHost: A.example:8080\nX-H: h\n\
                    Cookie: c=1; d=2";
        for (text, expected) in [
            ("${client} ${peer}", "192.0.2.7 192.0.2.7"),
            ("${host}", "A.example"),
            ("${scheme}://${method}", "http://GET"),
            ("${path} ${query}", "/a/b%20c/d q=1&r=x%0d%0ay"),
            ("${uri}", "/a/b%20c/d?q=1&r=x%0d%0ay"),
            ("${site} ${route} ${pool}", "shop r p"),
            ("${request_id}", "id"),
            ("${header.x-h}${header.Host}", "hA.example:8080"),
            ("${cookie.d}${query.q}", "21"),
            ("${param.one} ${param.rest}", "b%20c d"),
            ("${backend}", "\0"),
            // Missing.
            ("${server_name}${client_cert.subject}", ""),
            ("${header.none}${cookie.none}${query.none} ", ""),
            // Other lines would begin with it.
            ("a${query.r}b", "ab"),
            ("${query.r}", ""),
        ] {
            assert_eq!(value(text, &["/a/{one}/{*rest}"], head), expected, "{text}");
        }
    }

    #[test]
    fn parts_of_the_path_are_found_by_the_pattern_that_has_it() {
        let patterns = ["/{a}/{b}", "/x/{b}/{a}", "/x/y/{*a}", "/%41/{a}"];
        for (path, expected) in [
            ("/1/2", "1"),
            ("/x/1/2", "2"),
            ("/x/y/2", "2"),
            ("/x/y/", ""),
            ("/x/y/2/3", "2/3"),
            ("/1/2/3", ""),
        ] {
            assert_eq!(value("${param.a}", &patterns, &get("a", path)), expected, "{path}");
        }
        let missing = value("${param.c}", &patterns, &get("a", "/"));
        assert!(missing.starts_with("set.X \"${param.c}\" each path of the route"), "{missing}");
        assert!(value("${param.a}", &[], &get("a", "/")).contains("each path of the route"));
    }

    #[test]
    fn rules_of_levels_add_up_and_the_inner_value_wins() {
        let mut outer = set(&[("X-A", "1"), ("X-B", "1")]);
        outer.add = pairs(&[("X-C", "1")]);
        outer.remove = vec!["X-D".to_owned()];
        let mut inner = set(&[("x-a", "2")]);
        inner.add = pairs(&[("X-C", "2")]);
        inner.remove = vec!["X-E".to_owned()];
        let all = inner.within(&outer);
        let expected = "X-B: 1\nx-a: 2\nX-C: 1\nX-C: 2\n";
        assert_eq!(lines(&all, &[], &get("a", "/")), expected);
        let rules = HeaderRules::new(&all, &RuleNames::default(), &[]).unwrap();
        assert_eq!(rules.removed(), ["X-D", "X-E", "X-B", "x-a"]);
        assert_eq!(rules.fixed_lines(), expected.replace('\n', "\r\n").as_bytes());
    }

    #[test]
    fn headers_that_the_balancer_needs_and_unknown_variables_are_refused() {
        use HeaderSide::{Answers, Requests};
        for (name, value, side, remedy) in [
            ("Host", "a", Requests, "write host = "),
            ("Content-Length", "1", Requests, "the balancer writes it"),
            ("transfer_encoding", "a", Answers, "the balancer writes it"),
            ("Connection", "a", Answers, "the balancer writes it"),
            ("UPGRADE", "a", Requests, "the balancer writes it"),
            ("Sec-WebSocket-Key", "a", Requests, "the balancer writes it"),
            ("sec-websocket-protocol", "a", Answers, "the balancer writes it"),
            ("TE", "a", Requests, "the balancer writes it"),
            ("CDN-Loop", "a", Requests, "the balancer writes it"),
            ("Date", "a", Answers, "the balancer writes it"),
            ("X Y", "a", Requests, "write the name of a header"),
            ("X", "${a}", Requests, "${a} is not a variable: write ${client}"),
            ("X", "${header.}", Requests, "is not a variable"),
            ("X", "${host", Requests, "ends with }"),
            ("X", "${backend}", Requests, "before its backend is chosen"),
            ("X", "a\r\nY: b", Answers, "no control characters"),
            ("X", "a\0", Answers, "no control characters"),
        ] {
            let mistakes = set(&[(name, value)]).mistakes(side);
            let found = mistakes.first().map_or("", |(_, _, remedy)| remedy);
            assert!(found.contains(remedy), "{name} {value}: {found}");
        }
        assert_eq!(set(&[("X", "${backend}"), ("Host", "a")]).mistakes(Answers), []);
    }
}
