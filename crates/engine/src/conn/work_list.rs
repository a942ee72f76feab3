//! Lists of connections with pending work of one kind.

use throng_io::ConnId;

use crate::conn::record::Conn;

/// A list of connections, each at most once: a flag of the connection shows whether it is listed.
///
/// A connection that is gone stays listed until the list is taken; its id then names no connection.
#[derive(Debug)]
pub(crate) struct WorkList {
    ids: Vec<ConnId>,
    flag: u32,
}

impl WorkList {
    /// Creates a list whose members have this flag.
    pub(crate) const fn new(flag: u32) -> Self {
        Self { ids: Vec::new(), flag }
    }

    /// Adds a connection, unless it is listed already.
    #[inline]
    pub(crate) fn add(&mut self, conn: &mut Conn) {
        if !conn.has(self.flag) {
            conn.set(self.flag, true);
            self.ids.push(conn.id);
        }
    }

    /// Returns the flag of its members.
    pub(crate) fn flag(&self) -> u32 {
        self.flag
    }

    /// Removes and returns all ids. The connections keep their flags, so that no id is added again
    /// before its turn; `Connections::unlist` clears them one by one.
    pub(crate) fn take(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.ids)
    }

    /// Puts back connections that were taken and still have their flag, before the connections that
    /// were added in between.
    pub(crate) fn put_back(&mut self, mut ids: Vec<ConnId>) {
        ids.append(&mut self.ids);
        self.ids = ids;
    }

    /// Returns the connection at this place.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<ConnId> {
        self.ids.get(at).copied()
    }

    /// Removes all ids, whose flags are cleared already.
    pub(crate) fn clear(&mut self) {
        self.ids.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ConnId> {
        self.ids.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
