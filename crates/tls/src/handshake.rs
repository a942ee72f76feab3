//! Handshakes, which rustls does: the only file that uses rustls's connections.
//!
//! rustls gets one record at a time until the handshake is complete, so that it never opens a
//! record of the session. Then [`Session`] takes over its keys and the connection of rustls is
//! dropped. rustls exports keys and sequence numbers, but not the traffic secrets from which
//! updates are derived. Those are [captured](Secrets); `Session::new` checks at every handshake
//! that the keys are derived from them.

use std::fmt;
use std::mem;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, ClientHello, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, InsufficientSizeError, UnbufferedConnectionCommon,
    UnbufferedStatus,
};
use rustls::{
    CertificateError, ClientConfig, ConnectionTrafficSecrets, Error, ExtractedSecrets,
    HandshakeKind, InvalidMessage, OtherError, ProtocolVersion, ServerConfig, SideData,
};
use throng_io::{TlsFailure, TlsInfo};

use crate::alert::Alert;
pub use crate::capture::Secrets;
use crate::capture::{CAPTURED, Capture, Captured, Secret};
use crate::cipher::{Suite, Version};
use crate::fragments::may_have;
use crate::record::{ContentType, HEADER_LEN, MAX_PLAINTEXT};
use crate::session::{Direction, Session};

/// Maximum input that waits for the rest of a message. A client's certificate chain may be long.
pub const MAX_INPUT: usize = 64 * 1024;

/// A handshake in progress, without its [`Secrets`].
pub struct Handshake {
    connection: Connection,
    /// Received bytes that rustls has not used; the first `visible` were shown to it.
    input: Vec<u8>,
    visible: u32,
    /// Bytes that rustls has used and may still store: certificates, for example.
    used: u16,
    /// Records that were shown to rustls.
    shown: u16,
    /// The name that a client asked for. A thin pointer: there may be thousands of handshakes.
    server_name: Option<Arc<String>>,
    /// Whether output was made. Nothing is encrypted before that.
    has_sent: bool,
    /// The number of the policy that it follows.
    policy: u32,
}

/// Takes the tickets that a client gets after its handshake, so that later handshakes can resume
/// the session.
pub struct Resumption(Box<KernelConnection<ClientConnectionData>>);

impl Resumption {
    /// Takes a ticket, without its header.
    ///
    /// # Errors
    /// It is not a ticket.
    pub fn add(&mut self, ticket: &[u8]) -> Result<(), Failed> {
        self.0.handle_new_session_ticket(ticket).map_err(Failed)
    }
}

/// Memory that rustls allocates for a handshake, without the peer's messages that it stores.
const RUSTLS_MEMORY: usize = 3_300;

/// rustls's connection, on either side.
enum Connection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
    /// The session was taken over; a client may still get tickets.
    Taken(Option<Resumption>),
}

/// Result of one step of a connection of rustls.
enum HandshakeStep {
    /// It has more to do.
    More,
    /// It needs input.
    Blocked,
    Complete,
}

/// The state of a handshake after some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More input is needed.
    NeedsInput,
    /// [`Handshake::take_session`] is next.
    Complete,
}

/// A handshake that failed. If the peer is at fault, its alert is in the output.
#[derive(Debug)]
pub struct Failed(pub Error);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind(), self.0)
    }
}

impl std::error::Error for Failed {}

/// The cause of a failure: the server has no certificate for the client.
#[derive(Debug)]
struct LacksCertificate;

impl fmt::Display for LacksCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no certificate was found")
    }
}

impl std::error::Error for LacksCertificate {}

impl Failed {
    /// The failure of a peer whose messages are longer than any valid ones.
    pub(crate) fn too_long() -> Self {
        Self(Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge))
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub fn kind(&self) -> TlsFailure {
        match &self.0 {
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    TlsFailure::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    TlsFailure::NotYetValid
                }
                // A certificate that was made again has the old name, but not the old key.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    TlsFailure::UnknownIssuer
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => TlsFailure::WrongName,
                CertificateError::Revoked => TlsFailure::Revoked,
                _ => TlsFailure::BadCertificate,
            },
            Error::NoCertificatesPresented => TlsFailure::NoCertificate,
            Error::AlertReceived(alert) => TlsFailure::Alert(u8::from(*alert)),
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => TlsFailure::Incompatible,
            Error::Other(OtherError(why)) if why.is::<LacksCertificate>() => {
                TlsFailure::LacksCertificate
            }
            Error::General(_) | Error::FailedToGetCurrentTime | Error::FailedToGetRandomBytes => {
                TlsFailure::Internal
            }
            _ => TlsFailure::NotTls,
        }
    }
}

impl Handshake {
    /// Begins a handshake at the server's side. `config` was [prepared](prepare).
    ///
    /// # Errors
    /// The configuration is not usable.
    pub fn new(config: Arc<ServerConfig>) -> Result<Self, Failed> {
        UnbufferedServerConnection::new(config)
            .map(Connection::Server)
            .map(Self::of)
            .map_err(Failed)
    }

    /// Begins a handshake at the client's side, with a server of that name. `config` was
    /// [prepared](prepare_client).
    ///
    /// # Errors
    /// The configuration is not usable.
    pub fn connect(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Failed> {
        let connection = UnbufferedClientConnection::new(config, name);
        connection.map(Connection::Client).map(Self::of).map_err(Failed)
    }

    fn of(connection: Connection) -> Self {
        let (input, server_name, has_sent) = (Vec::new(), None, false);
        let policy = 0;
        Self { connection, input, visible: 0, used: 0, shown: 0, server_name, has_sent, policy }
    }

    /// Sets the number of the policy that it follows.
    pub(crate) fn of_policy(self, policy: u32) -> Self {
        Self { policy, ..self }
    }

    /// Returns the number of bytes that [`Handshake::receive`] takes now.
    #[must_use]
    pub fn room(&self) -> usize {
        MAX_INPUT - self.input.len()
    }

    /// Returns whether a record is complete that was not shown to rustls.
    #[must_use]
    pub fn has_record(&self) -> bool {
        whole_record(&self.input[self.visible as usize..]).is_some()
    }

    /// Returns the memory of the handshake and of its kept input: a lower bound.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + RUSTLS_MEMORY + usize::from(self.used) + self.input.capacity()
    }

    /// Appends input.
    ///
    /// # Errors
    /// More input waits than any message needs.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        if bytes.len() > self.room() {
            return Err(Failed::too_long());
        }
        self.input.extend_from_slice(bytes);
        Ok(())
    }

    /// Continues as far as the input allows, appends its output to `out`, and adds newly known
    /// secrets to `secrets`.
    ///
    /// # Errors
    /// The handshake failed; `out` ends with the alert that reports it, if there is one.
    pub fn advance(
        &mut self,
        secrets: &mut Secrets,
        out: &mut Vec<u8>,
    ) -> Result<Progress, Failed> {
        CAPTURED.with_borrow_mut(Captured::wipe);
        let progress = self.process(out);
        let lacks_certificate = CAPTURED.with_borrow_mut(|captured| {
            secrets.add(&mut captured.secrets);
            self.server_name = captured.server_name.take().or(self.server_name.take());
            mem::take(&mut captured.lacks_certificate)
        });
        // rustls reports this failure only as a text.
        progress.map_err(|failed| match lacks_certificate {
            true => Failed(Error::Other(OtherError(Arc::new(LacksCertificate)))),
            false => failed,
        })
    }

    fn process(&mut self, out: &mut Vec<u8>) -> Result<Progress, Failed> {
        loop {
            let input = &mut self.input[..self.visible as usize];
            let before = out.len();
            let (discard, step) = match &mut self.connection {
                Connection::Server(server) => perform(server.process_tls_records(input), out),
                Connection::Client(client) => perform(client.process_tls_records(input), out),
                Connection::Taken(_) => return Err(taken_over()),
            };
            self.has_sent |= out.len() > before;
            match step {
                Ok(step) => {
                    self.take(discard);
                    match step {
                        HandshakeStep::Complete => return Ok(Progress::Complete),
                        HandshakeStep::Blocked if !self.show_next_record() => {
                            return Ok(Progress::NeedsInput);
                        }
                        HandshakeStep::Blocked if !self.may_go_on() => {
                            if !self.has_sent {
                                plain_alert(Alert::UNEXPECTED_MESSAGE, out);
                            }
                            return Err(Failed::too_long());
                        }
                        HandshakeStep::Blocked | HandshakeStep::More => {}
                    }
                }
                Err(failed) => {
                    self.take_alert(out);
                    // Nothing is encrypted yet.
                    if !self.has_sent
                        && let Some(alert) = better_alert(&failed.0, out.len() == before)
                    {
                        out.truncate(before);
                        plain_alert(alert, out);
                    }
                    return Err(failed);
                }
            }
        }
    }

    /// Appends the alert of a handshake that failed. rustls is called only while it has output: it
    /// must not process input again that it has refused.
    fn take_alert(&mut self, out: &mut Vec<u8>) {
        let input = &mut self.input[..self.visible as usize];
        while self.connection.wants_write() {
            let before = out.len();
            let step = match &mut self.connection {
                Connection::Server(server) => perform(server.process_tls_records(input), out).1,
                Connection::Client(client) => perform(client.process_tls_records(input), out).1,
                Connection::Taken(_) => return,
            };
            if step.is_err() || out.len() == before {
                return;
            }
        }
    }

    /// Removes input that rustls has used.
    fn take(&mut self, used: usize) {
        self.input.drain(..used);
        // Covers short input.
        self.visible -= used as u32;
        self.used = self.used.saturating_add(used.try_into().unwrap_or(u16::MAX));
        if self.input.is_empty() {
            self.input = Vec::new();
        }
    }

    /// Shows one more record to rustls, if it is complete.
    fn show_next_record(&mut self) -> bool {
        let Some(len) = whole_record(&self.input[self.visible as usize..]) else { return false };
        self.visible += len as u32;
        self.shown = self.shown.saturating_add(1);
        true
    }

    /// Returns whether the peer has sent no more records than its messages need.
    fn may_go_on(&self) -> bool {
        may_have(self.shown.into(), self.used.into())
    }

    /// Takes over the session, once: its keys, the outcome of the handshake, and input that came
    /// after it. The secrets stay in place, where they are wiped when dropped.
    ///
    /// # Errors
    /// rustls did not export the keys; the configuration was not [prepared](prepare).
    pub fn take_session(
        &mut self,
        secrets: &Secrets,
    ) -> Result<(Session, TlsInfo, Vec<u8>), Failed> {
        let input = mem::take(&mut self.input);
        match mem::replace(&mut self.connection, Connection::Taken(None)) {
            Connection::Taken(_) => Err(taken_over()),
            Connection::Server(server) => {
                let name = self.server_name.take();
                let name = name.as_ref().map(|name| name.as_str());
                let info = TlsInfo {
                    policy: self.policy.into(),
                    ..info(&server, server.handshake_kind(), name)
                };
                let (keys, _) = server.dangerous_into_kernel_connection().map_err(Failed)?;
                let session = session(info.version, &keys, &secrets.server, &secrets.client)?;
                Ok((session, info, input))
            }
            Connection::Client(client) => {
                let info = info(&client, client.handshake_kind(), None);
                let (keys, rest) = client.dangerous_into_kernel_connection().map_err(Failed)?;
                let session = session(info.version, &keys, &secrets.client, &secrets.server)?;
                if ProtocolVersion::from(info.version) == ProtocolVersion::TLSv1_3 {
                    self.connection = Connection::Taken(Some(Resumption(Box::new(rest))));
                }
                Ok((session.of_client(), info, input))
            }
        }
    }

    /// Returns the receiver of tickets for a client's session that was taken over. In TLS 1.2 the
    /// ticket comes within the handshake.
    pub fn take_resumption(&mut self) -> Option<Resumption> {
        match &mut self.connection {
            Connection::Taken(resumption) => resumption.take(),
            Connection::Server(_) | Connection::Client(_) => None,
        }
    }
}

impl Connection {
    fn wants_write(&self) -> bool {
        match self {
            Self::Server(server) => server.wants_write(),
            Self::Client(client) => client.wants_write(),
            Self::Taken(_) => false,
        }
    }
}

/// Does one step of a connection, and appends its output to `out`. Also returns the number of used
/// input bytes.
fn perform<Data>(
    UnbufferedStatus { discard, state }: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
) -> (usize, Result<HandshakeStep, Failed>) {
    let step = match state {
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            encode(out, |space| data.encode(space)).map(|()| HandshakeStep::More).map_err(internal)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(HandshakeStep::More)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(HandshakeStep::Blocked),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(HandshakeStep::Complete),
        // Early data is not accepted, and rustls is not shown any record of the session.
        Ok(_) => Err(internal("data in a handshake")),
        Err(error) => Err(Failed(error)),
    };
    (discard, step)
}

/// Returns the alert that the standards require where rustls has another one, or none.
fn better_alert(failed: &Error, is_silent: bool) -> Option<Alert> {
    let lacks = |captured: &Captured| {
        // RFC 8446 section 9.2, RFC 6066 section 3.
        captured.lacks_certificate.then_some(match captured.server_name {
            None => Alert::MISSING_EXTENSION,
            Some(_) => Alert::UNRECOGNIZED_NAME,
        })
    };
    match failed {
        // RFC 8446 section 5: a record of an unexpected type.
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            Some(Alert::UNEXPECTED_MESSAGE)
        }
        Error::PeerMisbehaved(_) if is_silent => Some(Alert::UNEXPECTED_MESSAGE),
        _ => CAPTURED.with_borrow(lacks),
    }
}

/// Returns the result of `read` for a complete ClientHello that rustls can read.
pub(crate) fn read_hello<T>(
    mut hello: &[u8],
    read: impl FnOnce(&ClientHello<'_>) -> T,
) -> Option<T> {
    let mut acceptor = Acceptor::default();
    while acceptor.read_tls(&mut hello).ok()? > 0 {
        if let Some(accepted) = acceptor.accept().ok()? {
            return Some(read(&accepted.client_hello()));
        }
    }
    None
}

/// Appends an alert that is not encrypted. rustls has none for records of other types within a
/// ClientHello.
pub(crate) fn plain_alert(alert: Alert, out: &mut Vec<u8>) {
    let [level, description] = alert.encode();
    out.extend_from_slice(&[ContentType::Alert as u8, 3, 3, 0, 2, level, description]);
}

/// Returns the length of the record at the start of `bytes`, header included, if it is complete. A
/// record that is too long counts as complete: rustls refuses it by its header.
pub(crate) fn whole_record(bytes: &[u8]) -> Option<usize> {
    let &[_, _, _, high, low] = bytes.first_chunk()?;
    let len = HEADER_LEN + usize::from(u16::from_be_bytes([high, low]));
    if len > HEADER_LEN + MAX_PLAINTEXT + 2048 {
        return Some(bytes.len());
    }
    (bytes.len() >= len).then_some(len)
}

/// Appends the output of `encode`, which returns how much space it needs.
fn encode(
    out: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    let written = match encode(&mut []) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            out.resize(start + required_size, 0);
            encode(&mut out[start..])
        }
        written => written,
    };
    out.truncate(start + written.as_ref().unwrap_or(&0));
    written.map(drop)
}

fn taken_over() -> Failed {
    internal("the session was taken over")
}

fn internal(error: impl fmt::Display) -> Failed {
    Failed(Error::General(error.to_string()))
}

fn info<Data: SideData>(
    connection: &UnbufferedConnectionCommon<Data>,
    kind: Option<HandshakeKind>,
    server_name: Option<&str>,
) -> TlsInfo {
    let certificates = connection.peer_certificates().unwrap_or_default();
    TlsInfo {
        version: connection.protocol_version().map_or(0, u16::from),
        cipher_suite: connection.negotiated_cipher_suite().map_or(0, |it| it.suite().into()),
        group: connection.negotiated_key_exchange_group().map(|group| group.name().into()),
        connected: None,
        is_resumed: kind == Some(HandshakeKind::Resumed),
        server_name: server_name.map(Box::from),
        alpn: connection.alpn_protocol().map(Box::from),
        peer_certificates: certificates.iter().map(|it| Box::from(it.as_ref())).collect(),
        policy: 0,
    }
}

fn session(
    version: u16,
    keys: &ExtractedSecrets,
    send: &Secret,
    receive: &Secret,
) -> Result<Session, Failed> {
    let version = match ProtocolVersion::from(version) {
        ProtocolVersion::TLSv1_3 => Version::Tls13,
        ProtocolVersion::TLSv1_2 => Version::Tls12,
        _ => return Err(internal("a version that was not offered")),
    };
    let (suite, tx) = direction(&keys.tx, send)?;
    let (_, rx) = direction(&keys.rx, receive)?;
    Session::new(version, suite, &tx, &rx).map_err(internal)
}

fn direction<'a>(
    (sequence, keys): &'a (u64, ConnectionTrafficSecrets),
    secret: &'a Secret,
) -> Result<(Suite, Direction<'a>), Failed> {
    let (suite, key, iv) = match keys {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Suite::ChaCha20Poly1305, key, iv)
        }
        _ => return Err(internal("a cipher that was not offered")),
    };
    let iv = iv.as_ref().try_into().map_err(internal)?;
    let direction =
        Direction { key: key.as_ref(), iv, secret: secret.bytes(), sequence: *sequence };
    Ok((suite, direction))
}

/// Changes a configuration so that [`Handshake`] can take over its sessions: secrets and the
/// client's server name are captured, and data before the end of a handshake is refused.
pub fn prepare(config: &mut ServerConfig) {
    config.enable_secret_extraction = true;
    config.max_early_data_size = 0;
    config.send_half_rtt_data = false;
    config.key_log = Arc::new(Capture { next: Arc::clone(&config.key_log) });
    config.cert_resolver = Arc::new(Capture { next: Arc::clone(&config.cert_resolver) });
}

/// Prepares a configuration of the client's side, like [`prepare`].
pub fn prepare_client(config: &mut ClientConfig) {
    config.enable_secret_extraction = true;
    config.enable_early_data = false;
    config.key_log = Arc::new(Capture { next: Arc::clone(&config.key_log) });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be thousands of connections that never continue.
    #[test]
    fn a_handshake_is_little_more_than_that_of_rustls() {
        let ours = size_of::<Handshake>() - size_of::<UnbufferedServerConnection>();
        assert!(ours <= 48, "{ours}");
    }

    #[test]
    fn a_message_that_is_too_long_is_the_peers_fault() {
        assert_eq!(Failed::too_long().kind(), TlsFailure::NotTls);
    }
}
