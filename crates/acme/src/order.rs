//! One order: its domains are validated, then the authority issues the certificate.

use std::path::Path;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationHandle, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error,
    Identifier, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use throng_proto::pem::Wanted;
use throng_tls::{Challenges, files};
use zeroize::Zeroizing;

use crate::settings::Challenge;

/// The policy by which the state of an order is polled.
const POLLS: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));

/// A certificate with its chain to a root, and its private key, in PEM.
pub(crate) struct Certified {
    pub(crate) chain: String,
    pub(crate) key: Zeroizing<String>,
}

impl Certified {
    /// Returns them in the form that a server uses.
    pub(crate) fn certified_key(&self) -> Result<CertifiedKey, Failure> {
        let what = Path::new("the certificate that was issued");
        let [chain, key] =
            [self.chain.as_bytes(), self.key.as_bytes()].map(|text| Zeroizing::new(text.to_vec()));
        let chain = files::chain(what, &chain, Wanted::Chain)?.certificates;
        let key = files::key(what, &key)?;
        let certified = CertifiedKey::new(chain, any_supported_type(&key)?);
        certified.keys_match()?;
        Ok(certified)
    }
}

/// The cause of a failure.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    /// The type of the authority's answer, such as `urn:ietf:params:acme:error:rateLimited`.
    pub(crate) kind: Option<String>,
}

impl<T: std::fmt::Display> From<T> for Failure {
    fn from(error: T) -> Self {
        Self { reason: error.to_string(), kind: None }
    }
}

impl Failure {
    pub(crate) fn of(error: Error) -> Self {
        match error {
            Error::Api(problem) => Self::of_problem(&problem),
            error => Self::from(error),
        }
    }

    fn of_problem(problem: &Problem) -> Self {
        let kind = problem.r#type.clone();
        let mut reason = problem.detail.clone().unwrap_or_default();
        for part in &problem.subproblems {
            let name = part.identifier.as_ref().map(|it| format!("{}: ", it.authorized(false)));
            let detail = part.detail.as_deref().unwrap_or_default();
            reason += &format!("; {}{detail}", name.unwrap_or_default());
        }
        match (&kind, problem.status) {
            (Some(kind), Some(status)) => reason += &format!(" ({status}, {kind})"),
            (Some(kind), None) => reason += &format!(" ({kind})"),
            (None, Some(status)) => reason += &format!(" ({status})"),
            (None, None) => {}
        }
        Self { reason, kind }
    }

    /// Returns whether the authority has refused the request with this error.
    pub(crate) fn is(&self, name: &str) -> bool {
        let kind =
            self.kind.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
        kind == Some(name)
    }
}

/// Answers to challenges, which are withdrawn when it is dropped.
struct Offer<'a>(&'a Challenges);

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Orders a certificate for `names`, as a replacement of `replaced`.
pub(crate) async fn order(
    account: &Account,
    names: &[String],
    challenge: Challenge,
    challenges: &Challenges,
    replaced: Option<&CertificateDer<'_>>,
) -> Result<Certified, Failure> {
    let mut order = begin(account, names, replaced).await?;
    let offer = Offer(challenges);
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(Failure::of)?;
        match authorization.status {
            AuthorizationStatus::Pending => {
                answer(&mut authorization, challenge, challenges).await?;
            }
            AuthorizationStatus::Valid => {}
            status => return Err(format!("an authorization of the order is {status:?}").into()),
        }
    }
    let status = order.poll_ready(&POLLS).await;
    drop(offer);
    match status {
        Ok(OrderStatus::Ready) => {}
        Ok(_) => return Err(refusal(&mut order).await),
        Err(error) => {
            let failure = Failure::of(error);
            let refusal = refusal(&mut order).await;
            return Err(if refusal.kind.is_some() { refusal } else { failure });
        }
    }
    let key = Zeroizing::new(order.finalize().await.map_err(Failure::of)?);
    let chain = order.poll_certificate(&POLLS).await.map_err(Failure::of)?;
    Ok(Certified { chain, key })
}

/// Creates the order. An authority may refuse an order because it names the certificate that it
/// replaces (RFC 9773 section 5): then one without that name follows. That does not apply to errors
/// that a later attempt may not meet: authorities limit renewals less than other orders.
async fn begin(
    account: &Account,
    names: &[String],
    replaced: Option<&CertificateDer<'_>>,
) -> Result<Order, Failure> {
    let identifiers: Vec<_> = names.iter().cloned().map(Identifier::Dns).collect();
    let replaced = replaced.and_then(|it| CertificateIdentifier::try_from(it).ok());
    if let Some(replaced) = replaced {
        match account.new_order(&NewOrder::new(&identifiers).replaces(replaced)).await {
            Ok(order) => return Ok(order),
            Err(error @ (Error::Api(_) | Error::Unsupported(_) | Error::Other(_))) => {
                let failure = Failure::of(error);
                if failure.is("rateLimited") || failure.is("badNonce") {
                    return Err(failure);
                }
            }
            Err(error) => return Err(Failure::of(error)),
        }
    }
    account.new_order(&NewOrder::new(&identifiers)).await.map_err(Failure::of)
}

/// Offers the answer to a challenge, and asks the authority to check it.
async fn answer<'a>(
    authorization: &'a mut AuthorizationHandle<'a>,
    wanted: Challenge,
    challenges: &Challenges,
) -> Result<(), Failure> {
    let name = authorization.identifier().to_string();
    let (kind, label) = match wanted {
        Challenge::TlsAlpn01 => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
        Challenge::Http01 => (ChallengeType::Http01, "http-01"),
    };
    let Some(mut challenge) = authorization.challenge(kind) else {
        return Err(format!("the authority does not offer the challenge {label} for {name}").into());
    };
    let answer = challenge.key_authorization();
    match wanted {
        Challenge::Http01 => challenges.add_key_authorization(&challenge.token, answer.as_str()),
        Challenge::TlsAlpn01 => {
            let certificate = validating(&name, answer.digest().as_ref())?;
            challenges.add_certificate(&name, certificate);
        }
    }
    challenge.set_ready().await.map_err(Failure::of)
}

/// Creates the certificate that validates a name (RFC 8737 section 3).
fn validating(name: &str, digest: &[u8]) -> Result<CertifiedKey, Failure> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = Zeroizing::new(key);
    Ok(CertifiedKey::new(vec![certificate.der().clone()], any_supported_type(&key)?))
}

/// Returns why an authority did not validate the domains of an order.
async fn refusal(order: &mut Order) -> Failure {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        if let Some(problem) = state.challenges.iter().find_map(|it| it.error.as_ref()) {
            let failure = Failure::of_problem(problem);
            return Failure { reason: format!("{name}: {}", failure.reason), ..failure };
        }
    }
    "the authority did not validate the domains".into()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use rustls::client::ClientConnection;
    use rustls::{AlertDescription, Error};
    use throng_io::TlsFailure;
    use throng_tls::handshake::{Progress, Secrets};
    use throng_tls::{
        ClientConfigs, ClientSettings, Managed, TlsClient, TlsConfig, TlsServer, Trust,
    };

    use super::*;
    use crate::settings::AcmeSettings;

    fn managed(file: PathBuf, domains: Vec<String>, challenges: &Arc<Challenges>) -> Managed {
        Managed { file, domains, challenges: Arc::clone(challenges), unwritten: Arc::default() }
    }

    /// A client with these protocols.
    fn client(name: &str, protocols: &[&[u8]]) -> ClientConnection {
        let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
        let configs = ClientConfigs::load(settings).unwrap();
        let own = TlsClient::new(&configs, name).unwrap().blocking_config();
        let mut config = Arc::unwrap_or_clone(own);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let name = name.to_owned().try_into().unwrap();
        ClientConnection::new(Arc::new(config), name).unwrap()
    }

    /// Runs the handshake of a client that offers these protocols. Returns the certificate that it
    /// received, or the server's failure after the client's alert.
    fn shake(
        server: &TlsServer,
        name: &str,
        protocols: &[&[u8]],
    ) -> Result<Vec<u8>, (TlsFailure, Option<Error>)> {
        let mut client = client(name, protocols);
        let mut handshake = server.handshake().unwrap();
        let mut secrets = Secrets::default();
        loop {
            let mut said = Vec::new();
            client.write_tls(&mut said).unwrap();
            handshake.receive(&said).unwrap();
            let mut answer = Vec::new();
            let progress = handshake.advance(&mut secrets, &mut answer);
            let mut heard = Ok(());
            let mut rest = answer.as_slice();
            while !rest.is_empty() && heard.is_ok() {
                client.read_tls(&mut rest).unwrap();
                heard = client.process_new_packets().map(drop);
            }
            match progress {
                Ok(Progress::NeedsInput) => {}
                Ok(Progress::Complete) => break,
                Err(failed) => return Err((failed.kind(), heard.err())),
            }
        }
        Ok(client.peer_certificates().unwrap()[0].to_vec())
    }

    #[test]
    fn rfc8737_3_a_validation_is_shown_the_certificate_of_its_challenge() {
        let file = AcmeSettings::new("/nonexistent".into()).certificate_file();
        let challenges = Arc::new(Challenges::default());
        let domains = vec!["a.example".to_owned()];
        let managed = Some(managed(file, domains, &challenges));
        let server = TlsServer::load(TlsConfig { managed, ..TlsConfig::new(Vec::new()) }).unwrap();
        let digest = [7; 32];
        challenges.add_certificate("A.example", validating("a.example", &digest).unwrap());

        // The client receives the certificate and refuses it for its critical extension, which only
        // authorities understand.
        let (refused, _) = shake(&server, "a.example", &[b"acme-tls/1"]).unwrap_err();
        assert_eq!(refused, TlsFailure::Alert(46));
        let shown = challenges.tls_alpn_01("a.example").unwrap().cert[0].clone();
        let (_, parsed) = x509_parser::parse_x509_certificate(&shown).unwrap();
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 1);
        // id-pe-acmeIdentifier, critical, with an octet string.
        let extension =
            parsed.extensions().iter().find(|it| it.oid.to_id_string() == "1.3.6.1.5.5.7.1.31");
        let extension = extension.unwrap();
        assert!(extension.critical);
        assert_eq!(extension.value, [&[4, 32][..], &digest].concat());

        let refused = Err((
            TlsFailure::LacksCertificate,
            Some(Error::AlertReceived(AlertDescription::UnrecognisedName)),
        ));
        // Another name, a client that is not an authority, and a handshake after the validation.
        assert_eq!(shake(&server, "b.example", &[b"acme-tls/1"]), refused);
        assert_eq!(shake(&server, "a.example", &[b"http/1.1", b"acme-tls/1"]), refused);
        assert_eq!(shake(&server, "a.example", &[]), refused);
        drop(Offer(&challenges));
        assert_eq!(shake(&server, "a.example", &[b"acme-tls/1"]), refused);
    }

    #[test]
    fn validations_and_names_to_be_certified_are_not_passed_through() {
        let file = AcmeSettings::new("/nonexistent".into()).certificate_file();
        let challenges = Arc::new(Challenges::default());
        let domains = vec!["A.example".to_owned()];
        let managed = Some(managed(file, domains, &challenges));
        let passthrough = ["*", "*.example", "c.example"].map(Box::from).into();
        let config = TlsConfig { managed, passthrough, ..TlsConfig::new(Vec::new()) };
        let server = TlsServer::load(config).unwrap();
        let route = |name: &str, protocols: &[&[u8]]| {
            let mut hello = Vec::new();
            client(name, protocols).write_tls(&mut hello).unwrap();
            server.route(&hello).map(|(pattern, _)| String::from(pattern))
        };
        // It has no certificate yet, and its order has not begun.
        assert_eq!(route("a.example", &[]), None);
        assert_eq!(route("b.example", &[]).as_deref(), Some("*.example"));
        // A backend may also obtain certificates by ACME.
        let validation = &[&b"acme-tls/1"[..]];
        assert_eq!(route("c.example", validation).as_deref(), Some("c.example"));
        assert_eq!(route("b.other", validation).as_deref(), Some("*"));
        for name in ["a.example", "c.example", "b.other"] {
            challenges.add_certificate(name, validating(name, &[7; 32]).unwrap());
            assert_eq!(route(name, validation), None, "{name}");
        }
        assert_eq!(route("c.example", &[b"acme-tls/1", b"h2"]).as_deref(), Some("c.example"));
        drop(Offer(&challenges));
        assert_eq!(route("c.example", validation).as_deref(), Some("c.example"));
    }

    #[test]
    fn a_refusal_has_the_words_of_the_authority_and_its_type() {
        let text = r#"{"type": "urn:ietf:params:acme:error:malformed", "detail": "no",
            "status": 400, "subproblems": [{
              "type": "urn:ietf:params:acme:error:dns", "detail": "no address",
              "identifier": {"type": "dns", "value": "a.example"}}]}"#;
        let failure = Failure::of_problem(&serde_json::from_str(text).unwrap());
        assert_eq!(
            failure.reason,
            "no; a.example: no address (400, urn:ietf:params:acme:error:malformed)"
        );
        assert!(failure.is("malformed") && !failure.is("dns"));
    }
}
