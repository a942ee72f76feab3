//! A dashboard, as crates/server/examples/dashboard.rs: dashboard PORT

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Form, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post, put};
use futures_util::{SinkExt, StreamExt, stream};
use tokio::sync::broadcast::{self, Receiver, Sender};
use tower_http::cors::{AllowHeaders, CorsLayer};

const PAGE: &str = "<!doctype html><title>hello</title><ul id=new></ul><script>\
    new EventSource('/live').onmessage = event => \
    document.querySelector('#new').append(event.data, document.createElement('br'))</script>\n";

#[derive(Clone)]
struct Orders {
    all: Arc<Mutex<Vec<String>>>,
    news: Sender<Utf8Bytes>,
}

async fn add(State(orders): State<Orders>, order: String) -> StatusCode {
    let mut all = orders.all.lock().unwrap();
    let _ = orders.news.send(order.as_str().into());
    all.push(order);
    StatusCode::CREATED
}

async fn list(State(orders): State<Orders>) -> String {
    orders.all.lock().unwrap().iter().map(|order| format!("{order}\n")).collect()
}

async fn receive(State(orders): State<Orders>, body: Body) -> Result<Response, StatusCode> {
    let (mut pieces, mut bytes) = (body.into_data_stream(), 0);
    while let Some(piece) = pieces.next().await {
        let text = match &piece {
            Ok(piece) => {
                bytes += piece.len();
                format!("upload: {bytes} bytes")
            }
            Err(error) => format!("upload: {error}"),
        };
        let _ = orders.news.send(text.into());
        piece.map_err(|_| StatusCode::BAD_REQUEST)?;
    }
    Ok((StatusCode::CREATED, format!("{bytes} bytes\n")).into_response())
}

#[derive(serde::Deserialize)]
struct Login {
    name: String,
}

async fn login(Form(login): Form<Login>) -> Result<Response, StatusCode> {
    let cookie = format!("name={}; Path=/; HttpOnly; SameSite=Lax", login.name);
    let cookie = HeaderValue::try_from(cookie).map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

async fn authenticate(headers: HeaderMap, request: Request, next: Next) -> Response {
    let cookies = headers.get(header::COOKIE).and_then(|value| value.to_str().ok());
    let mut cookies = cookies.unwrap_or_default().split(';');
    match cookies.any(|cookie| cookie.trim().starts_with("name=")) {
        true => next.run(request).await,
        false => StatusCode::UNAUTHORIZED.into_response(),
    }
}

async fn live(
    State(orders): State<Orders>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let news = orders.news.subscribe();
    match upgrade {
        Ok(upgrade) => upgrade.on_upgrade(|socket| tell(socket, news)),
        Err(_) => {
            let events = stream::unfold(news, |mut news| async {
                let text = news.recv().await.ok()?;
                Some((Ok::<_, Infallible>(Event::default().data(text.as_str())), news))
            });
            Sse::new(events).keep_alive(KeepAlive::default()).into_response()
        }
    }
}

async fn tell(socket: WebSocket, mut news: Receiver<Utf8Bytes>) {
    let (mut sink, mut stream) = socket.split();
    loop {
        tokio::select! {
            message = stream.next() => if !matches!(message, Some(Ok(_))) { return },
            text = news.recv() => {
                let message = text.map(Message::Text).unwrap_or_else(|_| {
                    let reason = "slow consumer".into();
                    Message::Close(Some(CloseFrame { code: 1008, reason }))
                });
                if sink.send(message).await.is_err() { return }
            }
        }
    }
}

#[tokio::main]
async fn main() {
    let port = std::env::args().nth(1).expect("a port");
    let orders = Orders { all: Arc::default(), news: broadcast::channel(1024).0 };
    let cors = CorsLayer::new()
        .allow_origin(HeaderValue::from_static("https://app.example"))
        .allow_methods([Method::GET, Method::POST, Method::PUT])
        .allow_headers(AllowHeaders::mirror_request())
        .allow_credentials(true);
    let api = Router::new()
        .route("/orders", get(list).post(add))
        .route("/files", put(receive))
        .layer(middleware::from_fn(authenticate))
        .route("/login", post(login));
    let app = Router::new()
        .nest("/api", api)
        .route("/live", any(live))
        .fallback(get(|| async { Html(PAGE) }))
        .layer(cors)
        .with_state(orders);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
