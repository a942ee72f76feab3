//! Authentication with a token, in the header `Authorization: Bearer` or, for browsers, which
//! cannot set headers of a WebSocket, in the query: `ws://127.0.0.1:9001/?token=letmein`.
//!
//! A client without a valid token gets 401 instead of an upgrade.

use throng::prelude::*;

/// The user of a token. A real program would look into its sessions, or check a signature.
fn user_of(token: &str) -> Option<&'static str> {
    match token {
        "letmein" => Some("ada"),
        _ => None,
    }
}

fn app() -> App {
    let greeter = Ws::from_request(|request| {
        let token = request.bearer().or_else(|| request.query("token"));
        let user = token.and_then(user_of).ok_or(Reject::unauthorized())?;
        Ok(user.to_owned())
    })
    .max_message_size(16 << 10)
    .on_message(|ws, user, message| {
        let text = String::from_utf8_lossy(message.as_bytes());
        ws.send(format!("{user}: {text}"))
    });
    App::new().ws("/", greeter)
}

fn main() -> throng::Result<()> {
    Server::new(app()).bind("127.0.0.1:9001")?.run()
}

#[cfg(all(test, feature = "test"))]
mod tests {
    use throng::client::ClientError;
    use throng::test::TestServer;

    use super::*;

    #[test]
    fn a_token_is_taken_from_the_header_and_from_the_query() {
        let server = TestServer::start(Server::new(app()));
        let bearer = server.client("/").header("Authorization", "Bearer letmein");
        for builder in [bearer, server.client("/?token=letmein")] {
            let mut client = builder.connect().unwrap();
            client.send("hello").unwrap();
            assert_eq!(client.recv().unwrap(), Some(Message::Text("ada: hello")));
        }
        let error = server.client("/?token=guess").connect().unwrap_err();
        assert!(matches!(error, ClientError::Refused(refused) if refused.status == 401));
    }
}
