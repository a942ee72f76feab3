//! The upgrade request of each client: fields, subprotocols, and a target with the client's own
//! values.

use std::borrow::Cow;

use throng_proto::http1::Response;
use throng_proto::ws::deflate::{Agreed, Policy};
use throng_proto::ws::handshake::{
    BadResponse, Key, Unsendable, check_response_with, encode_request_with,
};

use crate::common::Common;
use crate::error::Error;
use crate::plan::{Content, Plan};
use crate::template::{Template, Tokens, Values};

/// The request of all clients, with placeholders for the parts that differ.
#[derive(Debug)]
pub struct Handshake {
    host: Template,
    headers: Vec<(String, Template)>,
    subprotocols: Vec<Template>,
    /// The offer of permessage-deflate.
    deflate: Option<Policy>,
    /// Whether the request target has placeholders.
    varies_target: bool,
    /// The request target of the plan.
    resource: String,
    tokens: Tokens,
    seed: u64,
}

/// The choices of a server.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub deflate: Option<Agreed>,
    /// Whether the server chose one of the subprotocols.
    pub subprotocol: bool,
}

impl Handshake {
    /// Creates a plain upgrade request without further fields.
    #[must_use]
    pub fn plain(host: &str) -> Self {
        Self {
            host: Template::literal(host),
            headers: Vec::new(),
            subprotocols: Vec::new(),
            deflate: None,
            varies_target: false,
            resource: String::new(),
            tokens: Tokens::default(),
            seed: 0,
        }
    }

    /// Reads the handshake settings of the plan, and writes a trial request.
    ///
    /// # Errors
    /// [`Error::Usage`] for a placeholder that does not exist, and for a value that is not allowed
    /// in a request.
    pub fn of(plan: &Plan, seed: u64) -> Result<Self, Error> {
        let (host, headers) = fields(&plan.common)?;
        let subprotocols = plan.subprotocols.iter().map(|name| template("--subprotocol", name));
        let target = template("the URL", &plain_target(plan))?;
        let handshake = Self {
            host,
            headers,
            subprotocols: subprotocols.collect::<Result<_, Error>>()?,
            deflate: plan.policy()?,
            varies_target: target.constant() != Some(&plain_target(plan)),
            resource: plan.resource().to_owned(),
            tokens: plan.common.tokens.clone(),
            seed,
        };
        let content = match &plan.content {
            Content::Template(template) => Some(template),
            _ => None,
        };
        let script = plan.script.iter().flat_map(|script| script.templates());
        handshake.check_tokens([&target].into_iter().chain(content).chain(script))?;
        let mut out = Vec::new();
        let written = handshake.write(0, 0, &plain_target(plan), &Key::new([0; 16]), &mut out);
        match written {
            Ok(()) => Ok(handshake),
            Err(unsendable) => Err(handshake.explain(unsendable, plan)),
        }
    }

    /// Refuses a place for tokens without tokens, and tokens without a place.
    fn check_tokens<'a>(&'a self, others: impl Iterator<Item = &'a Template>) -> Result<(), Error> {
        let headers = self.headers.iter().map(|(_, value)| value);
        let mut all = headers.chain(&self.subprotocols).chain([&self.host]).chain(others);
        check_tokens(all.any(Template::needs_token), &self.tokens)
    }

    fn values(&self, client: u64, sequence: u64) -> Values<'_> {
        Values { client, sequence, seed: self.seed, tokens: &self.tokens }
    }

    /// Appends the request of a client for `target`; `sequence` is the number of its connection.
    ///
    /// # Errors
    /// A value is not allowed in a request. In this case nothing is appended.
    pub fn write(
        &self,
        client: u64,
        sequence: u64,
        target: &str,
        key: &Key,
        out: &mut Vec<u8>,
    ) -> Result<(), Unsendable> {
        let values = self.values(client, sequence);
        let host = self.host.rendered(&values);
        let rendered: Vec<Cow<'_, str>> =
            self.headers.iter().map(|(_, value)| value.rendered(&values)).collect();
        let names = self.headers.iter().map(|(name, _)| name.as_str());
        let headers: Vec<(&str, &str)> = names.zip(rendered.iter().map(|value| &**value)).collect();
        let subprotocols = self.subprotocols(&values);
        let subprotocols: Vec<&str> = subprotocols.iter().map(|name| &**name).collect();
        let own_target = match self.varies_target {
            // Parses the target for each connection, because a mode may use another target for
            // each.
            true => Template::parse(target).ok().map(|own| own.rendered(&values).into_owned()),
            false => None,
        };
        let target = own_target.as_deref().unwrap_or(target);
        let offer = self.deflate.as_ref().map(Policy::offer);
        encode_request_with(&host, target, key, &subprotocols, offer.as_ref(), &headers, out)
    }

    fn subprotocols(&self, values: &Values<'_>) -> Vec<Cow<'_, str>> {
        self.subprotocols.iter().map(|name| name.rendered(values)).collect()
    }

    /// Checks the response to the request that was written with these numbers.
    ///
    /// # Errors
    /// The first rule that the server violated.
    pub fn check(
        &self,
        client: u64,
        sequence: u64,
        response: &Response<'_>,
        key: &Key,
    ) -> Result<Accepted, BadResponse> {
        let asked = self.subprotocols(&self.values(client, sequence));
        let asked: Vec<&str> = asked.iter().map(|name| &**name).collect();
        let policy = self.deflate.as_ref();
        let opened = check_response_with(response.status(), response, key, &asked, policy)?;
        Ok(Accepted { deflate: opened.deflate, subprotocol: opened.subprotocol.is_some() })
    }

    /// Returns the request target of the plan.
    pub(super) fn resource(&self) -> &str {
        &self.resource
    }

    /// The offer of permessage-deflate.
    #[must_use]
    pub fn deflate(&self) -> Option<Policy> {
        self.deflate
    }

    /// Adds the flag that the user must change.
    fn explain(&self, unsendable: Unsendable, plan: &Plan) -> Error {
        Error::Usage(match unsendable {
            Unsendable::Target => format!(
                "cannot ask for {:?}: {unsendable}; write spaces and the like as %20 in the URL",
                plan.resource()
            ),
            Unsendable::FieldName | Unsendable::FieldValue => {
                let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
                format!(
                    "cannot send --header {}: {unsendable}; fields of the handshake follow from \
                     the URL, --subprotocol and --deflate",
                    names.join(", ")
                )
            }
            Unsendable::Subprotocol | Unsendable::RepeatedSubprotocol => format!(
                "cannot offer --subprotocol {}: {unsendable}; give each name once, as letters, \
                 digits, - and .",
                plan.subprotocols.join(", ")
            ),
            _ => format!("cannot ask for {:?}: {unsendable}", plan.resource()),
        })
    }
}

/// Returns the target without the placeholder for the channel, which a mode fills in.
fn plain_target(plan: &Plan) -> String {
    plan.resource().replace("{channel}", "channel")
}

/// Reads the templates of `Host` and of the other fields.
pub fn fields(common: &Common) -> Result<(Template, Vec<(String, Template)>), Error> {
    let (mut host, mut others) = (None, Vec::new());
    for (name, value) in &common.headers {
        let value = template(&format!("--header {name}"), value)?;
        match name.eq_ignore_ascii_case("host") {
            true => drop(host.get_or_insert(value)),
            false => others.push((name.clone(), value)),
        }
    }
    Ok((host.unwrap_or_else(|| Template::literal(&common.target.host_header())), others))
}

/// Reads a template; an error names the flag.
pub fn template(flag: &str, text: &str) -> Result<Template, Error> {
    Template::parse(text).map_err(|error| Error::Usage(format!("{flag}: {error}")))
}

/// Refuses a place for tokens without tokens, and tokens without a place.
pub fn check_tokens(is_used: bool, tokens: &Tokens) -> Result<(), Error> {
    match (is_used, tokens.is_empty()) {
        (true, true) => Err(Error::Usage(
            "{token} stands for a line of --tokens FILE; give one, or write the token itself"
                .to_owned(),
        )),
        (false, false) => Err(Error::Usage(
            "no request has a place for the lines of --tokens; write {token} where they belong, \
             such as --token {token} or --header 'X-User: {token}'"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mode;
    use crate::target::Target;

    fn plan(url: &str, headers: &[(&str, &str)], subprotocols: &[&str], tokens: &str) -> Plan {
        let mode = Mode::Idle { hold: std::time::Duration::from_secs(1) };
        let headers = headers.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        let common = Common {
            headers: headers.collect(),
            tokens: Tokens::parse("tokens", tokens).unwrap_or_default(),
            ..Target::parse(url).unwrap().into()
        };
        Plan {
            subprotocols: subprotocols.iter().map(|&name| name.to_owned()).collect(),
            ..Plan::new(common, mode)
        }
    }

    fn request(handshake: &Handshake, client: u64, target: &str) -> String {
        let mut out = Vec::new();
        handshake.write(client, 2, target, &Key::new([1; 16]), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_client_asks_with_its_own_values() {
        let headers = [
            ("Authorization", "Bearer {token}"),
            ("X-Client", "{client}-{sequence}"),
            ("host", "a.example"),
        ];
        let plan = plan("ws://h/ws?user={client}", &headers, &["v1", "v{client}x"], "t0\nt1");
        let handshake = Handshake::of(&plan, 1).unwrap();
        let text = request(&handshake, 3, plan.resource());
        for words in [
            "GET /ws?user=3 HTTP/1.1\r\nHost: a.example\r\n",
            "Authorization: Bearer t1\r\n",
            "X-Client: 3-2\r\n",
            "Sec-WebSocket-Protocol: v1, v3x\r\n",
        ] {
            assert!(text.contains(words), "{words:?} in {text}");
        }
    }

    #[test]
    fn an_error_about_an_unsendable_text_names_its_flag() {
        for (plan, words) in [
            (plan("ws://h/", &[("a b", "x")], &[], ""), "--header a b"),
            (plan("ws://h/", &[("Upgrade", "x")], &[], ""), "--header Upgrade"),
            (plan("ws://h/", &[("X", "a\nb")], &[], ""), "--header X"),
            (plan("ws://h/", &[("X", "{user}")], &[], ""), "--header X: {user} is not a value"),
            (plan("ws://h/{room}", &[], &[], ""), "the URL: {room}"),
            (plan("ws://h/", &[], &["a b"], ""), "--subprotocol a b"),
            (plan("ws://h/", &[], &["a", "a"], ""), "--subprotocol a, a"),
            (plan("ws://h/?{token}", &[], &[], ""), "--tokens FILE"),
            (plan("ws://h/", &[], &[], "secret"), "no request has a place"),
        ] {
            let error = Handshake::of(&plan, 1).unwrap_err();
            assert!(error.to_string().contains(words), "{words}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
