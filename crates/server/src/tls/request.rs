//! The TLS of a request's connection.

use std::sync::Arc;

use throng_engine::Cx;
use throng_http::Request;
use throng_io::TlsInfo;
use throng_tls::Certificate;

use super::TlsVersion;

/// The TLS of the connection that a request came on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConnection(Arc<TlsInfo>);

/// The certificate that a client has presented. It was verified: see
/// [`Tls::client_auth`](super::Tls::client_auth).
#[derive(Clone, Debug)]
pub struct ClientCertificate<'a> {
    chain: &'a [Box<[u8]>],
    content: Certificate,
}

/// Requests on connections with TLS.
pub trait RequestTls {
    /// Returns the TLS of the connection; `None` if it has none.
    fn tls(&self) -> Option<&TlsConnection>;
}

impl RequestTls for Request<'_> {
    fn tls(&self) -> Option<&TlsConnection> {
        self.extension()
    }
}

impl TlsConnection {
    /// Returns the TLS of a connection, if it has any.
    pub(crate) fn of(cx: &Cx<'_>) -> Option<Self> {
        cx.tls().map(|info| Self(Arc::clone(info)))
    }

    /// Returns the negotiated version.
    #[must_use]
    pub fn version(&self) -> TlsVersion {
        if self.0.version == 0x0303 { TlsVersion::Tls12 } else { TlsVersion::Tls13 }
    }

    /// Returns the registered number of the cipher suite, such as 0x1301 for
    /// `TLS_AES_128_GCM_SHA256`.
    #[must_use]
    pub fn cipher_suite(&self) -> u16 {
        self.0.cipher_suite
    }

    /// Returns the name that the client asked for (SNI).
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        self.0.server_name.as_deref()
    }

    /// Returns the negotiated application protocol (ALPN).
    #[must_use]
    pub fn alpn(&self) -> Option<&str> {
        std::str::from_utf8(self.0.alpn.as_deref()?).ok()
    }

    /// Returns whether the client has resumed an earlier session, and with it the certificate that
    /// it presented in that session.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.0.is_resumed
    }

    /// Returns the client's certificate, if it has presented one. It is parsed at each call.
    #[must_use]
    pub fn client_certificate(&self) -> Option<ClientCertificate<'_>> {
        let chain = &self.0.peer_certificates;
        let content = Certificate::parse(chain.first()?)?;
        Some(ClientCertificate { chain, content })
    }
}

impl ClientCertificate<'_> {
    /// Returns the subject, such as `CN=client.example, O=Example`.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.content.subject
    }

    /// Returns the subject's alternative names: host names, addresses, mail addresses and URIs.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.content.names
    }

    /// Returns the serial number in hexadecimal, such as `0a:1b`.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.content.serial
    }

    /// Returns the SHA-256 of the certificate.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        self.content.fingerprint
    }

    /// Returns the certificate and the chain that the client sent with it, in DER.
    pub fn chain(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.chain.iter().map(AsRef::as_ref)
    }
}

/// Makes the TLS of the connection part of a request.
pub(crate) fn attach(request: &mut Request<'_>, cx: &Cx<'_>) {
    if let Some(tls) = TlsConnection::of(cx) {
        request.insert_extension(tls);
    }
}
