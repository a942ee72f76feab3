//! A small JSON API over a map in memory:
//!
//! ```text
//! curl -X PUT -d '"hello"' http://127.0.0.1:9001/notes/1
//! curl http://127.0.0.1:9001/notes/1
//! curl http://127.0.0.1:9001/notes
//! ```

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use throng::prelude::*;

/// Shared by all handlers. Each holds the lock only briefly.
#[derive(Default)]
struct Notes(Mutex<BTreeMap<String, Value>>);

impl Notes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn body(request: &Request<'_>) -> Result<Value, Reject> {
    let wrong = |error: serde_json::Error| Reject::bad_request(error.to_string());
    // Text that is not valid JSON counts as a string, so that `curl -d hello` works.
    serde_json::from_slice(request.body())
        .or_else(|error| request.body_text().map(Value::from).ok_or_else(|| wrong(error)))
}

fn id<'r>(request: &'r Request<'_>) -> &'r str {
    request.param("id").unwrap_or_default()
}

fn routes() -> StateApp<Notes> {
    App::with_state(Notes::default())
        .get("/", |_, notes| Response::json(json!(*notes.lock()).to_string()))
        .get("/{id}", |request, notes| {
            let notes = notes.lock();
            let note = notes.get(id(request)).ok_or(Reject::not_found())?;
            Ok::<_, Reject>(Response::json(note.to_string()))
        })
        .put("/{id}", |request, notes| {
            let old = notes.lock().insert(id(request).to_owned(), body(request)?);
            Ok::<_, Reject>(if old.is_some() { Status::OK } else { Status::CREATED })
        })
        .delete("/{id}", |request, notes| match notes.lock().remove(id(request)) {
            Some(_) => Response::new(Status::NO_CONTENT),
            None => Response::error(Status::NOT_FOUND, "no such note"),
        })
}

fn main() -> throng::Result<()> {
    let app = App::new().nest("/notes", routes()).max_body(64 << 10);
    Server::new(app).bind("127.0.0.1:9001")?.run()
}

#[cfg(all(test, feature = "test"))]
mod tests {
    use throng::test::LocalServer;

    use super::*;

    #[test]
    fn a_note_is_kept_until_it_is_deleted() {
        let app = App::new().nest("/notes", routes());
        let server = LocalServer::start(Server::new(app));
        assert_eq!(server.get("/notes/1").status, 404);
        assert_eq!(server.request("PUT", "/notes/1", &[], br#""hello""#).status, 201);
        assert_eq!(server.get("/notes/1").text(), r#""hello""#);
        assert_eq!(server.get("/notes").text(), r#"{"1":"hello"}"#);
        assert_eq!(server.request("DELETE", "/notes/1", &[], b"").status, 204);
        assert_eq!(server.get("/notes").text(), "{}");
    }
}
