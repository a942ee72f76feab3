//! TLS of the connections to servers: its settings, and its failures.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use redis::RedisError;

/// Settings of TLS, for URLs that begin with `rediss`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A file with the authorities that certify the servers, in PEM; `None`: the authorities that
    /// the system trusts.
    pub ca: Option<PathBuf>,
    /// Files with the node's own certificate, including the chain of its authorities, and its
    /// private key, in PEM; `None`: the node has no certificate.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The name in the certificates of all servers; `None`: each server's host, as the URL, a
    /// sentinel or the Redis Cluster names it.
    pub name: Option<String>,
}

impl Tls {
    /// Returns the name of a setting that has a value.
    pub(super) fn first(&self) -> Option<&'static str> {
        let Self { ca, certificate, name } = self;
        let set = [
            (ca.is_some(), "cluster.tls_ca"),
            (certificate.is_some(), "cluster.tls_cert"),
            (name.is_some(), "cluster.tls_name"),
        ];
        set.into_iter().find_map(|(is_set, setting)| is_set.then_some(setting))
    }
}

/// A connection that failed because of TLS.
#[derive(Debug)]
pub(super) struct Insecure {
    what: String,
    pub(super) remedy: String,
    /// Whether the failure lasts until settings change, here or at the server.
    pub(super) is_lasting: bool,
}

impl fmt::Display for Insecure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Insecure {}

impl Insecure {
    /// Returns the TLS failure behind an error, if there is one.
    pub(super) fn of(error: &RedisError) -> Option<&Self> {
        io_error(error)?.get_ref()?.downcast_ref()
    }
}

fn io_error(error: &RedisError) -> Option<&io::Error> {
    let inner = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    inner.downcast_ref()
}

#[cfg(feature = "tls")]
pub(super) use with::Security;
#[cfg(not(feature = "tls"))]
pub(super) use without::Security;

#[cfg(feature = "tls")]
mod with {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::{fmt, io};

    use redis::aio::MultiplexedConnection;
    use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError};
    use throng_io::TlsFailure;
    use throng_tls::{
        CertificateFiles, ClientConfigs, ClientSettings, ConfigError, TlsClient, Trust, failure_of,
    };
    use tokio::net::TcpStream;

    use super::{Insecure, Tls};
    use crate::redis::StartError;

    /// Settings and files of TLS, shared by the connections to all servers.
    pub(in crate::redis) struct Security {
        tls: Tls,
        files: Arc<Files>,
    }

    /// The content of the files. Changed files are read again.
    struct Files {
        configs: Arc<ClientConfigs>,
        is_reading: AtomicBool,
        /// Why changed files are not in use.
        unused: Mutex<Option<String>>,
    }

    impl Files {
        fn read_if_changed(&self) {
            let unused = match self.configs.reload_if_changed() {
                Ok(false) => return,
                Ok(true) => None,
                Err(error) => Some(error.to_string()),
            };
            *self.unused.lock().unwrap_or_else(PoisonError::into_inner) = unused;
        }
    }

    impl Security {
        /// Reads the files.
        pub(in crate::redis) fn load(tls: &Tls) -> Result<Arc<Self>, StartError> {
            if let Some(name) = &tls.name {
                TlsClient::check_name(name)
                    .map_err(|error| StartError::lasting(format!("cluster.tls_name: {error}")))?;
            }
            let settings = ClientSettings {
                trust: tls.ca.clone().map_or(Trust::System, Trust::File),
                certificate: tls
                    .certificate
                    .clone()
                    .map(|(chain, key)| CertificateFiles { chain, key }),
                resumes: true,
                without_alpn: true,
                ..ClientSettings::default()
            };
            let configs = ClientConfigs::load(settings).map_err(|error| wrong(tls, &error))?;
            let (is_reading, unused) = (AtomicBool::new(false), Mutex::default());
            let files = Arc::new(Files { configs, is_reading, unused });
            Ok(Arc::new(Self { tls: tls.clone(), files }))
        }

        /// Connects to a server. Its certificate must contain its host, or the name in the
        /// settings.
        pub(in crate::redis) async fn connect(
            &self,
            (host, port): (&str, u16),
            settings: &RedisConnectionInfo,
            config: AsyncConnectionConfig,
        ) -> Result<MultiplexedConnection, RedisError> {
            self.read_files();
            let name = self.tls.name.as_deref().unwrap_or(host);
            let client = TlsClient::new(&self.files.configs, name)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let socket = TcpStream::connect((host, port)).await?;
            // Each write is a whole record.
            socket.set_nodelay(true)?;
            let stream = client.handshake_async(socket).await;
            let stream = stream.map_err(|error| self.insecure(failure_of(&error), &error))?;
            // In TLS 1.3 a server refuses a client's certificate only after the client's handshake
            // is complete.
            let connected = MultiplexedConnection::new_with_config(settings, stream, config).await;
            let (connection, driver) = connected.map_err(|error| self.explained_later(error))?;
            // The task ends when the last user of the connection drops it.
            tokio::spawn(driver);
            Ok(connection)
        }

        /// Starts to check whether files have changed, for later connections. A file system that
        /// does not answer must not block the node.
        fn read_files(&self) {
            if self.files.is_reading.swap(true, Ordering::AcqRel) {
                return;
            }
            let files = Arc::clone(&self.files);
            tokio::task::spawn_blocking(move || {
                files.read_if_changed();
                files.is_reading.store(false, Ordering::Release);
            });
        }

        /// Explains an error that occurred after the connection began to speak the Redis protocol.
        fn explained_later(&self, error: RedisError) -> RedisError {
            let failure = super::io_error(&error).and_then(failure_of);
            let may_be_refused = error.kind() == ErrorKind::Io && self.tls.certificate.is_none();
            match failure {
                None if !may_be_refused => error,
                failure => self.insecure(failure, &error).into(),
            }
        }

        /// Returns an error with a remedy.
        fn insecure(&self, failure: Option<TlsFailure>, error: &dyn fmt::Display) -> io::Error {
            let ca = self.tls.ca.as_deref().map(Path::display);
            let what = match failure {
                Some(failure) => format!("{failure} ({error})"),
                None => format!("the connection was lost ({error})"),
            };
            let demands = "if it demands a certificate of its clients, name one in \
                           cluster.tls_cert and cluster.tls_key";
            let (is_lasting, remedy) = match failure {
                Some(TlsFailure::UnknownIssuer) => (
                    true,
                    match ca {
                        Some(ca) => format!(
                            "cluster.tls_ca, {ca}, must have the authority that has issued it"
                        ),
                        None => {
                            "set cluster.tls_ca to a file with the authority that has issued it, \
                             if the system does not know it"
                                .to_owned()
                        }
                    },
                ),
                Some(TlsFailure::WrongName) => (
                    true,
                    "name the server in cluster.url, or where it is announced, as its certificate \
                     does; or set cluster.tls_name to a name of the certificates of all servers"
                        .to_owned(),
                ),
                Some(TlsFailure::Expired | TlsFailure::NotYetValid) => {
                    (false, "renew it at the server, and compare the clocks".to_owned())
                }
                Some(TlsFailure::NotTls) => (
                    false,
                    "cluster.url must have its port for TLS, or the scheme without it".to_owned(),
                ),
                Some(failure) if failure.refuses_certificate() => (
                    true,
                    match &self.tls.certificate {
                        Some((chain, _)) => format!(
                            "the authorities of the server must have issued cluster.tls_cert, {}, \
                             and it must be valid",
                            chain.display()
                        ),
                        None => demands.to_owned(),
                    },
                ),
                None if self.tls.certificate.is_none() => {
                    (false, format!("is that its port for TLS? {demands}"))
                }
                _ => (false, "is that its port for TLS?".to_owned()),
            };
            let unused = self.files.unused.lock().unwrap_or_else(PoisonError::into_inner);
            let remedy = match &*unused {
                Some(why) => format!("{remedy}; files that have changed are not in use: {why}"),
                None => remedy,
            };
            io::Error::other(Insecure { what, remedy, is_lasting })
        }
    }

    /// Returns the error of a file, and names its setting.
    fn wrong(tls: &Tls, error: &ConfigError) -> StartError {
        let is = |file: &Path| error.file.as_deref() == Some(file);
        let setting = match &tls.certificate {
            Some((_, key)) if is(key) => "cluster.tls_key",
            Some((chain, _)) if is(chain) => "cluster.tls_cert",
            _ => "cluster.tls_ca",
        };
        let message = format!("{setting}: {error}");
        if error.may_pass { StartError::new(message) } else { StartError::lasting(message) }
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use std::sync::Arc;

    use redis::aio::MultiplexedConnection;
    use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};

    use super::Tls;
    use crate::redis::StartError;

    /// This build has no TLS.
    pub(in crate::redis) enum Security {}

    impl Security {
        pub(in crate::redis) fn load(_: &Tls) -> Result<Arc<Self>, StartError> {
            Err(StartError::lasting(
                "cluster.url: this build has no TLS: build it with the feature tls",
            ))
        }

        pub(in crate::redis) async fn connect(
            &self,
            _: (&str, u16),
            _: &RedisConnectionInfo,
            _: AsyncConnectionConfig,
        ) -> Result<MultiplexedConnection, RedisError> {
            match *self {}
        }
    }
}
