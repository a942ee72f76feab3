//! Information about a member of a channel for others, as presence keeps it.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::data;
use crate::reply::ClientInfo;

/// The beginning of information that a server has made of a client's tokens. Clients that choose
/// their information themselves must not be allowed to begin it so: they would pass for any user.
pub const RESERVED_PREFIX: &str = "{\"@user\":";

/// Returns the information about a client for others: its user, and what the tokens of its
/// connection and of its subscription say about it, as JSON. Empty if there is nothing to say.
#[must_use]
pub fn encode(user: &str, conn_info: &[u8], chan_info: &[u8]) -> String {
    if user.is_empty() && conn_info.is_empty() && chan_info.is_empty() {
        return String::new();
    }
    let mut out = RESERVED_PREFIX.as_bytes().to_vec();
    data::write_string(user, &mut out);
    for (name, info) in [("conn_info", conn_info), ("chan_info", chan_info)] {
        if !info.is_empty() {
            out.extend_from_slice(format!(",\"{name}\":").as_bytes());
            data::write_json(info, &mut out);
        }
    }
    out.push(b'}');
    String::from_utf8(out).unwrap_or_default()
}

/// Returns a client as others see it, by the information that presence has of it. A client of
/// another protocol has its information as `conn_info`.
#[must_use]
pub fn decode(client: String, info: &str) -> ClientInfo {
    #[derive(Deserialize)]
    struct Encoded<'a> {
        #[serde(rename = "@user")]
        user: String,
        #[serde(borrow)]
        conn_info: Option<&'a RawValue>,
        #[serde(borrow)]
        chan_info: Option<&'a RawValue>,
    }
    let encoded =
        info.starts_with(RESERVED_PREFIX).then(|| serde_json::from_str::<Encoded<'_>>(info));
    let bytes = |value: Option<&RawValue>| {
        value.map_or_else(Vec::new, |value| value.get().as_bytes().to_vec())
    };
    match encoded {
        Some(Ok(Encoded { user, conn_info, chan_info })) => {
            ClientInfo { user, client, conn_info: bytes(conn_info), chan_info: bytes(chan_info) }
        }
        _ if info.is_empty() => ClientInfo { client, ..ClientInfo::default() },
        _ => ClientInfo {
            client,
            conn_info: data::to_json(info.as_bytes()),
            ..ClientInfo::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn information_is_read_as_it_is_written() {
        for (user, conn_info, chan_info) in
            [("", "", ""), ("ann", "", ""), ("a\"b", "{\"n\":1}", "[2]"), ("", "{}", "")]
        {
            let text = encode(user, conn_info.as_bytes(), chan_info.as_bytes());
            assert_eq!(text.is_empty(), user.is_empty() && conn_info.is_empty());
            let expected = ClientInfo {
                user: user.into(),
                client: "c".into(),
                conn_info: conn_info.into(),
                chan_info: chan_info.into(),
            };
            assert_eq!(decode("c".into(), &text), expected);
        }
    }

    #[test]
    fn information_of_others_names_no_user() {
        for (info, expected) in [
            ("ann", "\"ann\""),
            ("{\"user\":\"ann\"}", "{\"user\":\"ann\"}"),
            (" {\"@user\":\"ann\"}", " {\"@user\":\"ann\"}"),
            ("{\"@user\":1}", "{\"@user\":1}"),
        ] {
            let ClientInfo { user, conn_info, .. } = decode("c".into(), info);
            assert_eq!((user.as_str(), conn_info), ("", expected.as_bytes().to_vec()));
        }
    }
}
