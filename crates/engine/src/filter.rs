//! Selection of the receivers of a broadcast.

use throng_io::ConnId;

/// The receivers of a broadcast: those for whom all conditions hold. Without conditions it is
/// everyone: every WebSocket session and every stream of events.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub(crate) channel: Option<Box<str>>,
    pub(crate) subprotocol: Option<Box<str>>,
    /// Sorted, each once.
    pub(crate) include: Option<Vec<ConnId>>,
    /// Likewise.
    exclude: Vec<ConnId>,
}

impl Filter {
    /// Only those that a publish to this channel would reach.
    pub fn set_channel(&mut self, name: &str) {
        self.channel = Some(name.into());
    }

    /// Only sessions that agreed on this subprotocol (RFC 6455 section 1.9).
    pub fn set_subprotocol(&mut self, name: &str) {
        self.subprotocol = Some(name.into());
    }

    /// Only these connections; called again, those too.
    pub fn include(&mut self, ids: impl IntoIterator<Item = ConnId>) {
        add(self.include.get_or_insert_default(), ids);
    }

    /// None of these, whatever else holds; called again, none of those either.
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
