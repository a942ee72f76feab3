//! A server to connect to, with or without TLS.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisError,
};

use super::tls::Security;

/// An address, a user, a database, and the TLS settings that all servers of its URL share.
#[derive(Clone)]
pub(super) struct Endpoint {
    info: Arc<ConnectionInfo>,
    security: Option<Arc<Security>>,
}

impl Endpoint {
    /// Parses a URL that begins with `redis://` or `redis+unix://`, which TLS connections also use.
    pub(super) fn parse(url: &str, security: Option<Arc<Security>>) -> Result<Self, RedisError> {
        let info = url.into_connection_info()?;
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        Ok(Self { info: Arc::new(info.set_redis_settings(settings)), security })
    }

    /// Returns the endpoint at another address, with the same user, database and TLS.
    pub(super) fn at(&self, (host, port): (String, u16)) -> Self {
        let info = ConnectionInfo::clone(&self.info).set_addr(ConnectionAddr::Tcp(host, port));
        Self { info: Arc::new(info), security: self.security.clone() }
    }

    /// Returns its address.
    pub(super) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Returns another possible reason why a server does not answer.
    pub(super) fn hint(&self) -> &'static str {
        match self.security {
            Some(_) => "is that its port for TLS, ",
            None => "",
        }
    }

    /// Connects within a time limit.
    pub(super) async fn connect(
        &self,
        limit: Duration,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let config = config.set_connection_timeout(Some(limit));
        match (&self.security, self.info.addr()) {
            (None, _) => {
                let client = Client::open(ConnectionInfo::clone(&self.info))?;
                client.get_multiplexed_async_connection_with_config(&config).await
            }
            (Some(security), ConnectionAddr::Tcp(host, port)) => {
                let settings = self.info.redis_settings();
                let connect = security.connect((host, *port), settings, config);
                tokio::time::timeout(limit, connect).await.unwrap_or_else(|_| {
                    Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
                })
            }
            (Some(_), _) => unreachable!("URLs with TLS have hosts"),
        }
    }
}
