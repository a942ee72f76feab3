//! Frames of a client of the Centrifuge protocol: each is read or refused, and a session answers
//! every command with messages of its encoding, or ends.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use throng_centrifuge::command::{ClientCommand, ConnectRequest, HistoryRequest, StreamPosition};
use throng_centrifuge::reply::{ClientInfo, HistoryResult, Publication, Reply};
use throng_centrifuge::{
    Attempt, Authority, ClientSession, Counting, Encoding, FoundPlace, Grant, Host, Identity,
    Joined, Limits, Now, Refusal,
};

/// Everyone may do everything.
struct Anyone;

fn all(expires: Option<u64>) -> Grant {
    let info = b"[]".to_vec();
    Grant { publishes: true, reads_history: true, sees_presence: true, info, expires }
}

impl Authority for Anyone {
    type Claims = ();

    fn connect(&self, request: &ConnectRequest) -> Result<Identity, Refusal> {
        let (user, channels) = (request.token.clone(), request.subs.keys().cloned().collect());
        Ok(Identity { user, channels, ..Identity::default() })
    }

    fn refresh(&self, client: &Identity, _: &str) -> Result<Identity, Refusal> {
        Ok(client.clone())
    }

    fn subscribe(&self, _: &Identity, _: &str, token: Option<&str>) -> Result<Grant, Refusal> {
        Ok(all(token.map(|token| token.len() as u64)))
    }

    fn without_subscription(&self, _: &Identity, _: &str) -> Grant {
        all(None)
    }
}

/// Keeps what is sent.
struct Kept(Encoding, Vec<u8>);

impl Host for Kept {
    fn reply(&mut self, reply: &Reply) {
        self.0.encode(reply, &mut self.1);
    }

    fn ping(&mut self) {
        self.0.encode_ping(&mut self.1);
    }

    fn join(&mut self, channel: &str, _: &str, since: Option<&StreamPosition>) -> Joined {
        let publication = Publication { data: channel.into(), offset: 7, ..Publication::default() };
        match channel.len() % 3 {
            0 => Joined::Later,
            1 => Joined::At(FoundPlace::default()),
            _ => Joined::At(FoundPlace {
                position: Some(since.cloned().unwrap_or_default()),
                recovered: true,
                publications: vec![publication],
            }),
        }
    }

    fn leave(&mut self, _: &str) {}

    fn publish(&mut self, _: u32, channel: &str, data: &[u8], by: &ClientInfo) -> Attempt<()> {
        let (data, info) = (data.to_vec(), Some(by.clone()));
        let publication = Publication { data, info, ..Publication::default() };
        self.0.encode_publication(channel, publication, &mut self.1);
        Attempt::Done(())
    }

    fn presence(&mut self, _: u32, _: &str, _: Counting) -> Attempt<Reply> {
        Attempt::Later
    }

    fn history(&mut self, _: u32, _: &HistoryRequest) -> Attempt<HistoryResult> {
        Attempt::Done(HistoryResult::default())
    }
}

fn run(encoding: Encoding, frame: &[u8]) {
    let limits = Arc::new(Limits::default());
    let mut session = ClientSession::new("client", limits, Now::default());
    let mut host = Kept(encoding, Vec::new());
    let connect = Some(Box::default());
    let connect = ClientCommand { id: 1, connect, ..ClientCommand::default() };
    let _ = session.handle_command(&connect, &Anyone, &mut host, Now::default());
    for (at, command) in encoding.commands(frame).enumerate() {
        let Ok(command) = command else { break };
        let now = Now { millis: at as u64 * 1000, unix: at as u64 };
        if session.handle_command(&command, &Anyone, &mut host, now).is_err()
            || session.handle_time(&mut host, now).is_err()
        {
            break;
        }
    }
    let sent = &host.1;
    match encoding {
        Encoding::Json => {
            for line in sent.split(|byte| *byte == b'\n') {
                assert!(line.starts_with(b"{") && line.ends_with(b"}"));
                assert!(std::str::from_utf8(line).is_ok());
            }
        }
        Encoding::Protobuf => assert!(!sent.is_empty()),
    }
}

fuzz_target!(|frame: &[u8]| {
    run(Encoding::Json, frame);
    run(Encoding::Protobuf, frame);
});
