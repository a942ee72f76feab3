//! Each attack on tokens that is known from other libraries, and each claim.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair,
};
use jsonwebtoken::EncodingKey;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{Algorithm, Key, KeyError, KeySet, MAX_TOKEN_BYTES, TokenError, Verifier};

const SECRET: &[u8] = b"a secret of thirty-two bytes or more";

fn algorithm(name: &str) -> Algorithm {
    name.parse().unwrap()
}

fn hs256() -> Verifier {
    Verifier::new().keys([Key::secret(algorithm("HS256"), SECRET).unwrap()])
}

fn signed(header: Value, claims: &Value, key: &EncodingKey) -> String {
    let header: jsonwebtoken::Header = serde_json::from_value(header).unwrap();
    jsonwebtoken::encode(&header, claims, key).unwrap()
}

fn by_secret(claims: &Value) -> String {
    let key = EncodingKey::from_secret(SECRET).unwrap();
    signed(json!({"alg": "HS256", "typ": "JWT"}), claims, &key)
}

/// Returns seconds after 1970, `ahead` of now.
fn now(ahead: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs() as i64 + ahead
}

/// Makes base64 as in a token.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digit = |bits: u32| DIGITS[(bits & 63) as usize] as char;
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let digits = [bits >> 18, bits >> 12, bits >> 6, bits].map(digit);
        text.extend(&digits[..=three.len()]);
    }
    text
}

#[test]
fn rfc7519_4_1_each_claim_is_read() {
    let expires = now(600);
    let claims = hs256()
        .verify(&by_secret(&json!({
            "sub": "ada", "exp": expires, "info": {"name": "Ada"},
            "channels": ["news"], "channel": "lobby",
            "join": "chat.*", "publish": ["chat.1", "chat.2"], "history": [],
            "presence": ["chat.>"], "other": [1, 2],
        })))
        .unwrap();
    assert_eq!(claims.user.as_deref(), Some("ada"));
    let seconds = claims.expires.unwrap().duration_since(UNIX_EPOCH).unwrap();
    assert_eq!(seconds, Duration::from_secs(expires as u64));
    assert_eq!(claims.info, Some(json!({"name": "Ada"})));
    assert_eq!(claims.channels, ["news", "lobby"]);
    assert_eq!(claims.join, ["chat.*"]);
    assert_eq!(claims.publish, ["chat.1", "chat.2"]);
    assert!(claims.history.is_empty());
    assert_eq!(claims.presence, ["chat.>"]);
}

#[test]
fn a_time_may_be_thirty_seconds_off() {
    for (claims, verdict) in [
        (json!({"exp": now(-10)}), None),
        (json!({"exp": now(-60)}), Some(TokenError::Expired)),
        (json!({"nbf": now(10)}), None),
        (json!({"nbf": now(60)}), Some(TokenError::NotYet)),
        (json!({}), None),
    ] {
        assert_eq!(hs256().verify(&by_secret(&claims)).err(), verdict, "{claims}");
    }
}

#[test]
fn audience_and_issuer_are_required_once_they_are_set() {
    let verifier = hs256().audience(Some("chat".to_owned())).issuer(Some("app".to_owned()));
    for (claims, verdict) in [
        (json!({"aud": "chat", "iss": "app"}), None),
        (json!({"aud": ["other", "chat"], "iss": "app"}), None),
        (json!({"aud": "other", "iss": "app"}), Some(TokenError::Audience)),
        (json!({"iss": "app"}), Some(TokenError::Audience)),
        (json!({"aud": "chat", "iss": "other"}), Some(TokenError::Issuer)),
        (json!({"aud": "chat"}), Some(TokenError::Issuer)),
    ] {
        assert_eq!(verifier.verify(&by_secret(&claims)).err(), verdict, "{claims}");
    }
    // Without the settings, any will do.
    assert!(hs256().verify(&by_secret(&json!({"aud": "chat", "iss": "app"}))).is_ok());
}

#[test]
fn rfc8725_2_1_a_token_without_a_signature_is_refused() {
    let claims = base64(br#"{"sub":"root"}"#);
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"None"}"#,
        r#"{"alg":"NONE"}"#,
        r#"{"alg":""}"#,
        r#"{"alg":null}"#,
        r#"{"typ":"JWT"}"#,
    ] {
        let token = format!("{}.{claims}.", base64(header.as_bytes()));
        assert_eq!(hs256().verify(&token), Err(TokenError::Malformed), "{header}");
    }
    let token = format!("{}.{claims}.", base64(br#"{"alg":"HS256"}"#));
    assert_eq!(hs256().verify(&token), Err(TokenError::Signature));
}

/// A pair of keys, its public part in PEM, and how it signs.
fn pair(curve: &'static EcdsaSigningAlgorithm) -> (EncodingKey, Vec<u8>) {
    let random = SystemRandom::new();
    let private = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(curve, private.as_ref()).unwrap();
    (EncodingKey::from_ec_der(private.as_ref()), public_pem(&ec_info(pair.public_key().as_ref())))
}

/// Wraps a point as a SubjectPublicKeyInfo (RFC 5480): 65 bytes of P-256, 97 of P-384.
fn ec_info(point: &[u8]) -> Vec<u8> {
    const EC: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    let curve: &[u8] = match point.len() {
        65 => &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        _ => &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22],
    };
    sequence(&[sequence(&[EC.to_vec(), curve.to_vec()]), bits(point)])
}

fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    let content = parts.concat();
    [vec![0x30, content.len() as u8], content].concat()
}

fn bits(bytes: &[u8]) -> Vec<u8> {
    [vec![0x03, bytes.len() as u8 + 1, 0x00], bytes.to_vec()].concat()
}

fn public_pem(der: &[u8]) -> Vec<u8> {
    let padded = base64(der).replace('-', "+").replace('_', "/");
    let padding = "=".repeat((4 - padded.len() % 4) % 4);
    format!("-----BEGIN PUBLIC KEY-----\n{padded}{padding}\n-----END PUBLIC KEY-----\n").into()
}

#[test]
fn rfc8725_2_1_a_public_key_is_no_secret() {
    let (_, pem) = pair(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let verifier = Verifier::new().keys([Key::public(algorithm("ES256"), &pem).unwrap()]);
    // An attacker has the public key, and signs with it as a secret.
    let forged = EncodingKey::from_secret(&pem).unwrap();
    let token = signed(json!({"alg": "HS256", "typ": "JWT"}), &json!({"sub": "root"}), &forged);
    assert_eq!(verifier.verify(&token), Err(TokenError::UnknownKey));
    // Nor can it be configured.
    let refused = Key::secret(algorithm("HS256"), &pem).unwrap_err();
    assert_eq!(refused, KeyError::SecretIsPem);
}

#[test]
fn rfc7518_3_4_a_curve_has_one_algorithm() {
    let (p256, pem256) = pair(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let (p384, pem384) = pair(&ECDSA_P384_SHA384_FIXED_SIGNING);
    for (name, pem) in
        [("ES256", &pem384), ("ES384", &pem256), ("EdDSA", &pem256), ("RS256", &pem256)]
    {
        let refused = Key::public(algorithm(name), pem).unwrap_err();
        assert!(matches!(refused, KeyError::Other { .. }), "{name}: {refused}");
    }
    let verifier = Verifier::new().keys([Key::public(algorithm("ES256"), &pem256).unwrap()]);
    let claims = json!({"sub": "ada"});
    let own = signed(json!({"alg": "ES256"}), &claims, &p256);
    assert_eq!(verifier.verify(&own).unwrap().user.as_deref(), Some("ada"));
    let other = signed(json!({"alg": "ES384"}), &claims, &p384);
    assert_eq!(verifier.verify(&other), Err(TokenError::UnknownKey));
}

#[test]
fn an_ed25519_key_of_a_set_verifies() {
    let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(private.as_ref()).unwrap();
    let set = json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "x": base64(pair.public_key().as_ref()), "kid": "now"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        {"kty": "oct", "k": base64(SECRET), "alg": "HS256"},
        {"kty": "newer"},
    ]});
    let set = KeySet::parse(set.to_string().as_bytes()).unwrap();
    assert_eq!(set.keys().len(), 1, "a set has no secrets and no unknown keys: {set:?}");
    let verifier = Verifier::new().keys(set.keys().to_vec());
    let key = EncodingKey::from_ed_der(private.as_ref());
    let with_id = |id: &str| signed(json!({"alg": "EdDSA", "kid": id}), &json!({}), &key);
    assert!(verifier.verify(&with_id("now")).is_ok());
    for id in ["other", "../now", "https://example.com/keys", "now' OR '1'='1"] {
        assert_eq!(verifier.verify(&with_id(id)), Err(TokenError::UnknownKey), "{id}");
    }
    let without = signed(json!({"alg": "EdDSA"}), &json!({}), &key);
    assert!(verifier.verify(&without).is_ok());
}

#[test]
fn a_set_without_usable_keys_is_refused() {
    for text in ["", "{}", "[]", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#] {
        assert!(KeySet::parse(text.as_bytes()).is_err(), "{text}");
    }
    let long = vec![b' '; crate::MAX_SET_BYTES + 1];
    assert!(KeySet::parse(&long).unwrap_err().contains("longer than"));
}

#[test]
fn while_keys_change_both_verify() {
    let other = b"another secret, which came before this one";
    let keys = [SECRET, other].map(|secret| Key::secret(algorithm("HS256"), secret).unwrap());
    let verifier = Verifier::new().keys(keys);
    let header = json!({"alg": "HS256"});
    let [new, old] = [SECRET, other].map(|secret| {
        signed(
            header.clone(),
            &json!({"exp": now(-60)}),
            &EncodingKey::from_secret(secret).unwrap(),
        )
    });
    // The error is about the key that fits.
    assert_eq!(verifier.verify(&new), Err(TokenError::Expired));
    assert_eq!(verifier.verify(&old), Err(TokenError::Expired));
}

#[test]
fn rfc7518_3_2_a_secret_is_as_long_as_the_hash() {
    for (name, least) in [("HS256", 32), ("HS384", 48), ("HS512", 64)] {
        assert!(Key::secret(algorithm(name), &vec![b'x'; least]).is_ok(), "{name}");
        let refused = Key::secret(algorithm(name), &vec![b'x'; least - 1]).unwrap_err();
        assert!(refused.to_string().contains(&format!("openssl rand -hex {least}")), "{refused}");
    }
    assert!(Key::secret(algorithm("ES256"), SECRET).is_err());
    assert!(Key::public(algorithm("HS256"), SECRET).is_err());
    assert!("none".parse::<Algorithm>().is_err());
}

#[test]
fn rfc7515_4_1_11_an_unknown_critical_header_is_refused() {
    let key = EncodingKey::from_secret(SECRET).unwrap();
    let header = json!({"alg": "HS256", "crit": ["exp"], "exp": 1});
    let token = signed(header, &json!({"sub": "ada"}), &key);
    assert_eq!(hs256().verify(&token), Err(TokenError::Malformed));
}

#[test]
fn a_claim_of_the_wrong_type_is_refused() {
    for claims in [json!({"join": 7}), json!({"sub": 7}), json!({"exp": "soon"}), json!([])] {
        assert_eq!(hs256().verify(&by_secret(&claims)), Err(TokenError::Malformed), "{claims}");
    }
}

#[test]
fn a_token_has_a_longest_length() {
    let token = by_secret(&json!({"sub": "x".repeat(MAX_TOKEN_BYTES)}));
    assert_eq!(hs256().verify(&token), Err(TokenError::Malformed));
}

#[test]
fn neither_a_key_nor_an_error_shows_its_bytes() {
    let key = Key::secret(algorithm("HS256"), SECRET).unwrap().id("main");
    assert_eq!(format!("{key:?}"), "Key(Some(\"main\"), HS256)");
}

proptest! {
    #[test]
    fn no_text_is_a_token_by_chance(text in ".{0,200}") {
        prop_assert!(hs256().verify(&text).is_err());
    }

    /// One changed byte anywhere makes a token invalid, or leaves its meaning.
    #[test]
    fn a_changed_token_is_refused(at in 0usize..1000, byte in b'!'..b'~') {
        let token = by_secret(&json!({"sub": "ada", "join": ["chat.1"]}));
        let mut changed = token.clone().into_bytes();
        let at = at % changed.len();
        changed[at] = byte;
        let changed = String::from_utf8(changed).unwrap();
        prop_assume!(changed != token);
        prop_assert!(hs256().verify(&changed).is_err());
    }
}
