//! A limit on the number of certificates that a peer may send.
//!
//! The search for a path to an authority tries all orders of certificates that have the same name:
//! nine such certificates among hundreds of others took 1.5 seconds, during which the shard did
//! nothing else.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

/// Maximum certificates of authorities that a peer may send with its own. Public authorities send
/// one to three; five that all match cost less than a millisecond.
pub const MAX_INTERMEDIATES: usize = 5;

/// A verifier that refuses long chains before it looks at their certificates.
#[derive(Debug)]
pub(crate) struct ChainLimit<V: ?Sized>(pub(crate) Arc<V>);

/// The error for a chain that is too long.
#[derive(Debug)]
struct ChainTooLong(usize);

impl std::fmt::Display for ChainTooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(sent) = self;
        write!(f, "{sent} certificates of authorities were sent, more than {MAX_INTERMEDIATES}")
    }
}

impl std::error::Error for ChainTooLong {}

fn check(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    match intermediates.len() {
        ..=MAX_INTERMEDIATES => Ok(()),
        sent => {
            let why = OtherError(Arc::new(ChainTooLong(sent)));
            Err(Error::InvalidCertificate(CertificateError::Other(why)))
        }
    }
}

impl<V: ClientCertVerifier + ?Sized> ClientCertVerifier for ChainLimit<V> {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check(intermediates)?;
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

impl<V: ServerCertVerifier + ?Sized> ServerCertVerifier for ChainLimit<V> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check(intermediates)?;
        self.0.verify_server_cert(end_entity, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.0.root_hint_subjects()
    }
}
