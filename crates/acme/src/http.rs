//! The HTTP client for an authority: one connection for each request, since requests are rare.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use throng_tls::handshake::Failed;
use throng_tls::{ClientConfigs, TlsClient};
use tokio::net::TcpStream;

/// Time limit of a request, from the lookup of its host to the end of the response.
const LIMIT: Duration = Duration::from_secs(30);

/// Maximum bytes of a response's body.
const MAX_BODY: usize = 1 << 20;

/// The longest wait that an authority may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The client's name for the authority: RFC 8555 section 6.1 asks for one.
const NAME: &str = concat!("throng/", env!("CARGO_PKG_VERSION"), " instant-acme");

/// A client. Its clones share the waits that the authority has requested.
#[derive(Clone)]
pub(crate) struct Http {
    configs: Arc<ClientConfigs>,
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Http {
    pub(crate) fn new(configs: Arc<ClientConfigs>) -> Self {
        Self { configs, retry_after: Arc::default() }
    }

    /// Returns how long the authority refuses requests, if a response since the last call has
    /// requested a wait.
    pub(crate) fn take_retry_after(&self) -> Option<Duration> {
        self.retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reads Retry-After, and passes instant-acme only values that it can add to a time.
    fn read_retry_after(&self, response: &mut BytesResponse) {
        let is_refused = matches!(
            response.parts.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        let headers = &mut response.parts.headers;
        let value = headers.remove(RETRY_AFTER);
        let Some(wait) = value.and_then(|value| parse_wait(value.to_str().ok()?)) else { return };
        headers.insert(RETRY_AFTER, wait.as_secs().into());
        if is_refused {
            *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner) = Some(wait);
        }
    }
}

/// Returns the text of an error without a problem document (RFC 8555 section 6.7), such as a
/// proxy's error: instant-acme would only report that the body is not JSON.
fn unexplained(response: &BytesResponse) -> Option<String> {
    let (status, headers) = (response.parts.status, &response.parts.headers);
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = media_type.is_some_and(|text| text.to_ascii_lowercase().contains("json"));
    let is_error = status.is_client_error() || status.is_server_error();
    (is_error && !is_json).then(|| format!("it answers {status}"))
}

/// Parses the value of Retry-After, seconds or a date (RFC 9110 section 10.2.3), in whole seconds.
fn parse_wait(value: &str) -> Option<Duration> {
    let value = value.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let wait = match is_number {
        true => value.parse().map_or(LONGEST_WAIT, Duration::from_secs),
        false => {
            let date = httpdate::parse_http_date(value).ok()?;
            let left = date.duration_since(SystemTime::now()).unwrap_or_default();
            Duration::from_secs(left.as_secs_f64().ceil() as u64)
        }
    };
    Some(wait.min(LONGEST_WAIT))
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
            let unreachable = |why| Error::Other(Box::new(Unreachable { host: host.clone(), why }));
            let mut response = match exchange.await {
                Ok(Ok(response)) => response,
                Ok(Err(why)) => return Err(unreachable(why)),
                Err(_) => {
                    return Err(unreachable(format!("no answer within {} s", LIMIT.as_secs())));
                }
            };
            this.read_retry_after(&mut response);
            match unexplained(&response) {
                Some(why) => Err(Error::Other(Box::new(Unreachable { host, why }))),
                None => Ok(response),
            }
        })
    }
}

/// Sends a request on a new connection. The error is a text.
async fn exchange(
    configs: &Arc<ClientConfigs>,
    mut request: Request<BodyWrapper<Bytes>>,
) -> Result<BytesResponse, String> {
    let uri = request.uri().clone();
    let (Some("https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(format!("{uri} is not a URL with https, as RFC 8555 section 6.1 demands"));
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

/// No response came, or the response is not from an authority.
#[derive(Debug)]
pub(crate) struct Unreachable {
    host: String,
    why: String,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.host, self.why)
    }
}

impl std::error::Error for Unreachable {}

#[cfg(test)]
mod tests {
    use throng_tls::{ClientSettings, Trust};

    use super::*;

    /// Returns the wait recorded for a response, and the value left in its header.
    fn retry_after_of(status: u16, retry_after: &str) -> (Option<Duration>, Option<String>) {
        let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
        let http = Http::new(ClientConfigs::load(settings).unwrap());
        let response = hyper::Response::builder().status(status).header(RETRY_AFTER, retry_after);
        let (parts, ()) = response.body(()).unwrap().into_parts();
        let mut response = BytesResponse { parts, body: Box::new(Bytes::new()) };
        http.read_retry_after(&mut response);
        let left = response.parts.headers.get(RETRY_AFTER);
        let left = left.map(|value| value.to_str().unwrap().to_owned());
        (http.take_retry_after(), left)
    }

    #[test]
    fn an_error_without_a_problem_document_has_its_status() {
        for (status, media_type, expected) in [
            (503, Some("text/html"), Some("it answers 503 Service Unavailable")),
            (502, None, Some("it answers 502 Bad Gateway")),
            (404, Some("text/plain"), Some("it answers 404 Not Found")),
            (500, Some("application/problem+json"), None),
            (200, Some("text/html"), None),
        ] {
            let mut response = hyper::Response::builder().status(status);
            if let Some(media_type) = media_type {
                response = response.header(CONTENT_TYPE, media_type);
            }
            let (parts, ()) = response.body(()).unwrap().into_parts();
            let response = BytesResponse { parts, body: Box::new(Bytes::new()) };
            assert_eq!(unexplained(&response).as_deref(), expected, "{status} {media_type:?}");
        }
    }

    #[test]
    fn rfc9110_10_2_3_a_wait_is_finite_whatever_the_authority_asks_for() {
        let week = LONGEST_WAIT.as_secs();
        for (value, expected) in [
            ("0", Some(0)),
            ("120", Some(120)),
            ("18446744073709551615", Some(week)),
            ("99999999999999999999999", Some(week)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(week)),
            ("Fri, 31 Dec 1999 23:59:59 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
            ("", None),
        ] {
            let wait = expected.map(Duration::from_secs);
            let text = expected.map(|seconds| seconds.to_string());
            assert_eq!(retry_after_of(429, value), (wait, text.clone()), "{value:?}");
            // Only a refusal delays further requests.
            assert_eq!(retry_after_of(200, value), (None, text), "{value:?}");
        }
        let soon = SystemTime::now() + Duration::from_secs(3600);
        let (wait, _) = retry_after_of(503, &httpdate::fmt_http_date(soon));
        assert!((3500..=3600).contains(&wait.unwrap().as_secs()), "{wait:?}");
    }
}
