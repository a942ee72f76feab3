//! Sessions that get publications in a dialect: encoded for another protocol than the plain one.

use std::fmt;
use std::sync::Arc;

use throng_io::ConnId;

use crate::connections::Connections;
use crate::connections::send::Published;
use crate::message::Fault;
use crate::outbox::frame::Frame;
use crate::outbox::sent::Sent;
use crate::pubsub::history::Position;

/// A message for sessions of a dialect.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Delivered<'d> {
    /// The channel; empty for a message that comes by no channel.
    pub channel: &'d str,
    /// The message.
    pub frame: &'d Frame,
    /// Its position, in channels with history.
    pub position: Option<Position>,
}

/// The form that messages have for the sessions of another protocol.
///
/// A session has it by [`Cx::set_dialect`](crate::Cx::set_dialect). A publication is encoded once
/// for all sessions of a dialect on an event loop, when the first of them gets it.
pub trait Dialect: Send + Sync {
    /// Encodes a message; `None`: these sessions do not get it.
    fn encode(&self, delivered: &Delivered<'_>) -> Option<Frame>;

    /// Returns the code and the text with which a session is closed for a fault, in place of the
    /// usual ones; `None`: the usual ones.
    fn close(&self, fault: Fault) -> Option<(u16, &'static str)>;

    /// Returns the code of these sessions for a code with which another thread closes sessions of
    /// any protocol. Default: the same.
    fn code_for(&self, code: u16) -> u16 {
        code
    }
}

/// The dialects of the sessions of a shard.
#[derive(Default)]
pub(super) struct Dialects {
    all: Vec<Arc<dyn Dialect>>,
    /// The number of its dialect plus one, by slot; 0: the plain protocol.
    of: Vec<u16>,
    sessions: usize,
}

impl fmt::Debug for Dialects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialects").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

impl Dialects {
    pub(super) fn is_empty(&self) -> bool {
        self.sessions == 0
    }

    pub(super) fn set(&mut self, slot: usize, dialect: Arc<dyn Dialect>) {
        let same =
            |other: &Arc<dyn Dialect>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&dialect));
        let number = self.all.iter().position(same).unwrap_or(self.all.len());
        if number == self.all.len() {
            self.all.push(dialect);
        }
        if self.of.len() <= slot {
            self.of.resize(slot + 1, 0);
        }
        self.sessions += usize::from(self.of[slot] == 0);
        self.of[slot] = u16::try_from(number + 1).unwrap_or(u16::MAX);
    }

    /// Removes the session in a slot.
    pub(super) fn leave(&mut self, slot: usize) {
        if !self.is_empty()
            && let Some(number) = self.of.get_mut(slot)
        {
            self.sessions -= usize::from(std::mem::take(number) != 0);
        }
    }

    /// Returns the number of the dialect of the session in a slot.
    fn number(&self, slot: usize) -> Option<usize> {
        usize::from(*self.of.get(slot)?).checked_sub(1)
    }

    fn dialect(&self, slot: usize) -> Option<&Arc<dyn Dialect>> {
        self.all.get(self.number(slot)?)
    }
}

/// The forms of a message that are made so far, by the number of the dialect.
#[derive(Debug, Default)]
pub(crate) struct Forms(Vec<(usize, Option<Frame>)>);

/// The form of a message for one session.
pub(crate) enum Seen<'f> {
    /// The message itself.
    Plain,
    /// The form in its dialect.
    Form(&'f Frame),
    /// It does not get the message.
    Nothing,
}

impl Connections {
    /// Sets the dialect of a session.
    pub(crate) fn set_dialect(&mut self, id: ConnId, dialect: Arc<dyn Dialect>) {
        if self.is_open(id) {
            self.wanted.set_dialect(id.slot(), dialect);
        }
    }

    /// Returns the form of a message for a session, which is made at its first use.
    pub(crate) fn seen<'f>(
        &self,
        id: ConnId,
        delivered: &Delivered<'_>,
        forms: &'f mut Forms,
    ) -> Seen<'f> {
        let dialects = self.wanted.dialects();
        let Some(number) = dialects.number(id.slot()) else { return Seen::Plain };
        let Some(dialect) = dialects.all.get(number) else { return Seen::Plain };
        let at = forms.0.iter().position(|(of, _)| *of == number).unwrap_or_else(|| {
            let form = dialect.encode(delivered);
            forms.0.push((number, form.map(|form| form.into_form_of(delivered.frame))));
            forms.0.len() - 1
        });
        match &forms.0[at].1 {
            Some(form) => Seen::Form(form),
            None => Seen::Nothing,
        }
    }

    /// Sends a message of another thread's to one session.
    pub(crate) fn send_from_others(&mut self, id: ConnId, frame: &Frame) -> Sent {
        let mut forms = Forms::default();
        let of = Published::default();
        if self.have_views() {
            let delivered = Delivered { channel: "", frame, position: None };
            match self.seen(id, &delivered, &mut forms) {
                Seen::Plain => {}
                Seen::Form(form) => return self.send_frame(id, form, of),
                Seen::Nothing => return Sent::Accepted,
            }
        }
        self.send_frame(id, frame, of)
    }

    /// Begins the closing handshake with a code of another thread's.
    pub(crate) fn close_from_others(&mut self, id: ConnId, code: u16, reason: &str) {
        let dialect = self.wanted.dialects().dialect(id.slot());
        let code = dialect.map_or(code, |dialect| dialect.code_for(code));
        self.close(id, code, reason);
    }

    /// Returns the code and the text with which a session is closed for a fault.
    pub(super) fn closing<'t>(
        &self,
        id: ConnId,
        fault: Fault,
        usual: (u16, &'t str),
    ) -> (u16, &'t str) {
        let dialect = self.wanted.dialects().dialect(id.slot());
        dialect.and_then(|dialect| dialect.close(fault)).unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Dialect for Nothing {
        fn encode(&self, _: &Delivered<'_>) -> Option<Frame> {
            None
        }

        fn close(&self, _: Fault) -> Option<(u16, &'static str)> {
            Some((3008, "slow"))
        }
    }

    struct Same(u8);

    impl Dialect for Same {
        fn encode(&self, delivered: &Delivered<'_>) -> Option<Frame> {
            Some(Frame::binary([self.0, delivered.channel.len() as u8]))
        }

        fn close(&self, _: Fault) -> Option<(u16, &'static str)> {
            None
        }
    }

    #[test]
    fn many_dialects_stay_apart() {
        let mut dialects = Dialects::default();
        for slot in 0..300 {
            dialects.set(slot, Arc::new(Same(0)));
        }
        assert!((0..300).all(|slot| dialects.number(slot) == Some(slot)));
    }

    #[test]
    fn slots_that_are_left_speak_the_plain_protocol_again() {
        let mut dialects = Dialects::default();
        let same: [Arc<dyn Dialect>; 2] = [Arc::new(Same(1)), Arc::new(Same(2))];
        for (slot, of) in [(3, 0), (1, 1), (2, 0), (2, 0)] {
            dialects.set(slot, Arc::clone(&same[of]));
        }
        assert_eq!((dialects.sessions, dialects.all.len()), (3, 2));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|slot| dialects.number(slot)),
            [None, Some(1), Some(0), Some(0), None]
        );
        for slot in [0, 1, 2, 3, 4, 3] {
            dialects.leave(slot);
        }
        assert!(dialects.is_empty() && dialects.number(3).is_none());
        dialects.set(0, Arc::new(Nothing));
        let slow = dialects.dialect(0).and_then(|dialect| dialect.close(Fault::SlowConsumer));
        assert_eq!(slow, Some((3008, "slow")));
    }
}
