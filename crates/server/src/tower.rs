//! Services of tower as routes of an app, such as a router of axum.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, header};
use http_body::{Body, Frame, SizeHint};
use throng_http::{Reject, Request, Response, Status};
use tokio::runtime::Handle;
use tower_service::Service;

use crate::app::{App, RequestId, RouteAction};
use crate::exchanges::Responder;
use crate::exchanges::futures::unless_closed;

/// Name of the parameter with the path that a service sees.
const REST: &str = "path";

/// Fields of a request that concern its connection, or the transfer of its body.
const OF_REQUEST: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TRANSFER_ENCODING,
    header::TE,
    header::UPGRADE,
    header::EXPECT,
];

/// The header of an id that middleware has given to a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Fields of a response that the server sets itself, apart from Content-Length.
const OF_RESPONSE: [HeaderName; 4] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TRANSFER_ENCODING,
    header::DATE,
];

/// The body of a request to a service. The server has received it completely.
#[derive(Debug, Default)]
pub struct ServiceBody(Option<Bytes>);

impl Body for ServiceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

impl App {
    /// Answers all paths of this app that have no other route by a tower service, such as a router
    /// of axum, whose futures run on a tokio runtime. [Nested](Self::nest), it sees the path
    /// without the prefix, as it would under axum's own `nest`.
    ///
    /// The server calls the service when the body of a request is complete, within
    /// [`Limits::max_body`](crate::Limits::max_body); the address of the client is among its
    /// extensions, as a `SocketAddr`. The response's body is sent while it is produced, with at
    /// most 256 KiB waiting for the client. An error of the service is answered with 500; an error
    /// in a body ends the connection. When the client closes the connection, or its side of it, the
    /// service's future or the body is dropped, and the connection ends after the earlier
    /// responses. If the client's next request waits, this takes up to about a second, and works on
    /// Linux only. WebSockets are routes of an app; a service sees no upgrade.
    ///
    /// The service gets the values that middleware has attached to the request
    /// ([`Request::insert_extension`](crate::Request::insert_extension)) among its extensions, and
    /// the id of [`RequestIds`](crate::http::RequestIds) in its header `X-Request-ID`.
    ///
    /// `Connection`, the fields that it names, `Keep-Alive` and `Transfer-Encoding` are removed
    /// from requests and responses. `TE`, `Upgrade` and `Expect` are removed from requests, and
    /// `Date` from responses, which get the server's. A response with `Connection: close` closes
    /// the connection.
    ///
    /// ```no_run
    /// use axum::Router;
    /// use axum::routing::get;
    /// use throng::prelude::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let api = Router::new().route("/version", get(|| async { "1.0" }));
    /// let app = App::new()
    ///     .ws("/live", Ws::new().on_message(|ws, (), message| ws.send(message)))
    ///     .nest("/api", App::new().fallback_service(runtime.handle().clone(), api));
    /// Server::new(app).bind("127.0.0.1:9001")?.run()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fallback_service<S, B>(self, runtime: Handle, service: S) -> Self
    where
        S: Service<http::Request<ServiceBody>, Response = http::Response<B>>,
        S: Clone + Send + Sync + 'static,
        S::Error: fmt::Display + Send,
        S::Future: Send,
        B: Body<Error: fmt::Display + Send, Data: Send> + Send + 'static,
    {
        let other = (runtime.clone(), service.clone());
        let action = |runtime: Handle, service: S| {
            RouteAction::Deferred(Box::new(move |request: &Request<'_>, responder| {
                responder.end_with_client();
                match convert(request) {
                    Ok(request) => {
                        drop(runtime.spawn(serve(service.clone(), request, responder)));
                    }
                    Err(error) => responder.send(Reject::bad_request(error.to_string())),
                }
            }))
        };
        // `{*rest}` does not match the prefix itself.
        self.add(None, "/", action(runtime, service)).add(
            None,
            &format!("/{{*{REST}}}"),
            action(other.0, other.1),
        )
    }
}

/// Converts a request to a request of the service, with the path below the service's.
fn convert(request: &Request<'_>) -> Result<http::Request<ServiceBody>, http::Error> {
    let request_of_all = http::Request::try_from(request)?;
    let (mut head, body) = request_of_all.into_parts();
    let rest = request.raw_param(REST).unwrap_or_default();
    let target = match request.query_string() {
        Some(query) => format!("/{rest}?{query}"),
        None => format!("/{rest}"),
    };
    head.uri = target.parse::<http::Uri>()?;
    remove_fields(&mut head.headers, &OF_REQUEST);
    // If middleware has created an id, the client has sent none, or an invalid one.
    if let Some(id) = request.extension::<RequestId>() {
        head.headers.insert(REQUEST_ID, http::HeaderValue::try_from(id.as_str())?);
    }
    let body = ServiceBody((!body.is_empty()).then(|| body.into()));
    Ok(http::Request::from_parts(head, body))
}

/// Removes `fields` and the fields that Connection names ([RFC 9110 section
/// 7.6.1](https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1)). Returns whether it contains
/// `close`.
fn remove_fields(headers: &mut HeaderMap, fields: &[HeaderName]) -> bool {
    let values = headers.get_all(header::CONNECTION).iter();
    let options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let named: Vec<_> =
        options.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
    for name in named.iter().chain(fields) {
        headers.remove(name);
    }
    named.iter().any(|name| name == "close")
}

/// Calls a service, and sends its response.
async fn serve<S, B>(mut service: S, request: http::Request<ServiceBody>, mut responder: Responder)
where
    S: Service<http::Request<ServiceBody>, Response = http::Response<B>>,
    S::Error: fmt::Display,
    B: Body<Error: fmt::Display>,
{
    let is_head = request.method() == http::Method::HEAD;
    let called = async {
        poll_fn(|cx| service.poll_ready(cx)).await?;
        service.call(request).await
    };
    let Some(response) = unless_closed(called, &mut responder).await else { return };
    let failed = |what: &str| Response::error(Status::INTERNAL_SERVER_ERROR, what);
    let Ok(response) = response else { return responder.send(failed("the service failed")) };
    let (mut head, body) = response.into_parts();
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|length| length.parse().ok());
    let closes = remove_fields(&mut head.headers, &OF_RESPONSE);
    let Ok(head) = Response::try_from(http::Response::from_parts(head, Vec::new())) else {
        return responder.send(failed("the service's response has a header that cannot be sent"));
    };
    let head = if closes { head.closing() } else { head };
    if is_head {
        // The service may have emptied the body: an unknown length must not be sent as 0 (RFC 9110
        // section 8.6).
        let of_body = body.size_hint().exact().filter(|length| *length > 0);
        return drop(responder.stream(head, length.or(of_body)));
    }
    if body.is_end_stream() {
        return responder.send(head);
    }
    // It fails if the client has left, or if the body fails, which then has no end.
    let _ = send_body(body, head, responder).await;
}

async fn send_body<B: Body<Error: fmt::Display>>(
    body: B,
    head: Response,
    responder: Responder,
) -> io::Result<()> {
    let mut writer = responder.stream(head, body.size_hint().exact());
    let mut body = pin!(body);
    while let Some(frame) = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
        Poll::Ready(frame) => Poll::Ready(Ok(frame)),
        // A body that waits also ends with the connection.
        Poll::Pending => writer.poll_gone(cx).map(Err),
    })
    .await?
    {
        let frame = frame.map_err(|error| io::Error::other(error.to_string()))?;
        // Trailers are not passed on.
        let Ok(mut data) = frame.into_data() else { continue };
        while data.has_remaining() {
            // One closure for both: it borrows the data to change them, which needs no `Sync`.
            poll_fn(|cx| match writer.poll_write(cx, data.chunk()) {
                Poll::Ready(Ok(written)) => {
                    data.advance(written);
                    Poll::Ready(Ok(()))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            })
            .await?;
        }
    }
    writer.finish();
    Ok(())
}
