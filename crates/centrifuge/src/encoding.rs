//! Frames: commands that a client sends together, and the bytes of replies and pushes.
//!
//! A frame has several messages: in JSON one a line, in Protobuf each behind its length.

use prost::Message as _;

use crate::command::ClientCommand;
use crate::data;
use crate::reply::{ClientInfo, Publication, Push, Reply};

/// The encoding of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JSON in text frames.
    #[default]
    Json,
    /// Protobuf in binary frames.
    Protobuf,
}

/// The bytes of a frame are not commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a command")
    }
}

impl std::error::Error for Malformed {}

impl Encoding {
    /// Returns the commands of a frame, in order. An error is the last item.
    #[must_use]
    pub fn commands(self, frame: &[u8]) -> Commands<'_> {
        Commands { encoding: self, rest: Some(frame) }
    }

    /// Appends a reply to the others of a frame.
    pub fn encode(self, reply: &Reply, out: &mut Vec<u8>) {
        self.begin(out);
        match self {
            // Neither fails: the memory grows, and every payload is made a JSON value.
            Self::Json => drop(serde_json::to_writer(out, reply)),
            Self::Protobuf => drop(reply.encode_length_delimited(out)),
        }
    }

    /// Appends a ping.
    pub fn encode_ping(self, out: &mut Vec<u8>) {
        self.begin(out);
        match self {
            Self::Json => out.extend_from_slice(b"{}"),
            Self::Protobuf => out.push(0),
        }
    }

    /// Appends a publication of a channel as a push.
    pub fn encode_publication(self, channel: &str, publication: Publication, out: &mut Vec<u8>) {
        let Self::Json = self else {
            let (channel, publication) = (channel.to_owned(), Some(publication));
            let push = Push { channel, publication, ..Push::default() };
            return self.encode(&Reply::pushed(push), out);
        };
        self.begin(out);
        out.extend_from_slice(b"{\"push\":{\"channel\":");
        data::write_string(channel, out);
        out.extend_from_slice(b",\"pub\":");
        write_publication(&publication, out);
        out.extend_from_slice(b"}}");
    }

    /// Begins the next message of a frame.
    fn begin(self, out: &mut Vec<u8>) {
        if self == Self::Json && !out.is_empty() {
            out.push(b'\n');
        }
    }
}

fn write_publication(publication: &Publication, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"data\":");
    data::write_json(&publication.data, out);
    if let Some(info) = &publication.info {
        out.extend_from_slice(b",\"info\":");
        write_info(info, out);
    }
    if publication.offset > 0 {
        out.extend_from_slice(format!(",\"offset\":{}", publication.offset).as_bytes());
    }
    if publication.delta {
        out.extend_from_slice(b",\"delta\":true");
    }
    out.push(b'}');
}

fn write_info(info: &ClientInfo, out: &mut Vec<u8>) {
    // Writing to memory does not fail, and every payload is made a JSON value.
    let _ = serde_json::to_writer(out, info);
}

/// The commands of a frame.
#[derive(Clone, Debug)]
pub struct Commands<'f> {
    encoding: Encoding,
    /// `None`: no command follows.
    rest: Option<&'f [u8]>,
}

impl Iterator for Commands<'_> {
    type Item = Result<ClientCommand, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take()?;
        let split = match self.encoding {
            Encoding::Json => Ok(split_line(rest)),
            Encoding::Protobuf => split_counted(rest),
        };
        let (message, rest) = match split {
            Ok(split) => split,
            Err(malformed) => return Some(Err(malformed)),
        };
        let command = match self.encoding {
            Encoding::Json => serde_json::from_slice(message).map_err(|_| Malformed),
            Encoding::Protobuf => ClientCommand::decode(message).map_err(|_| Malformed),
        };
        self.rest = rest.filter(|_| command.is_ok());
        Some(command)
    }
}

/// Returns the first line, and what follows it unless that is empty.
fn split_line(frame: &[u8]) -> (&[u8], Option<&[u8]>) {
    match frame.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&frame[..at], Some(&frame[at + 1..]).filter(|rest| !rest.is_empty())),
        None => (frame, None),
    }
}

/// Returns the first message behind its length, and what follows it unless that is empty.
fn split_counted(mut frame: &[u8]) -> Result<(&[u8], Option<&[u8]>), Malformed> {
    let length = prost::decode_length_delimiter(&mut frame).map_err(|_| Malformed)?;
    let (message, rest) = frame.split_at_checked(length).ok_or(Malformed)?;
    Ok((message, Some(rest).filter(|rest| !rest.is_empty())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::command::{PublishRequest, SubscribeRequest};
    use crate::reply::{HistoryResult, Presence};

    fn publication() -> Publication {
        let conn_info = b"{\"name\":\"Ann\"}".to_vec();
        let info = ClientInfo {
            user: "a\"n".into(),
            client: "c".into(),
            conn_info,
            ..ClientInfo::default()
        };
        Publication { data: b"[1]".to_vec(), info: Some(info), offset: 7, ..Publication::default() }
    }

    #[test]
    fn a_push_is_written_as_the_reply_that_it_is() {
        for publication in
            [publication(), Publication { data: b"x".to_vec(), ..Default::default() }]
        {
            for encoding in [Encoding::Json, Encoding::Protobuf] {
                let (mut short, mut long) = (Vec::new(), Vec::new());
                encoding.encode_publication("a\"b", publication.clone(), &mut short);
                let channel = "a\"b".to_owned();
                let publication = Some(publication.clone());
                let push = Push { channel, publication, ..Push::default() };
                encoding.encode(&Reply::pushed(push), &mut long);
                assert_eq!(String::from_utf8_lossy(&short), String::from_utf8_lossy(&long));
            }
        }
    }

    #[test]
    fn replies_have_the_names_and_numbers_of_the_protocol() {
        let mut out = Vec::new();
        let history =
            HistoryResult { publications: vec![publication()], epoch: "e".into(), offset: 7 };
        Encoding::Json
            .encode(&Reply { id: 3, history: Some(history), ..Reply::default() }, &mut out);
        let join =
            Some(Presence { info: ClientInfo { client: "c".into(), ..ClientInfo::default() } });
        let push = Push { channel: "a".into(), join, ..Push::default() };
        Encoding::Json.encode(&Reply::pushed(push), &mut out);
        Encoding::Json.encode_ping(&mut out);
        let expected = "{\"id\":3,\"history\":{\"publications\":[{\"data\":[1],\"info\":\
            {\"user\":\"a\\\"n\",\"client\":\"c\",\"conn_info\":{\"name\":\"Ann\"}},\"offset\":7}],\
            \"epoch\":\"e\",\"offset\":7}}\n\
            {\"push\":{\"channel\":\"a\",\"join\":{\"info\":{\"user\":\"\",\"client\":\"c\"}}}}\n\
            {}";
        assert_eq!(String::from_utf8_lossy(&out), expected);
        // A message with the number 5, whose push (field 4) has a channel (2) and a publication (4)
        // with data (4) and an offset (6).
        let mut out = Vec::new();
        let data = b"{}".to_vec();
        let publication = Publication { data, offset: 300, ..Publication::default() };
        Encoding::Protobuf.encode_publication("ab", publication, &mut out);
        Encoding::Protobuf.encode_ping(&mut out);
        let expected = b"\x0f\x22\x0d\x12\x02ab\x22\x07\x22\x02{}\x30\xac\x02\0";
        assert_eq!(out, expected);
    }

    #[test]
    fn commands_are_read_in_both_encodings() {
        let subscribe = SubscribeRequest {
            channel: "a".into(),
            recover: true,
            epoch: "e".into(),
            offset: u64::MAX,
            flag: 1,
            tf: Some(crate::command::Anything {}),
            ..SubscribeRequest::default()
        };
        let one = ClientCommand {
            id: 2,
            subscribe: Some(Box::new(subscribe)),
            ..ClientCommand::default()
        };
        let publish =
            PublishRequest { channel: "a".into(), data: b"{\"n\":1}".to_vec(), r#type: 0 };
        let two = ClientCommand { id: 3, publish: Some(publish), ..ClientCommand::default() };
        let json = "{\"id\":2,\"subscribe\":{\"channel\":\"a\",\"recover\":true,\"epoch\":\"e\",\
                    \"offset\":18446744073709551615,\"flag\":1,\"tf\":{\"op\":\"x\"}}}\n\
                    {\"id\":3,\"publish\":{\"channel\":\"a\",\"data\":{\"n\":1}},\"new\":[]}\n{}\n";
        let mut binary = Vec::new();
        for command in [&one, &two, &ClientCommand::default()] {
            command.encode_length_delimited(&mut binary).unwrap();
        }
        for (encoding, frame) in [(Encoding::Json, json.as_bytes()), (Encoding::Protobuf, &binary)]
        {
            let commands: Result<Vec<_>, _> = encoding.commands(frame).collect();
            assert_eq!(commands, Ok(vec![one.clone(), two.clone(), ClientCommand::default()]));
        }
    }

    #[test]
    fn a_mistake_ends_a_frame() {
        for (encoding, frame) in [
            (Encoding::Json, &b"{}\n\n{}"[..]),
            (Encoding::Json, b"{}\n{\"id\":\"1\"}\n{}"),
            (Encoding::Json, b"{}\n\xff"),
            (Encoding::Protobuf, &[0, 2, 8]),
            (Encoding::Protobuf, &[0, 0x80]),
            (Encoding::Protobuf, &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            (Encoding::Protobuf, &[0, 3, 0x3a, 9, 0]),
        ] {
            let commands: Vec<_> = encoding.commands(frame).collect();
            assert_eq!(commands, [Ok(ClientCommand::default()), Err(Malformed)], "{frame:?}");
        }
        assert_eq!(Encoding::Protobuf.commands(&[]).collect::<Vec<_>>(), [Err(Malformed)]);
    }

    proptest! {
        #[test]
        fn every_frame_is_read_or_refused(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            for encoding in [Encoding::Json, Encoding::Protobuf] {
                let commands = encoding.commands(&frame).count();
                prop_assert!((1..=frame.len().max(1)).contains(&commands));
            }
        }

        #[test]
        fn every_payload_is_in_a_json_line(data in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut out = Vec::new();
            let publication = Publication { data, ..Publication::default() };
            Encoding::Json.encode_publication("a", publication, &mut out);
            prop_assert!(!out.contains(&b'\n'));
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&out).is_ok());
        }
    }
}
