//! Selection of the receivers of a broadcast.

use throng_io::ConnId;

/// The receivers of a broadcast: connections for which all conditions hold. Without conditions it
/// is every WebSocket session and every stream of events.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub(crate) channel: Option<Box<str>>,
    pub(crate) subprotocol: Option<Box<str>>,
    /// Sorted, each once.
    pub(crate) include: Option<Vec<ConnId>>,
    /// Sorted, each once, as `include`.
    exclude: Vec<ConnId>,
}

impl Filter {
    /// Selects only connections that a publish to this channel would reach.
    pub fn set_channel(&mut self, name: &str) {
        self.channel = Some(name.into());
    }

    /// Selects only sessions that agreed on this subprotocol (RFC 6455 section 1.9).
    pub fn set_subprotocol(&mut self, name: &str) {
        self.subprotocol = Some(name.into());
    }

    /// Selects only these connections; further calls add to them.
    pub fn include(&mut self, ids: impl IntoIterator<Item = ConnId>) {
        add(self.include.get_or_insert_default(), ids);
    }

    /// Excludes these connections, even if they meet all other conditions. Further calls exclude
    /// more connections.
    pub fn exclude(&mut self, ids: impl IntoIterator<Item = ConnId>) {
        add(&mut self.exclude, ids);
    }

    pub(crate) fn excludes(&self, id: ConnId) -> bool {
        self.exclude.binary_search(&id).is_ok()
    }
}

fn add(list: &mut Vec<ConnId>, ids: impl IntoIterator<Item = ConnId>) {
    list.extend(ids);
    list.sort_unstable();
    list.dedup();
}
