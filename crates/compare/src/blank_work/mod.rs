//! The server that the public suite NetBenchmarks compares, blank or at work.
//!
//! Any path and method. On a WebSocket, which the suite does not specify, the server works in both
//! modes: it answers an empty message with the text `OK`, and a document in a text message with its
//! answer. Any other message ends the session with 1007 (RFC 6455 section 7.4.1).

mod document;
mod timestamp;

use throng::prelude::*;

use self::document::Mistake;
use crate::word::words;

words! {
    /// Cost of a request at the server. `0` and `1` are the suite's names.
    enum Mode {
        /// No work: the answer is OK
        #[value(alias = "0")]
        Blank = "blank",
        /// The answer to the JSON document in the request's body
        #[value(alias = "1")]
        Work = "work",
    }
}

impl Mode {
    /// The argument with which the suite starts a server: `0` or `1`.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Blank => "0",
            Self::Work => "1",
        }
    }
}

/// Returns the benchmark's routes.
pub fn app(mode: Mode) -> App {
    let app = App::new().ws("/{*rest}", Ws::new().on_message(message));
    app.any("/{*rest}", move |request| match mode {
        Mode::Blank => Response::new(Status::OK).with_body("text/plain", "OK"),
        Mode::Work => work(request.body()),
    })
}

fn work(body: &[u8]) -> Response {
    match str::from_utf8(body).map_err(Mistake::from).and_then(document::answer) {
        Ok(answer) => Response::new(Status::OK).with_bytes("application/json", answer),
        Err(mistake) => Response::error(Status::BAD_REQUEST, &mistake.to_string()),
    }
}

fn message(ws: &mut Socket<'_>, (): &mut (), message: Message<'_>) {
    match message {
        Message::Text("") | Message::Binary([]) => {
            ws.send("OK");
        }
        Message::Text(text) => match document::answer(text) {
            // The whole answer is checked here, because pieces written separately are only known to
            // be bytes.
            Ok(answer) => {
                ws.send(&*String::from_utf8_lossy(&answer));
            }
            Err(mistake) => ws.close(CloseCode::INVALID_PAYLOAD, &mistake.to_string()),
        },
        Message::Binary(_) => ws.close(CloseCode::UNSUPPORTED_DATA, "send the document as text"),
    }
}
