//! Publications as pushes.

use std::sync::{Arc, OnceLock};

use throng_centrifuge::reply::{ClientInfo, DataResult, Presence, Publication, Push, Reply};
use throng_centrifuge::{Disconnect, Encoding, info};
use throng_engine::{
    About, CloseCode, Delivered, Dialect, EndReason, Fault, Frame, PresenceChange, PresenceNote,
};

use crate::ws::Socket;

/// The pushes of one encoding.
#[derive(Debug)]
pub(super) struct Spoken {
    encoding: Encoding,
    /// The number of this server in its cluster, if it has one; known from the first session on.
    node: Arc<OnceLock<Option<u64>>>,
}

impl Spoken {
    pub(super) fn new(encoding: Encoding, node: Arc<OnceLock<Option<u64>>>) -> Self {
        Self { encoding, node }
    }

    /// Returns the identifier of a session among all clients of all servers.
    pub(super) fn client_of<D>(&self, ws: &Socket<'_, D>) -> String {
        self.node.get_or_init(|| node_of(ws));
        self.client(None, ws.handle().to_bits())
    }

    /// Returns the identifier of a connection of a server; `None`: of this one.
    pub(super) fn client(&self, node: Option<u64>, handle: u64) -> String {
        client(node.or_else(|| self.node.get().copied().flatten()), handle)
    }

    fn encoded(&self, reply: &Reply) -> Frame {
        let mut out = Vec::new();
        self.encoding.encode(reply, &mut out);
        frame(self.encoding, out)
    }

    fn publication(&self, delivered: &Delivered<'_>) -> Frame {
        let publication = publication(delivered.frame, delivered.position.map(|at| at.to_number()));
        let mut out = Vec::new();
        self.encoding.encode_publication(delivered.channel, publication, &mut out);
        frame(self.encoding, out)
    }

    fn presence(&self, channel: &str, note: &PresenceNote) -> Frame {
        let client = self.client(note.node, note.client);
        let presence = Some(Presence { info: info::decode(client, &note.info) });
        let channel = channel.to_owned();
        self.encoded(&Reply::pushed(match note.change {
            PresenceChange::Join => Push { channel, join: presence, ..Push::default() },
            PresenceChange::Leave => Push { channel, leave: presence, ..Push::default() },
        }))
    }
}

impl Dialect for Spoken {
    fn encode(&self, delivered: &Delivered<'_>) -> Option<Frame> {
        match delivered.frame.about() {
            Some(About::Presence(note)) => Some(self.presence(delivered.channel, note)),
            Some(About::Switch) => None,
            _ if delivered.channel.is_empty() => {
                let data = delivered.frame.payload().to_vec();
                let message = Some(DataResult { data });
                Some(self.encoded(&Reply::pushed(Push { message, ..Push::default() })))
            }
            _ => Some(self.publication(delivered)),
        }
    }

    fn close(&self, fault: Fault) -> Option<(u16, &'static str)> {
        let reason = match fault {
            Fault::SlowConsumer | Fault::Ended(EndReason::Write) => Disconnect::Slow,
            Fault::Ended(EndReason::Loss) => Disconnect::InsufficientState,
            Fault::Ended(EndReason::Rate) => Disconnect::TooManyRequests,
            Fault::Ended(EndReason::Lifetime) => Disconnect::ForceReconnect,
            Fault::Panic { .. } => Disconnect::ServerError,
            _ => return None,
        };
        Some((reason.code(), reason.text()))
    }

    fn code_for(&self, code: u16) -> u16 {
        // Other sessions do not come back after it, and these would.
        match CloseCode::from(code) {
            CloseCode::POLICY_VIOLATION => Disconnect::ForceNoReconnect.code(),
            _ => code,
        }
    }
}

/// Returns a message as a publication.
pub(super) fn publication(frame: &Frame, offset: Option<u64>) -> Publication {
    let info = match frame.about() {
        Some(About::Publisher(publisher)) => serde_json::from_str::<ClientInfo>(publisher).ok(),
        _ => None,
    };
    let (data, offset) = (frame.payload().to_vec(), offset.unwrap_or_default());
    Publication { data, info, offset, ..Publication::default() }
}

/// Returns the identifier of a connection.
pub(super) fn client(node: Option<u64>, handle: u64) -> String {
    node.map_or_else(|| format!("{handle:016x}"), |node| format!("{node:016x}{handle:016x}"))
}

/// Returns encoded messages as a frame.
pub(super) fn frame(encoding: Encoding, bytes: Vec<u8>) -> Frame {
    match encoding {
        Encoding::Json => match String::from_utf8(bytes) {
            Ok(text) => Frame::text(text),
            // JSON is UTF-8.
            Err(error) => Frame::binary(error.into_bytes()),
        },
        Encoding::Protobuf => Frame::binary(bytes),
    }
}

#[cfg(feature = "redis")]
pub(super) fn node_of<D>(ws: &Socket<'_, D>) -> Option<u64> {
    ws.hub().cluster().map(|cluster| cluster.node())
}

#[cfg(not(feature = "redis"))]
pub(super) fn node_of<D>(_: &Socket<'_, D>) -> Option<u64> {
    None
}
