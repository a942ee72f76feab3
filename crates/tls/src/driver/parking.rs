//! Parked connections (C14): the session leaves the table at once, so that no record is opened or
//! sealed until it is in a table again, here or at another driver.

use std::fmt;
use std::io;

use throng_carry::{Carried, CarryError, Content, Encoder, RECORD};
use throng_io::{ConnId, Driver};

use super::Tls;
use super::table::Established;

/// The state of a parked connection apart from its descriptor: the record of the driver below, and
/// its session, if it has TLS.
///
/// The keys are in one place only: they are moved in and out, and wiped where they were.
pub struct TlsRecord<R> {
    below: R,
    session: Option<Box<Established>>,
}

impl<R> TlsRecord<R> {
    /// Returns the record of the driver below: with TLS, its unsent bytes are ciphertext.
    pub fn below(&self) -> &R {
        &self.below
    }

    /// Returns whether the connection has TLS.
    pub fn is_secured(&self) -> bool {
        self.session.is_some()
    }
}

/// Tags of fields.
mod field {
    pub(super) const BELOW: u16 = 1;
    /// There if the connection has TLS. A driver without TLS does not know it, and refuses.
    pub(super) const SESSION: u16 = 3;
}

/// Writing it leaves the keys where they are: the record must not be used here afterwards, unless
/// the other process has forgotten what was written.
impl<R: Carried> Carried for TlsRecord<R> {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        let Self { below, session } = self;
        let inner = below.put(field::BELOW, Encoder::new(RECORD));
        out.message(tag, session.put(field::SESSION, inner))
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        let (mut below, mut session) = (None, None);
        content.message()?.read(|tag, content| {
            match tag {
                field::BELOW => below = Some(R::take(content)?),
                field::SESSION => session = Some(Carried::take(content)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self { below: below.ok_or(CarryError::Missing(field::BELOW))?, session })
    }
}

impl<R: fmt::Debug> fmt::Debug for TlsRecord<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { below, session } = self;
        f.debug_struct("TlsRecord").field("below", below).field("session", session).finish()
    }
}

impl<D: Driver> Tls<D> {
    pub(super) fn park_connection(&mut self, id: ConnId) -> io::Result<()> {
        // An event that was found before belongs to a connection that goes on here.
        if self.queued.iter().any(|queued| queued.id() == id) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if self.table.conn_ref(id).is_none() {
            return self.inner.park(id);
        }
        if let Some((_, at)) = self.rest.take_if(|(of, _)| *of == id) {
            self.keep_rest(id, at);
        }
        if !self.table.may_move(id) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.inner.park(id)?;
        self.warm.forget(id);
        if let Some(session) = self.table.take_established(id) {
            self.parked.insert(id, session);
        }
        Ok(())
    }

    pub(super) fn take_parked_record(&mut self, id: ConnId) -> Option<TlsRecord<D::Record>> {
        let below = self.inner.take_record(id)?;
        Some(TlsRecord { below, session: self.parked.remove(&id) })
    }

    pub(super) fn unpark_connection(&mut self, id: ConnId, record: TlsRecord<D::Record>) {
        let TlsRecord { below, session } = record;
        if self.inner.descriptor(id).is_none() {
            return;
        }
        if let Some(session) = session {
            self.turn_on();
            let kept = self.table.insert_established(id, session);
            self.growth += kept;
            if kept > 0 {
                self.ready.push_back(id);
            }
        }
        self.inner.unpark(id, below);
    }
}
