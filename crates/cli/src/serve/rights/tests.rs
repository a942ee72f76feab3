use throng_config::Sources;
use throng_testkit::TempFolder;

use super::{Granting, Rights, Topic, Who};
use crate::serve::rights::token::Claims;
use crate::serve::rights::{Pattern, Right};
use crate::serve::{Settings, TABLE};

fn settings(text: &str, set: &[&str]) -> Result<Settings, String> {
    let mut sources = Sources::new(&TABLE);
    sources.file("t.toml", text);
    set.iter().for_each(|pair| sources.set(pair));
    Settings::from_draft(sources.finish()).map_err(|errors| errors.to_string())
}

fn rights(rules: &[(&str, Granting)]) -> Rights {
    let rule = |(pattern, granting): &(&str, Granting)| (Pattern::new(pattern).unwrap(), *granting);
    Rights { rules: rules.iter().map(rule).collect(), ..Rights::default() }
}

fn joins(who: Who) -> Granting {
    [Some(who), None, None]
}

fn claims(user: &str, join: &[&str]) -> Claims {
    let join = join.iter().map(|pattern| (*pattern).to_owned()).collect();
    Claims { user: Some(user.to_owned()), join, ..Claims::default() }
}

#[test]
fn each_word_admits_the_clients_that_it_names() {
    let none = None;
    let ada = claims("ada", &["chat.*"]);
    let listed = Claims { channels: vec!["x.ada".to_owned()], ..Claims::default() };
    for (who, expected) in [
        (Who::Anyone, [true, true, true]),
        (Who::Token, [false, true, true]),
        (Who::Claim, [false, false, true]),
        (Who::User, [false, true, false]),
        (Who::NoOne, [false, false, false]),
    ] {
        let rights = rights(&[("x.*", joins(who))]);
        let may = |claims| rights.allows(claims, Right::Join, &Topic::Channel("x.ada"));
        assert_eq!([may(none), may(Some(&ada)), may(Some(&listed))], expected, "{who:?}");
    }
}

#[test]
fn a_channel_names_its_users() {
    let rights = rights(&[(">", joins(Who::User))]);
    let ada = claims("ada", &[]);
    for (channel, may) in [
        ("inbox.ada", true),
        ("inbox.adam", false),
        ("inbox.ada.old", false),
        ("ada", false),
        ("dialog#ada,bob", true),
        ("dialog#bob,ada", true),
        ("dialog#bob", false),
        ("dialog.ada#bob", false),
        ("dialog#ad", false),
        ("dialog#", false),
    ] {
        let found = rights.allows(Some(&ada), Right::Join, &Topic::Channel(channel));
        assert_eq!(found, may, "{channel}");
    }
    let nameless = Claims { user: Some(String::new()), ..Claims::default() };
    assert!(!rights.allows(Some(&nameless), Right::Join, &Topic::Channel("dialog#")));
}

#[test]
fn without_a_rule_only_a_claim_admits_unless_channels_are_open() {
    let mut rights = rights(&[("a.*", joins(Who::NoOne))]);
    let may = |rights: &Rights, claims: Option<&Claims>| {
        rights.allows(claims, Right::Join, &Topic::Channel("b"))
    };
    assert!(!may(&rights, None));
    assert!(may(&rights, Some(&claims("ada", &["b"]))));
    rights.open = true;
    assert!(may(&rights, None));
    // A right that a rule does not name is as in channels without a rule.
    let publishes = rights.allows(None, Right::Publish, &Topic::Channel("a.1"));
    assert!(publishes);
}

/// A pattern must not give what a rule denies for one of its channels.
#[test]
fn a_pattern_is_joined_with_the_rights_to_all_its_channels() {
    let mut rights = rights(&[
        ("news.secret", joins(Who::NoOne)),
        ("news.*", joins(Who::Anyone)),
        ("chat.>", joins(Who::Claim)),
    ]);
    let may = |rights: &Rights, claims: Option<&Claims>, pattern| {
        let topic = Topic::Pattern(Pattern::new(pattern).unwrap());
        rights.allows(claims, Right::Join, &topic)
    };
    rights.open = true;
    assert!(!may(&rights, None, "news.*"));
    assert!(!may(&rights, None, ">"));
    assert!(may(&rights, None, "other.*"));
    let ada = claims("ada", &["chat.1.*"]);
    assert!(may(&rights, Some(&ada), "chat.1.*"));
    assert!(!may(&rights, Some(&ada), "chat.*.*"));
    assert!(!may(&rights, None, "chat.1.*"));
}

#[test]
fn channels_are_open_on_loopback_alone() {
    for (set, open) in [
        (&[][..], true),
        (&["listen=[::1]:0"], true),
        (&["listen=0.0.0.0:0"], false),
        (&["listen=127.0.0.1:0,0.0.0.0:0"], false),
        (&["listen=unix:/tmp/x.sock"], false),
        (&["trusted_proxies=127.0.0.1"], false),
        (&["allowed_hosts=example.com"], false),
        (&["listen=0.0.0.0:0", "open=true"], true),
        (&["open=false"], false),
    ] {
        assert_eq!(settings("", set).unwrap().rights.get().open, open, "{set:?}");
    }
}

#[test]
fn keys_are_read_from_files_and_mistakes_have_their_place() {
    let folder = TempFolder::new("token-keys");
    let secret = folder.write("secret", "a secret of thirty-two bytes or more\n");
    let short = folder.write("short", "short\n");
    let read = |algorithm: &str, field: &str, path: &std::path::Path| {
        let text = format!(
            "[[token_key]]\nalgorithm = \"{algorithm}\"\n{field} = {:?}\n",
            path.display().to_string()
        );
        settings(&text, &[])
    };
    let settings = read("HS256", "secret_file", &secret).unwrap();
    assert!(settings.rights.get().verifier.has_keys());
    for (algorithm, field, path, expected) in [
        ("HS256", "secret_file", &short, "it has 5 bytes"),
        ("HS512", "secret_file", &secret, "at least 64"),
        ("ES256", "secret_file", &secret, "write public_key_file"),
        ("HS256", "public_key_file", &secret, "write secret_file"),
        ("ES256", "public_key_file", &secret, "it has no public key in PEM"),
        ("none", "secret_file", &secret, "token_keys[0].algorithm is \"none\""),
    ] {
        let message = read(algorithm, field, path).unwrap_err();
        assert!(message.contains(expected), "{algorithm} {field}: {message}");
        assert!(!message.contains("thirty-two"), "a secret is in a message: {message}");
    }
    let message = self::settings("[[token_key]]\nalgorithm = \"HS256\"\n", &[]);
    assert!(message.unwrap_err().contains("write one of secret_file"));
}

#[test]
fn a_rule_that_needs_tokens_without_keys_is_a_warning() {
    let settings = settings("[[channel]]\nname = \"a\"\nmay_publish = \"token\"\n", &[]).unwrap();
    let [warning] = &settings.warnings[..] else { panic!("{:?}", settings.warnings) };
    assert!(warning.starts_with("may_publish of \"a\" needs tokens"), "{warning}");
}
