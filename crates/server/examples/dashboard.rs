//! A dashboard: an API with a login, a page that routes itself,
//! `http://127.0.0.1:9001/orders/hello`, and one path for new orders, as a WebSocket and as
//! server-sent events.
//!
//! ```text
//! curl -c jar -d name=ada http://127.0.0.1:9001/api/login
//! curl -b jar -d 'two chairs' http://127.0.0.1:9001/api/orders
//! curl -b jar -T plan.pdf http://127.0.0.1:9001/api/files
//! ```

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use throng::http::{BodyReader, Cors, Next};
use throng::prelude::*;

const PAGE: &str = "<!doctype html><title>hello</title><ul id=new></ul><script>\
    new EventSource('/live').onmessage = event => \
    document.querySelector('#new').append(event.data, document.createElement('br'))</script>\n";
const NEWS: &str = "news";

/// Orders, and the hub that announces them. An order is added and announced under one lock, so
/// announcements have the same sequence as the orders.
#[derive(Clone)]
struct Orders {
    all: Arc<Mutex<Vec<String>>>,
    hub: Hub,
}

impl Orders {
    fn add(&self, order: String) -> Response {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.hub.publish(NEWS, &order);
        all.push(order);
        Response::new(Status::CREATED)
    }

    fn list(&self) -> String {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|order| format!("{order}\n")).collect()
    }
}

/// Admits only clients that have logged in. A real program would look up the cookie among its
/// sessions.
fn authenticate(request: &mut Request<'_>) -> Next {
    match request.cookie("name") {
        Some(_) => Next::Continue,
        None => Next::respond(Reject::unauthorized()),
    }
}

/// Receives a body and publishes the progress after each chunk.
fn receive(mut body: BodyReader, hub: &Hub) -> io::Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; 64 << 10], 0);
    loop {
        match body.read(&mut buffer)? {
            0 => return Ok(bytes),
            count => bytes += count as u64,
        }
        let _ = hub.publish(NEWS, format!("upload: {bytes} bytes"));
    }
}

pub(crate) fn server() -> Server {
    let hub = Hub::new();
    let orders = Orders { all: Arc::default(), hub: hub.clone() };
    let (adds, uploads) = (orders.clone(), hub.clone());
    let upload = Route::streaming(Method::Put, move |_, body, responder| {
        let hub = uploads.clone();
        thread::spawn(move || match receive(body, &hub) {
            Ok(bytes) => responder.send((201, format!("{bytes} bytes\n"))),
            Err(error) => {
                let _ = hub.publish(NEWS, format!("upload: {error}"));
            }
        });
    });
    let api = App::new()
        .get("/orders", move |_| orders.list())
        .post("/orders", move |request| match request.body_text() {
            Some(order) => adds.add(order.to_owned()),
            None => Response::error(Status::BAD_REQUEST, "an order is text"),
        })
        .route("/files", upload.max_body(1 << 40))
        .layer(authenticate)
        .post("/login", |request| {
            let name = request.form("name").ok_or(Reject::bad_request("send name=..."))?;
            let cookie = format!("name={name}; Path=/; HttpOnly; SameSite=Lax");
            Ok::<_, Reject>(Response::new(Status::NO_CONTENT).header("Set-Cookie", cookie)?)
        });
    let live = Ws::new().on_open(|ws, ()| ws.subscribe(NEWS));
    let app = App::new()
        .nest("/api", api)
        .ws("/live", live)
        .sse("/live", |_| Ok(NEWS))
        .get("/", |_| Response::html(PAGE))
        .get("/{*path}", |_| Response::html(PAGE))
        .layer(Cors::new(["https://app.example"]).credentials(true));
    Server::new(app).with_hub(&hub)
}

#[allow(dead_code, reason = "a test uses the server alone")]
fn main() -> throng::Result<()> {
    server().bind("127.0.0.1:9001")?.run()
}
