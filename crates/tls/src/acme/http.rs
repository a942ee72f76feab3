//! The HTTP client for an authority: one connection for each request, which are few and far
//! between.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::net::TcpStream;

use crate::client::{ClientConfigs, TlsClient};
use crate::handshake::Failed;

/// Time limit of a request, from the lookup of its host to the end of the response.
const LIMIT: Duration = Duration::from_secs(30);

/// Maximum bytes of a response's body.
const MAX_BODY: usize = 1 << 20;

/// The client's name for the authority: RFC 8555 section 6.1 asks for one.
const NAME: &str = concat!("throng/", env!("CARGO_PKG_VERSION"), " instant-acme");

/// A client, whose clones share what the authority has asked for.
#[derive(Clone)]
pub(super) struct Http {
    configs: Arc<ClientConfigs>,
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Http {
    pub(super) fn new(configs: Arc<ClientConfigs>) -> Self {
        Self { configs, retry_after: Arc::default() }
    }

    /// Returns for how long the authority wants no more requests, if it has refused one with that
    /// since the last call.
    pub(super) fn take_retry_after(&self) -> Option<Duration> {
        self.retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn heed(&self, response: &BytesResponse) {
        let is_refused = matches!(
            response.parts.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        let seconds = response.parts.headers.get(RETRY_AFTER);
        let seconds = seconds.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        if let Some(seconds) = seconds.filter(|_| is_refused) {
            let wait = Duration::from_secs(seconds);
            *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner) = Some(wait);
        }
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let host = request.uri().host().unwrap_or_default().to_owned();
            let exchange = tokio::time::timeout(LIMIT, exchange(&this.configs, request));
            let unreachable = |why| Error::Other(Box::new(Unreachable { host, why }));
            let response = match exchange.await {
                Ok(Ok(response)) => response,
                Ok(Err(why)) => return Err(unreachable(why)),
                Err(_) => {
                    return Err(unreachable(format!("no answer within {} s", LIMIT.as_secs())));
                }
            };
            this.heed(&response);
            Ok(response)
        })
    }
}

/// Sends a request on a connection of its own. An error is its text.
async fn exchange(
    configs: &Arc<ClientConfigs>,
    mut request: Request<BodyWrapper<Bytes>>,
) -> Result<BytesResponse, String> {
    let uri = request.uri().clone();
    let (Some("https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(format!("{uri} is no URL with https, as RFC 8555 section 6.1 demands"));
    };
    let host = authority.host();
    let client = TlsClient::new(configs, host).map_err(text)?;
    let address = (host.trim_matches(['[', ']']), authority.port_u16().unwrap_or(443));
    let socket = TcpStream::connect(address).await.map_err(text)?;
    let stream = client.handshake_async(socket).await.map_err(tls_text)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
    tokio::spawn(connection);
    let host = HeaderValue::from_str(authority.as_str()).map_err(text)?;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    *request.uri_mut() = target.parse().map_err(text)?;
    let (parts, body) = sender.send_request(request).await.map_err(text)?.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| error.to_string())?;
    Ok(BytesResponse { parts, body: Box::new(body.to_bytes()) })
}

fn text(error: impl std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Returns the text of a handshake's failure.
fn tls_text(error: std::io::Error) -> String {
    match error.downcast::<rustls::Error>() {
        Ok(error) => Failed(error).to_string(),
        Err(error) => error.to_string(),
    }
}

/// No response came.
#[derive(Debug)]
pub(super) struct Unreachable {
    host: String,
    why: String,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.host, self.why)
    }
}

impl std::error::Error for Unreachable {}
