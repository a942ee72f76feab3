//! The HTTP API for applications.

use std::io::{Read, Write};
use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use throng_proto::ws::Opcode;
use throng_testkit::{Client, Got, TempFolder};

use super::{Served, dial};

const KEY: &str = "f5b1c0de";

/// A folder with the keys of the API.
pub(super) fn folder() -> TempFolder {
    let hash = digest(&SHA256, KEY.as_bytes());
    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let folder = TempFolder::new("api");
    folder.write("api.keys", format!("# of the shop\nshop:{hash}\n"));
    folder
}

pub(super) fn start(folder: &TempFolder, words: &[&str]) -> Served {
    let keys = format!("api_keys_file={}", folder.join("api.keys").display());
    Served::start(&[&["--set", &keys][..], words].concat())
}

/// The head and the body of the answer to a command, with these header lines.
fn send(address: SocketAddr, command: &str, body: &str, headers: &str) -> (String, String) {
    let mut stream = dial(address);
    write!(
        stream,
        "POST /api/{command} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The answer to a command with the key.
pub(super) fn ask(served: &Served, command: &str, body: &Value) -> Value {
    let headers = format!("X-API-Key: {KEY}\r\n");
    let (head, answer) = send(served.address, command, &body.to_string(), &headers);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    serde_json::from_str(&answer).unwrap()
}

fn texts<const N: usize>(client: &mut Client, texts: [&str; N]) {
    for text in texts {
        assert_eq!(client.next(), Got::Text(text.to_owned()));
    }
}

#[test]
fn an_application_publishes_as_it_wrote_it() {
    let folder = folder();
    let served = start(&folder, &[]);
    let mut client = Client::connect(served.address, "/ws/news");
    let headers = format!("Authorization: apikey {KEY}\r\n");
    let body = "{\"channel\": \"news\", \"data\": {\"b\":  1, \"a\": 1.50}}";
    let (_, answer) = send(served.address, "publish", body, &headers);
    assert_eq!(answer, "{\"result\":{}}");
    let sent = json!({"channel": "news", "b64data": "w6k="});
    assert_eq!(ask(&served, "publish", &sent), json!({"result": {}}));
    let sent = json!({"channel": "news", "b64data": "/w=="});
    assert_eq!(ask(&served, "publish", &sent), json!({"result": {}}));
    texts(&mut client, ["{\"b\":  1, \"a\": 1.50}", "\u{e9}"]);
    assert_eq!(client.next(), Got::Binary(vec![255]));
    let mut other = Client::connect(served.address, "/ws/other");
    let all = json!({"channels": ["news", "other", ""], "data": "hello"});
    let answer = ask(&served, "broadcast", &all);
    let responses = answer["result"]["responses"].as_array().unwrap();
    assert_eq!(responses[..2], [json!({"result": {}}), json!({"result": {}})]);
    assert_eq!(responses[2]["error"]["code"], 107);
    texts(&mut client, ["\"hello\""]);
    texts(&mut other, ["\"hello\""]);
}

#[test]
fn only_holders_of_a_key_may_use_it() {
    let folder = folder();
    let served = start(&folder, &[]);
    let body = "{\"channel\":\"news\",\"data\":1}";
    for (headers, status) in [
        (String::new(), 401),
        ("X-API-Key: wrong\r\n".to_owned(), 401),
        (format!("Authorization: Bearer {KEY}\r\n"), 401),
        (format!("X-API-Key: {KEY}\r\nOrigin: http://localhost\r\n"), 403),
        (format!("X-API-Key: {KEY}\r\nSec-Fetch-Site: same-origin\r\n"), 403),
        (format!("X-API-Key: {KEY}\r\n"), 200),
    ] {
        let (head, _) = send(served.address, "publish", body, &headers);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {head}");
    }
    let (head, _) = send(served.address, &format!("publish?api_key={KEY}"), body, "");
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    // A server without keys has no API for clients.
    let served = Served::start(&[]);
    let (head, _) = send(served.address, "publish", body, &format!("X-API-Key: {KEY}\r\n"));
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
}

#[test]
fn a_command_with_a_mistake_gets_its_code() {
    let folder = folder();
    let served = start(&folder, &[]);
    for (command, body, code) in [
        ("nothing", json!({}), 104),
        ("publish", json!({}), 107),
        ("publish", json!({"channel": "a"}), 107),
        ("publish", json!({"channel": "a", "data": 1, "b64data": "AA=="}), 107),
        ("publish", json!({"channel": "", "data": 1}), 107),
        ("publish", json!({"channel": "a", "b64data": "!"}), 107),
        ("publish", json!({"channel": "a", "data": 1, "tags": {"a": "b"}}), 108),
        ("broadcast", json!({"channels": [], "data": 1}), 107),
        ("history", json!({"channel": "a"}), 108),
        ("presence", json!({"channel": "a"}), 108),
        ("disconnect", json!({"client": "ann"}), 107),
        ("disconnect", json!({"client": "0000000000000001", "disconnect": {"code": 7}}), 107),
        ("unsubscribe", json!({"channel": "a"}), 107),
        ("channels", json!({"pattern": "a..b"}), 107),
        ("batch", json!({"commands": [{"a": {}, "b": {}}, {"batch": {}}]}), 0),
    ] {
        let answer = ask(&served, command, &body);
        match code {
            0 => {
                let replies = answer["result"]["replies"].as_array().unwrap();
                assert!(replies.iter().all(|reply| reply["error"]["code"] == 107), "{answer}");
            }
            code => assert_eq!(answer["error"]["code"], code, "{command} {body}: {answer}"),
        }
    }
    let headers = format!("X-API-Key: {KEY}\r\n");
    let (_, answer) = send(served.address, "publish", "not JSON", &headers);
    assert!(answer.contains("\"code\":107"), "{answer}");
}

#[test]
fn an_application_sees_histories_members_and_channels() {
    let folder = folder();
    let rule = "chat=close,history=10/1m,presence=true";
    let served = start(&folder, &["--channel", rule]);
    let mut client = Client::connect(served.address, "/ws/chat?info=ann&echo=1");
    let command = |number: u32| json!({"publish": {"channel": "chat", "data": number}});
    let batch = json!({"commands": [command(1), command(2), command(3)]});
    let answer = ask(&served, "batch", &batch);
    let replies = answer["result"]["replies"].as_array().unwrap();
    let offsets: Vec<_> = replies.iter().map(|reply| &reply["publish"]["offset"]).collect();
    assert_eq!(offsets, [1, 2, 3]);
    texts(&mut client, ["1", "2", "3"]);
    let history = |more: Value| {
        let mut body = json!({"channel": "chat", "limit": -1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&served, "history", &body)
    };
    let all = history(json!({}));
    let epoch = &all["result"]["epoch"];
    let data = |answer: &Value| -> Vec<u64> {
        let publications = answer["result"]["publications"].as_array().unwrap();
        publications.iter().map(|one| one["data"].as_u64().unwrap()).collect()
    };
    assert_eq!((data(&all), &all["result"]["offset"]), (vec![1, 2, 3], &json!(3)));
    assert!(data(&history(json!({"limit": 0}))).is_empty());
    assert_eq!(data(&history(json!({"limit": 2}))), [1, 2]);
    assert_eq!(data(&history(json!({"limit": 2, "reverse": true}))), [3, 2]);
    let since = |offset: u64| json!({"since": {"offset": offset, "epoch": epoch}});
    assert_eq!(data(&history(since(1))), [2, 3]);
    assert_eq!(history(since(9))["error"]["code"], 112);
    let presence = ask(&served, "presence", &json!({"channel": "chat"}));
    let members = presence["result"]["presence"].as_object().unwrap();
    let (id, member) = members.iter().next().unwrap();
    assert_eq!(member["conn_info"], "ann");
    let stats = ask(&served, "presence_stats", &json!({"channel": "chat"}));
    assert_eq!(stats, json!({"result": {"num_clients": 1, "num_users": 1}}));
    let channels = ask(&served, "channels", &json!({}));
    assert_eq!(channels, json!({"result": {"channels": {"chat": {"num_clients": 1}}}}));
    assert_eq!(ask(&served, "info", &json!({}))["result"]["nodes"][0]["num_channels"], 1);
    // A client of presence can be sent away.
    let why = json!({"client": id, "disconnect": {"code": 4321, "reason": "bye"}});
    assert_eq!(ask(&served, "disconnect", &why), json!({"result": {}}));
    assert_eq!(client.next(), Got::Close(4321, "bye".to_owned()));
}

#[test]
fn a_command_is_repeated_without_effect() {
    let folder = folder();
    let served = start(&folder, &[]);
    let mut client = Client::connect(served.address, "/ws/news");
    for (data, key) in [("one", "1"), ("again", "1"), ("two", "2")] {
        let body = json!({"channel": "news", "data": data, "idempotency_key": key});
        assert_eq!(ask(&served, "publish", &body), json!({"result": {}}));
    }
    texts(&mut client, ["\"one\"", "\"two\""]);
    client.send(Opcode::Ping, b"the end");
    assert_eq!(client.next_of_any_kind(), Got::Pong(b"the end".to_vec()));
}
