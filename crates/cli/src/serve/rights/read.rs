//! Reads the settings of rights and of the keys of tokens.

use throng::channel::Pattern;
use throng_config::{Draft, Record};

use super::{ApiKeys, Granting, Right, Rights, Verifier, Who};
use crate::hosts::is_loopback;
use crate::serve::settings::Rule;

/// The words of [`Who`], for the table of keys.
pub(crate) const WHO: &[&str] = &["anyone", "token", "claim", "user", "none"];

/// Reads who has which right by a rule of channels.
pub(crate) fn rule(record: &Record<'_>) -> Granting {
    Right::ALL.map(|right| {
        record.get::<Option<String>>(right.field()).map(|word| match word.as_str() {
            "anyone" => Who::Anyone,
            "token" => Who::Token,
            "claim" => Who::Claim,
            "user" => Who::User,
            _ => Who::NoOne,
        })
    })
}

/// Reads all rights: `rules` have the rights of channels, which listen at these addresses.
pub(crate) fn rights(draft: &Draft, listen: &[String], rules: &[Rule]) -> Rights {
    let open = draft.get::<Option<bool>>("open").unwrap_or_else(|| !is_public(draft, listen));
    let of_rule = |rule: &Rule| Some((Pattern::new(&rule.pattern).ok()?, rule.rights));
    let rights = Rights {
        open,
        rules: rules.iter().filter_map(of_rule).collect(),
        verifier: verifier(draft),
        #[cfg(feature = "tokens")]
        sets: sets(draft),
    };
    if !rights.has_keys() {
        warn_of_unused(draft, &rights);
    }
    rights
}

/// Returns whether others than users of this machine reach the server: directly, or by a proxy,
/// which has the addresses and names of its clients.
fn is_public(draft: &Draft, listen: &[String]) -> bool {
    !listen.iter().all(|address| is_loopback(address))
        || !draft.get::<Vec<String>>("trusted_proxies").is_empty()
        || draft.get::<Option<Vec<String>>>("allowed_hosts").is_some()
}

/// Warns of rules that no client satisfies.
fn warn_of_unused(draft: &Draft, rights: &Rights) {
    for (pattern, granting) in &rights.rules {
        let needs_token =
            |who: &Option<Who>| matches!(who, Some(Who::Token | Who::Claim | Who::User));
        for (right, _) in Right::ALL.iter().zip(granting).filter(|(_, who)| needs_token(who)) {
            draft.warn(format!(
                "{} of {:?} needs tokens, and no key verifies any: write a [[token_key]]",
                right.field(),
                pattern.as_str()
            ));
        }
    }
}

/// Reads the keys of the API.
#[cfg(feature = "tokens")]
pub(crate) fn api_keys(draft: &Draft) -> Option<ApiKeys> {
    let path = draft.path("api_keys_file")?;
    let parsed = match throng_io::file::read_text(&path) {
        Ok(text) => ApiKeys::parse(&text),
        Err(error) => Err(error.to_string()),
    };
    let key = "api_keys_file";
    parsed.map_err(|why| draft.wrong(key, format_args!("{}: {why}", path.display()))).ok()
}

#[cfg(not(feature = "tokens"))]
pub(crate) fn api_keys(_: &Draft) -> Option<ApiKeys> {
    None
}

#[cfg(not(feature = "tokens"))]
fn verifier(draft: &Draft) -> Verifier {
    for key in ["token_keys", "token_audience", "token_issuer", "token_jwks", "api_keys_file"] {
        if draft.values().is_set(key) {
            draft.wrong(key, "this build has no tokens: build it with the feature tokens");
        }
    }
    Verifier
}

/// Reads where sets of keys come from.
#[cfg(feature = "tokens")]
fn sets(draft: &Draft) -> Option<std::sync::Arc<super::sets::Sets>> {
    use super::sets::{Sets, Sources, check_url};

    let urls: Vec<String> = draft.get("token_jwks");
    for (at, url) in urls.iter().enumerate() {
        if let Err(remedy) = check_url(url) {
            draft.wrong(&format!("token_jwks[{at}]"), remedy);
        }
    }
    let (audience, issuer) = (draft.get("token_audience"), draft.get("token_issuer"));
    let sources = Sources { authorities: draft.path("token_jwks_ca"), audience, issuer, urls };
    (!sources.urls.is_empty()).then(|| Sets::new(sources))
}

/// Reads the keys of tokens.
#[cfg(feature = "tokens")]
fn verifier(draft: &Draft) -> Verifier {
    let records = draft.records("token_keys");
    if records.len() > throng_token::MAX_KEYS {
        draft.wrong("token_keys", format_args!("{} keys are the most", throng_token::MAX_KEYS));
    }
    Verifier::new()
        .keys(records.iter().filter_map(key))
        .audience(draft.get("token_audience"))
        .issuer(draft.get("token_issuer"))
}

#[cfg(feature = "tokens")]
fn key(record: &Record<'_>) -> Option<throng_token::Key> {
    use throng_token::{Algorithm, Key};

    let algorithm: Algorithm = record.parse("algorithm")?;
    let key = match (record.is_set("secret_file"), record.is_set("public_key_file")) {
        (true, false) => {
            let secret = |line: &str| {
                Key::secret(algorithm, line.as_bytes()).map_err(|error| error.to_string())
            };
            record.secret_file("secret_file", secret)?
        }
        (false, true) => {
            let path = record.path("public_key_file")?;
            let text = match throng_io::file::read(&path) {
                Ok(text) => text,
                Err(error) => {
                    record.wrong_field("public_key_file", format_args!("it {error}"));
                    return None;
                }
            };
            let key = Key::public(algorithm, &text);
            key.map_err(|error| record.wrong_field("public_key_file", error)).ok()?
        }
        _ => {
            record.wrong("write one of secret_file (HS256 and the like) and public_key_file");
            return None;
        }
    };
    let id = record.get::<Option<String>>("id");
    Some(match id {
        Some(id) => key.id(id),
        None => key,
    })
}
