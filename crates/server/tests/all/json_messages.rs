//! Messages that are values as JSON.

use throng::http::Json;
use throng::prelude::*;
use throng::test::TestServer;

#[test]
fn values_are_sent_published_and_parsed_as_json() {
    let sums = Ws::new().on_open(|ws, ()| ws.subscribe("sums")).on_message(|ws, (), message| {
        let Ok((name, numbers)) = message.json::<(&str, Vec<u32>)>() else {
            return ws.close(CloseCode::INVALID_PAYLOAD, "not what is summed up");
        };
        ws.send(Json(("got", numbers.len())));
        ws.publish("sums", Json((name, numbers.iter().sum::<u32>())));
    });
    let server = TestServer::start(Server::new(App::new().ws("/", sums)));
    let mut client = server.ws("/");
    client.send(r#"["a", [1, 2, 3]]"#).unwrap();
    assert_eq!(client.recv().unwrap(), Some(Message::Text(r#"["got",3]"#)));
    let message = OwnedMessage::from(client.recv().unwrap().unwrap());
    assert_eq!(message.json::<(String, u32)>().unwrap(), ("a".to_owned(), 6));
    server.hub().publish("sums", Json([7])).unwrap();
    assert_eq!(client.recv().unwrap(), Some(Message::Text("[7]")));
    client.send("7").unwrap();
    assert_eq!(client.recv().unwrap(), None);
    assert_eq!(client.close_frame().unwrap().code, CloseCode::INVALID_PAYLOAD);
}

#[test]
fn a_value_that_cannot_be_json_ends_its_session() {
    let wrong = Ws::new().on_message(|ws, (), _| {
        ws.send(Json(std::collections::BTreeMap::from([((1, 2), 3)])));
    });
    let server = TestServer::start(Server::new(App::new().ws("/", wrong)));
    let mut client = server.ws("/");
    client.send("x").unwrap();
    assert_eq!(client.recv().unwrap(), None);
    assert_eq!(client.close_frame().unwrap().code, CloseCode::INTERNAL_ERROR);
}
