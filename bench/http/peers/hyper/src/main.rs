//! Blank or work on hyper: peer-hyper PORT blank|work [multi]

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

#[derive(Deserialize)]
struct Asked<'a> {
    #[serde(borrow)]
    product: Cow<'a, str>,
    #[serde(borrow, rename = "requestId")]
    request_id: Cow<'a, str>,
    group: Group,
}

#[derive(Deserialize)]
struct Group {
    balance: f64,
    dates: Vec<Timestamp>,
}

#[derive(Serialize)]
struct Answer<'a> {
    product: &'a str,
    #[serde(rename = "requestId")]
    request_id: &'a str,
    client: Client,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Client {
    balance: f64,
    min_date: String,
    max_date: String,
}

fn work(body: &[u8]) -> Option<Vec<u8>> {
    let Asked { product, request_id, group } = serde_json::from_slice(body).ok()?;
    let (least, greatest) = (group.dates.iter().min()?, group.dates.iter().max()?);
    let client = Client {
        balance: group.balance,
        min_date: format!("{least:.3}"),
        max_date: format!("{greatest:.3}"),
    };
    serde_json::to_vec(&Answer { product: &product, request_id: &request_id, client }).ok()
}

async fn answer(
    request: Request<Incoming>,
    works: bool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (content_type, body) = if works {
        let body = request.into_body().collect().await.map(|body| body.to_bytes());
        ("application/json", body.ok().and_then(|body| work(&body)).map(Bytes::from))
    } else {
        ("text/plain", Some(Bytes::from_static(b"OK")))
    };
    let Some(body) = body else {
        let mut refusal = Response::new(Full::from("this is not the benchmark's document\n"));
        *refusal.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(refusal);
    };
    let mut response = Response::new(Full::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

async fn serve(port: u16, works: bool) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(4096)?;
    let listener = tokio::net::TcpListener::from_std(socket.into())?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, works));
            // A connection closed by the client is not an error.
            let _ = http1::Builder::new()
                .pipeline_flush(true)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let port = words.first().and_then(|word| word.parse().ok()).expect("a port");
    let works = words.get(1).is_some_and(|word| word == "work");
    let mut builder = match words.get(2) {
        Some(_) => tokio::runtime::Builder::new_multi_thread(),
        None => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_io().build()?.block_on(serve(port, works))
}
