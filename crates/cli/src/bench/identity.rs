//! The flags for the identity of each client of `throng bench`: header lines, credentials, cookies
//! and subprotocols.

use std::path::PathBuf;

use throng_io::file::read_text_once;
use throng_load::{Content, Error, Plan, Template, Tokens};

use super::MAX_FILE;

/// Fields of every request, with values of each client.
#[derive(Debug, Default, clap::Args)]
pub(super) struct IdentityArgs {
    /// A header line, 'Name: value'; repeatable. Host replaces ours. {client}, {sequence},
    /// {random}, {uuid} and {token} stand for values of each client, in the URL too
    #[arg(help_heading = "Request", long, short = 'H', value_name = "LINE",
          value_parser = parse_header)]
    header: Vec<(String, String)>,
    /// Send Authorization: Bearer TEXT
    #[arg(help_heading = "Request", long, value_name = "TEXT")]
    token: Option<String>,
    /// Tokens or users, one a line, which clients take in turn: where {token} is written, or else
    /// as --token
    #[arg(help_heading = "Request", long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// A cookie; repeatable
    #[arg(help_heading = "Request", long, value_name = "NAME=VALUE", value_parser = parse_cookie)]
    cookie: Vec<String>,
}

/// Flags for the handshake of WebSocket clients.
#[derive(Debug, Default, clap::Args)]
pub(super) struct HandshakeArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// A subprotocol to offer; repeatable, in order of preference. The report says how many
    /// connections have one
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Request")]
    subprotocol: Vec<String>,
}

impl HandshakeArgs {
    /// Puts the flags into the plan, whose messages or script are known.
    ///
    /// # Errors
    /// The file of tokens cannot be read, or has none.
    pub(super) fn apply(self, plan: &mut Plan) -> Result<(), Error> {
        let has_token = match (&plan.content, &plan.script) {
            (_, Some(script)) => script.needs_token(),
            (Content::Template(template), None) => template.needs_token(),
            _ => false,
        };
        let others = self.subprotocol.iter().map(String::as_str).chain([plan.resource()]);
        let others = others.chain(has_token.then_some("{token}"));
        (plan.common.headers, plan.common.tokens) = self.identity.fields(others)?;
        plan.subprotocols = self.subprotocol;
        Ok(())
    }
}

impl IdentityArgs {
    /// The fields of a request and the tokens in them; `others` are further texts with places.
    ///
    /// # Errors
    /// The file of tokens cannot be read, or has none.
    pub(super) fn fields<'a>(
        self,
        mut others: impl Iterator<Item = &'a str>,
    ) -> Result<(Vec<(String, String)>, Tokens), Error> {
        let tokens = match &self.tokens {
            None => Tokens::default(),
            Some(path) => {
                let text = read_text_once(path, MAX_FILE).map_err(|error| {
                    Error::Usage(format!("--tokens {} {error}", path.display()))
                })?;
                Tokens::parse(&path.display().to_string(), &text)?
            }
        };
        let mut fields = self.header;
        if !self.cookie.is_empty() {
            // One field for all of them: RFC 6265 section 5.4.
            fields.push(("Cookie".to_owned(), self.cookie.join("; ")));
        }
        let has_place = |text: &str| Template::parse(text).is_ok_and(|text| text.needs_token());
        let is_used = fields.iter().any(|(_, value)| has_place(value)) || others.any(has_place);
        let bearer =
            self.token.or_else(|| (!tokens.is_empty() && !is_used).then(|| "{token}".to_owned()));
        if let Some(bearer) = bearer {
            // As read from a file, by $(cat FILE).
            let bearer = bearer.trim_start_matches('\u{feff}').trim().to_owned();
            if fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
                return Err(Error::Usage(
                    "--header Authorization is given, and --token or --tokens makes another; leave \
                     out one, or write {token} in the header"
                        .to_owned(),
                ));
            }
            fields.push(("Authorization".to_owned(), format!("Bearer {bearer}")));
        }
        Ok((fields, tokens))
    }
}

/// `Name: value`.
fn parse_header(line: &str) -> Result<(String, String), String> {
    // As read from a file: with a byte order mark before it, and its line end.
    let line = line.strip_prefix('\u{feff}').unwrap_or(line);
    match line.split_once(':') {
        Some((name, value)) => Ok((name.trim_end().to_owned(), value.trim().to_owned())),
        None => Err(format!("{line:?} has no colon: write 'Name: value'")),
    }
}

/// `name=value`.
fn parse_cookie(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() && !text.contains([';', '\r', '\n']) => {
            Ok(text.to_owned())
        }
        _ => Err(format!(
            "{text:?} is not a cookie: write NAME=VALUE, and each with its own --cookie"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(args: IdentityArgs, others: &[&str]) -> Result<Vec<String>, String> {
        let (fields, _) = args.fields(others.iter().copied()).map_err(|error| error.to_string())?;
        Ok(fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect())
    }

    fn args(header: &[&str], token: Option<&str>, cookies: &[&str]) -> IdentityArgs {
        IdentityArgs {
            header: header.iter().map(|line| parse_header(line).unwrap()).collect(),
            token: token.map(str::to_owned),
            tokens: None,
            cookie: cookies.iter().map(|cookie| parse_cookie(cookie).unwrap()).collect(),
        }
    }

    #[test]
    fn credentials_become_fields() {
        let all = fields(args(&["X: y"], Some("abc"), &["a=1", "b=2=3"]), &[]).unwrap();
        assert_eq!(all, ["X: y", "Cookie: a=1; b=2=3", "Authorization: Bearer abc"]);
        let marked = args(&["\u{feff}X: y\r\n"], Some("\u{feff}abc\n"), &["\u{feff}a=1", "b=2=3"]);
        assert_eq!(fields(marked, &[]).unwrap(), all);
        let folder = throng_testkit::TempFolder::new("tokens");
        let with_tokens = |header: &[&str]| {
            let path = folder.write("tokens", "one\ntwo\n");
            IdentityArgs { tokens: Some(path), ..args(header, None, &[]) }
        };
        // Tokens replace their place, if there is one, and otherwise are bearer tokens.
        assert_eq!(fields(with_tokens(&[]), &["/ws"]).unwrap(), ["Authorization: Bearer {token}"]);
        assert_eq!(fields(with_tokens(&["X: {token}"]), &[]).unwrap(), ["X: {token}"]);
        assert_eq!(fields(with_tokens(&[]), &["/ws?user={token}"]).unwrap(), [""; 0]);
    }

    #[test]
    fn mistakes_teach() {
        let twice = fields(args(&["authorization: Basic x"], Some("abc"), &[]), &[]).unwrap_err();
        assert!(twice.contains("leave out one"), "{twice}");
        let missing =
            IdentityArgs { tokens: Some("/nowhere/tokens".into()), ..IdentityArgs::default() };
        let missing = fields(missing, &[]).unwrap_err();
        assert!(missing.contains("--tokens /nowhere/tokens cannot be read"), "{missing}");
        assert!(parse_header("Accept").unwrap_err().contains("'Name: value'"));
        for cookie in ["a", "=1", "a=1; b=2"] {
            assert!(parse_cookie(cookie).unwrap_err().contains("NAME=VALUE"), "{cookie}");
        }
    }
}
