use super::*;
use crate::authority::Grant;
use crate::codes::UnsubscribeCode;
use crate::command::{ConnectRequest, HistoryRequest, StreamPosition};
use crate::encoding::Encoding;
use crate::host::{Attempt, Counting, FoundPlace, Joined};
use crate::reply::{ClientInfo, HistoryResult, PresenceStatsResult};

/// A user's token is `USER`, `USER@UNIX` expires then, `bad` is not valid, and `old` has expired. A
/// channel's token is `CHANNEL` or `CHANNEL@UNIX`. Channels that begin with `$` need one.
struct Rules;

fn split(token: &str) -> (&str, Option<u64>) {
    match token.split_once('@') {
        Some((name, until)) => (name, Some(until.parse().unwrap())),
        None => (token, None),
    }
}

impl Authority for Rules {
    type Claims = ();

    fn connect(&self, request: &ConnectRequest) -> Result<Identity, Refusal> {
        match split(&request.token) {
            ("bad", _) => Err(Disconnect::InvalidToken.into()),
            ("old", _) => Err(ErrorCode::TokenExpired.into()),
            (user, expires) => Ok(Identity {
                user: user.to_owned(),
                expires,
                channels: user.strip_prefix("in:").map(str::to_owned).into_iter().collect(),
                ..Identity::default()
            }),
        }
    }

    fn refresh(&self, _: &Identity, token: &str) -> Result<Identity, Refusal> {
        self.connect(&ConnectRequest { token: token.to_owned(), ..ConnectRequest::default() })
    }

    fn subscribe(
        &self,
        _: &Identity,
        channel: &str,
        token: Option<&str>,
    ) -> Result<Grant, Refusal> {
        let (name, expires) = split(token.unwrap_or_default());
        if channel.starts_with('$') && name != channel {
            return Err(ErrorCode::PermissionDenied.into());
        }
        let (publishes, reads_history) = (!channel.contains("quiet"), true);
        let sees_presence = publishes;
        Ok(Grant { publishes, reads_history, sees_presence, expires, ..Grant::default() })
    }

    fn without_subscription(&self, _: &Identity, channel: &str) -> Grant {
        let publishes = channel == "open";
        Grant { publishes, reads_history: publishes, sees_presence: publishes, ..Grant::default() }
    }
}

/// Notes what a session does. Channels that begin with `late` have their place later.
#[derive(Default)]
struct Noted {
    out: Vec<u8>,
    done: Vec<String>,
}

impl Host for Noted {
    fn reply(&mut self, reply: &Reply) {
        Encoding::Json.encode(reply, &mut self.out);
    }

    fn ping(&mut self) {
        Encoding::Json.encode_ping(&mut self.out);
    }

    fn join(&mut self, channel: &str, info: &str, since: Option<&StreamPosition>) -> Joined {
        self.done.push(format!("join {channel} {info}"));
        match (channel, since) {
            ("lost", _) => Joined::At(place(false)),
            ("kept", Some(_)) => Joined::At(place(true)),
            ("kept", None) => Joined::At(place(false)),
            (name, _) if name.starts_with("late") => Joined::Later,
            _ => Joined::At(FoundPlace::default()),
        }
    }

    fn leave(&mut self, channel: &str) {
        self.done.push(format!("leave {channel}"));
    }

    fn publish(&mut self, _: u32, channel: &str, data: &[u8], by: &ClientInfo) -> Attempt<()> {
        let data = String::from_utf8_lossy(data);
        self.done.push(format!("publish {channel} {data} by {}", by.user));
        match channel {
            "down" => Attempt::Failed(ErrorCode::Internal),
            "later" => Attempt::Later,
            _ => Attempt::Done(()),
        }
    }

    fn presence(&mut self, _: u32, _: &str, _: Counting) -> Attempt<Reply> {
        let presence_stats = Some(PresenceStatsResult { num_clients: 2, num_users: 1 });
        Attempt::Done(Reply { presence_stats, ..Reply::default() })
    }

    fn history(&mut self, _: u32, request: &HistoryRequest) -> Attempt<HistoryResult> {
        self.done.push(format!("history {}", request.limit));
        Attempt::Done(HistoryResult::default())
    }
}

fn place(recovered: bool) -> FoundPlace {
    let data = b"{}".to_vec();
    let publication = crate::reply::Publication { data, offset: 8, ..Default::default() };
    let position = Some(StreamPosition { offset: 8, epoch: "e".to_owned() });
    FoundPlace { position, recovered, publications: vec![publication] }
}

/// A session at second 1000 since 1970.
struct Client {
    session: ClientSession,
    host: Noted,
    millis: u64,
}

impl Client {
    fn new() -> Self {
        let (host, millis) = (Noted::default(), 0);
        let session = ClientSession::new("c", Arc::new(Limits::default()), at(0));
        Self { session, host, millis }
    }

    fn connected(token: &str) -> Self {
        let mut client = Self::new();
        let connect = format!("{{\"id\":1,\"connect\":{{\"token\":\"{token}\"}}}}");
        client.send(&connect).unwrap();
        client
    }

    /// Sends a frame, and returns the lines of the answer.
    fn send(&mut self, frame: &str) -> Result<String, Disconnect> {
        for command in Encoding::Json.commands(frame.as_bytes()) {
            let command = command.map_err(|_| Disconnect::BadRequest)?;
            self.session.handle_command(&command, &Rules, &mut self.host, at(self.millis))?;
        }
        Ok(self.take())
    }

    fn take(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.host.out)).unwrap()
    }

    /// Lets time pass until the next deadline, and returns what is sent then.
    fn wait(&mut self) -> Result<String, Disconnect> {
        self.millis = self.session.next_deadline().unwrap();
        self.session.handle_time(&mut self.host, at(self.millis))?;
        Ok(self.take())
    }
}

fn at(millis: u64) -> Now {
    Now { millis, unix: 1000 + millis / 1000 }
}

fn error(id: u32, error: ErrorCode) -> String {
    let temporary = if error.is_temporary() { ",\"temporary\":true" } else { "" };
    let (code, text) = (error.code(), error.text());
    format!("{{\"id\":{id},\"error\":{{\"code\":{code},\"message\":\"{text}\"{temporary}}}}}")
}

#[test]
fn a_connect_is_first_and_only() {
    let mut client = Client::new();
    let version = env!("CARGO_PKG_VERSION");
    let connected = format!(
        "{{\"id\":1,\"connect\":{{\"client\":\"c\",\"version\":\"{version}\",\"ping\":25,\
         \"pong\":true}}}}"
    );
    assert_eq!(client.send("{\"id\":1,\"connect\":{}}").unwrap(), connected);
    assert_eq!(client.send("{\"id\":2,\"connect\":{}}"), Err(Disconnect::BadRequest));
    for early in [
        "{\"id\":1,\"subscribe\":{\"channel\":\"a\"}}",
        "{\"send\":{\"data\":1}}",
        "{\"id\":1}",
        "{}",
        "{\"connect\":{}}",
        "",
        "\n",
        "[]",
        "{\"id\":-1,\"connect\":{}}",
        "{\"id\":1,\"connect\":{}} {}",
        "{\"id\":1,\"connect\":7}",
    ] {
        assert_eq!(Client::new().send(early), Err(Disconnect::BadRequest), "{early}");
    }
}

#[test]
fn a_refused_connect_ends_the_session_at_the_next_command_or_after_a_time() {
    let mut client = Client::new();
    let expired = client.send("{\"id\":1,\"connect\":{\"token\":\"old\"}}").unwrap();
    assert_eq!(expired, error(1, ErrorCode::TokenExpired));
    assert_eq!(client.wait(), Err(Disconnect::Stale));
    assert_eq!(client.millis, 15_000);
    let again = client.send("{\"id\":2,\"connect\":{\"token\":\"ann\"}}");
    assert_eq!(again, Err(Disconnect::BadRequest));
    let bad = Client::new().send("{\"id\":1,\"connect\":{\"token\":\"bad\"}}");
    assert_eq!(bad, Err(Disconnect::InvalidToken));
    assert_eq!(Client::new().wait(), Err(Disconnect::Stale), "no connect comes");
}

#[test]
fn several_commands_of_a_frame_are_answered_in_order() {
    let mut client = Client::connected("ann");
    let answers = client
        .send(
            "{\"id\":2,\"subscribe\":{\"channel\":\"a\"}}\n\
             {\"id\":3,\"publish\":{\"channel\":\"a\",\"data\":{\"n\": 1}}}\n\
             {\"id\":4,\"unsubscribe\":{\"channel\":\"a\"}}\n",
        )
        .unwrap();
    let expected =
        "{\"id\":2,\"subscribe\":{}}\n{\"id\":3,\"publish\":{}}\n{\"id\":4,\"unsubscribe\":{}}";
    assert_eq!(answers, expected);
    let done = ["join a {\"@user\":\"ann\"}", "publish a {\"n\": 1} by ann", "leave a"];
    assert_eq!(client.host.done, done);
}

#[test]
fn each_mistake_has_its_code() {
    use ErrorCode::*;
    let long = "x".repeat(256);
    let long = format!("{{\"id\":9,\"subscribe\":{{\"channel\":\"{long}\"}}}}");
    for (command, expected) in [
        ("{\"id\":9,\"subscribe\":{\"channel\":\"$a\"}}", PermissionDenied),
        ("{\"id\":9,\"subscribe\":{\"channel\":\"$a\",\"token\":\"$a@999\"}}", Expired),
        (&long, BadRequest),
        ("{\"id\":9,\"subscribe\":{\"channel\":\"a\",\"tf\":{\"op\":\"x\"}}}", BadRequest),
        ("{\"id\":9,\"subscribe\":{\"channel\":\"a\",\"type\":1}}", NotAvailable),
        (
            "{\"id\":9,\"subscribe\":{\"channel\":\"lost\",\"recover\":true,\"flag\":2}}",
            UnrecoverablePosition,
        ),
        ("{\"id\":9,\"publish\":{\"channel\":\"a\",\"data\":1}}", PermissionDenied),
        ("{\"id\":9,\"publish\":{\"channel\":\"open\"}}", BadRequest),
        ("{\"id\":9,\"publish\":{\"channel\":\"open\",\"data\":1,\"type\":1}}", NotAvailable),
        ("{\"id\":9,\"presence\":{\"channel\":\"a\"}}", PermissionDenied),
        ("{\"id\":9,\"presence_stats\":{\"channel\":\"a\"}}", PermissionDenied),
        ("{\"id\":9,\"history\":{\"channel\":\"a\"}}", PermissionDenied),
        ("{\"id\":9,\"rpc\":{\"method\":\"f\",\"data\":{}}}", NotAvailable),
        ("{\"id\":9,\"ping\":{}}", NotAvailable),
        ("{\"id\":9,\"sub_refresh\":{\"channel\":\"a\",\"token\":\"a\"}}", PermissionDenied),
    ] {
        let mut client = Client::connected("ann");
        assert_eq!(client.send(command).unwrap(), error(9, expected), "{command}");
        assert!(client.session.subscriptions.is_empty(), "{command}");
    }
    for (command, expected) in [
        ("{\"id\":9,\"subscribe\":{}}", Disconnect::BadRequest),
        ("{\"id\":9,\"subscribe\":{\"channel\":\"a\",\"delta\":\"x\"}}", Disconnect::BadRequest),
        ("{\"id\":9,\"unsubscribe\":{}}", Disconnect::BadRequest),
        ("{\"id\":9,\"publish\":{\"data\":1}}", Disconnect::BadRequest),
        ("{\"id\":9,\"refresh\":{}}", Disconnect::BadRequest),
        ("{\"id\":9,\"refresh\":{\"token\":\"bob\"}}", Disconnect::InvalidToken),
        ("{\"id\":9,\"refresh\":{\"token\":\"bad\"}}", Disconnect::InvalidToken),
        ("{\"id\":9,\"later\":{}}", Disconnect::BadRequest),
        ("{\"send\":{\"data\":1}}", Disconnect::NotAvailable),
        ("{\"subscribe\":{\"channel\":\"a\"}}", Disconnect::BadRequest),
        ("{}", Disconnect::BadRequest),
        ("{\"id\":9", Disconnect::BadRequest),
    ] {
        assert_eq!(Client::connected("ann").send(command), Err(expected), "{command}");
    }
}

#[test]
fn a_channel_is_joined_once_and_channels_are_counted() {
    let mut client = Client::connected("ann");
    let subscribe = |id: u32| format!("{{\"id\":{id},\"subscribe\":{{\"channel\":\"c{id}\"}}}}");
    for id in 2..130 {
        client.send(&subscribe(id)).unwrap();
    }
    assert_eq!(client.send(&subscribe(130)).unwrap(), error(130, ErrorCode::LimitExceeded));
    assert_eq!(client.send(&subscribe(2)).unwrap(), error(2, ErrorCode::AlreadySubscribed));
    client.send("{\"id\":131,\"unsubscribe\":{\"channel\":\"c2\"}}").unwrap();
    assert!(client.send(&subscribe(130)).unwrap().contains("\"subscribe\":{}"));
}

#[test]
fn a_client_recovers_all_or_learns_that_it_does_not() {
    let mut client = Client::connected("ann");
    let since = "\"recover\":true,\"epoch\":\"e\",\"offset\":7";
    let recovered = client
        .send(&format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"kept\",{since}}}}}"))
        .unwrap();
    let expected = "{\"id\":2,\"subscribe\":{\"recoverable\":true,\"epoch\":\"e\",\
                    \"publications\":[{\"data\":{},\"offset\":8}],\"recovered\":true,\
                    \"offset\":7,\"positioned\":true,\"was_recovering\":true}}";
    assert_eq!(recovered, expected);
    let lost = client
        .send(&format!("{{\"id\":3,\"subscribe\":{{\"channel\":\"lost\",{since}}}}}"))
        .unwrap();
    let expected = "{\"id\":3,\"subscribe\":{\"recoverable\":true,\"epoch\":\"e\",\"offset\":8,\
                    \"positioned\":true,\"was_recovering\":true}}";
    assert_eq!(lost, expected);
    client.send("{\"id\":4,\"unsubscribe\":{\"channel\":\"kept\"}}").unwrap();
    let fresh = client.send("{\"id\":5,\"subscribe\":{\"channel\":\"kept\"}}").unwrap();
    let expected = "{\"id\":5,\"subscribe\":{\"recoverable\":true,\"epoch\":\"e\",\"offset\":8,\
                    \"positioned\":true}}";
    assert_eq!(fresh, expected);
}

#[test]
fn more_publications_than_the_limit_are_not_recovered() {
    let mut client = Client::connected("ann");
    client.send("{\"id\":2,\"subscribe\":{\"channel\":\"late\",\"recover\":true}}").unwrap();
    let mut many = place(true);
    many.publications = vec![many.publications[0].clone(); 301];
    client.session.handle_place("late", many, &mut client.host, at(0)).unwrap();
    let answer = client.take();
    assert!(answer.contains("\"was_recovering\":true"), "{answer}");
    assert!(!answer.contains("\"recovered\"") && !answer.contains("publications"), "{answer}");
}

#[test]
fn a_place_that_comes_later_is_answered_then() {
    let mut client = Client::connected("ann");
    assert_eq!(client.send("{\"id\":2,\"subscribe\":{\"channel\":\"late\"}}").unwrap(), "");
    let again = client.send("{\"id\":3,\"subscribe\":{\"channel\":\"late\"}}").unwrap();
    assert_eq!(again, error(3, ErrorCode::AlreadySubscribed));
    client.session.handle_place("late", FoundPlace::default(), &mut client.host, at(0)).unwrap();
    assert_eq!(client.take(), "{\"id\":2,\"subscribe\":{}}");
    client.session.handle_place("late", FoundPlace::default(), &mut client.host, at(0)).unwrap();
    assert_eq!(client.take(), "", "it is answered once");
    client.send("{\"id\":4,\"subscribe\":{\"channel\":\"late2\"}}").unwrap();
    let left = client.send("{\"id\":5,\"unsubscribe\":{\"channel\":\"late2\"}}").unwrap();
    assert_eq!(left, error(4, ErrorCode::Internal) + "\n{\"id\":5,\"unsubscribe\":{}}");
}

#[test]
fn server_side_subscriptions_come_with_the_connect() {
    let connect = "{\"id\":1,\"connect\":{\"token\":\"in:kept\",\
                   \"subs\":{\"kept\":{\"recover\":true,\"epoch\":\"e\",\"offset\":7}}}}";
    let answer = Client::new().send(connect).unwrap();
    assert!(
        answer.contains("\"subs\":{\"kept\":{\"recoverable\":true,\"epoch\":\"e\""),
        "{answer}"
    );
    assert!(answer.contains("\"recovered\":true,\"offset\":7"), "{answer}");
    let mut client = Client::connected("in:late");
    assert_eq!(client.take(), "");
    client.session.handle_place("late", FoundPlace::default(), &mut client.host, at(0)).unwrap();
    let answer = client.take();
    assert!(answer.starts_with("{\"id\":1,\"connect\":{"), "{answer}");
    assert!(answer.contains("\"subs\":{\"late\":{}}"), "{answer}");
    let again = client.send("{\"id\":2,\"subscribe\":{\"channel\":\"late\"}}").unwrap();
    assert_eq!(again, error(2, ErrorCode::AlreadySubscribed));
}

#[test]
fn a_ping_is_answered_once_and_in_time() {
    let mut client = Client::connected("ann");
    assert_eq!(client.wait().unwrap(), "{}");
    assert!((12_500..=25_000).contains(&client.millis), "{}", client.millis);
    assert_eq!(client.send("{}").unwrap(), "");
    assert_eq!(client.send("{}"), Err(Disconnect::BadRequest), "it has answered");
    let pinged = client.millis;
    assert_eq!(client.wait().unwrap(), "{}");
    assert_eq!(client.millis, pinged + 25_000);
    assert_eq!(client.wait(), Err(Disconnect::NoPong));
    assert_eq!(client.millis, pinged + 33_000);
}

#[test]
fn more_pings_do_not_give_a_silent_client_more_time() {
    let mut client = Client::new();
    let ping_interval = std::time::Duration::from_secs(3);
    let limits = Limits { ping_interval, ..Limits::default() };
    client.session = ClientSession::new("c", Arc::new(limits), at(0));
    client.send("{\"id\":1,\"connect\":{}}").unwrap();
    assert_eq!(client.wait().unwrap(), "{}");
    let pinged = client.millis;
    let end = loop {
        match client.wait() {
            Ok(ping) => assert_eq!(ping, "{}"),
            Err(reason) => break reason,
        }
    };
    assert_eq!((end, client.millis), (Disconnect::NoPong, pinged + 8_000));
}

#[test]
fn a_connection_ends_some_time_after_its_token_unless_another_one_comes() {
    let mut client = Client::connected("ann@1010");
    let refreshed = client.send("{\"id\":2,\"refresh\":{\"token\":\"ann@1020\"}}").unwrap();
    assert!(refreshed.contains("\"expires\":true,\"ttl\":20"), "{refreshed}");
    let answer = client.send("{\"id\":3,\"refresh\":{\"token\":\"ann@999\"}}").unwrap();
    assert_eq!(answer, error(3, ErrorCode::Expired));
    let old = client.send("{\"id\":4,\"refresh\":{\"token\":\"old\"}}").unwrap();
    assert_eq!(old, error(4, ErrorCode::TokenExpired));
    let end = loop {
        match client.wait() {
            Ok(ping) => assert_eq!((ping.as_str(), client.send("{}")), ("{}", Ok(String::new()))),
            Err(reason) => break reason,
        }
    };
    assert_eq!((end, client.millis), (Disconnect::Expired, 45_000));
}

#[test]
fn a_subscription_ends_some_time_after_its_token_unless_another_one_comes() {
    let mut client = Client::connected("ann");
    let subscribe = "{\"id\":2,\"subscribe\":{\"channel\":\"$a\",\"token\":\"$a@1003\"}}";
    let answer = client.send(subscribe).unwrap();
    assert_eq!(answer, "{\"id\":2,\"subscribe\":{\"expires\":true,\"ttl\":3}}");
    for (token, expected) in [
        ("", error(3, ErrorCode::BadRequest)),
        ("$b", error(3, ErrorCode::PermissionDenied)),
        ("$a@999", error(3, ErrorCode::Expired)),
        ("$a@1005", "{\"id\":3,\"sub_refresh\":{\"expires\":true,\"ttl\":5}}".to_owned()),
    ] {
        let refresh =
            format!("{{\"id\":3,\"sub_refresh\":{{\"channel\":\"$a\",\"token\":\"{token}\"}}}}");
        assert_eq!(client.send(&refresh).unwrap(), expected);
    }
    client.send("{\"id\":4,\"subscribe\":{\"channel\":\"b\"}}").unwrap();
    let sent = loop {
        match client.wait().unwrap().as_str() {
            "{}" => drop(client.send("{}").unwrap()),
            other => break other.to_owned(),
        }
    };
    let expected = "{\"push\":{\"channel\":\"$a\",\"unsubscribe\":{\"code\":2501,\
                    \"reason\":\"subscription expired\"}}}";
    assert_eq!((sent.as_str(), client.millis), (expected, 30_000));
    assert!(client.session.is_subscribed("b") && !client.session.is_subscribed("$a"));
}

#[test]
fn publications_wait_for_their_fate_and_histories_are_bounded() {
    let mut client = Client::connected("ann");
    for channel in ["down", "later", "quiet"] {
        client.send(&format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"{channel}\"}}}}")).unwrap();
    }
    for (channel, expected) in [
        ("down", error(3, ErrorCode::Internal)),
        ("later", String::new()),
        ("quiet", error(3, ErrorCode::PermissionDenied)),
        ("open", "{\"id\":3,\"publish\":{}}".to_owned()),
    ] {
        let publish =
            format!("{{\"id\":3,\"publish\":{{\"channel\":\"{channel}\",\"data\":null}}}}");
        assert_eq!(client.send(&publish).unwrap(), expected, "{channel}");
    }
    client.host.done.clear();
    for limit in [-1, 0, 10, 1_000] {
        let history =
            format!("{{\"id\":4,\"history\":{{\"channel\":\"open\",\"limit\":{limit}}}}}");
        client.send(&history).unwrap();
    }
    assert_eq!(client.host.done, ["history 300", "history 0", "history 10", "history 300"]);
    let stats = client.send("{\"id\":5,\"presence_stats\":{\"channel\":\"open\"}}").unwrap();
    assert_eq!(stats, "{\"id\":5,\"presence_stats\":{\"num_clients\":2,\"num_users\":1}}");
}

#[test]
fn the_server_ends_a_subscription() {
    let mut client = Client::connected("ann");
    client.send("{\"id\":2,\"subscribe\":{\"channel\":\"a\"}}").unwrap();
    client.session.unsubscribe("a", UnsubscribeCode::Insufficient, &mut client.host);
    let expected = "{\"push\":{\"channel\":\"a\",\"unsubscribe\":{\"code\":2500,\
                    \"reason\":\"insufficient state\"}}}";
    assert_eq!(client.take(), expected);
    client.session.unsubscribe("a", UnsubscribeCode::Insufficient, &mut client.host);
    assert_eq!(client.take(), "", "it has ended");
}
