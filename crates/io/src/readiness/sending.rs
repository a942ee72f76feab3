//! Output: sent at once, or kept until there is room.

use std::io::{self, ErrorKind, IoSlice};

use super::ReadinessDriver;
use super::poller::Poller;
use super::table::{NONE, flag};
use super::turn::TurnStep;
use crate::batch::Batch;
use crate::driver::{Closed, SendOutcome};
use crate::id::ConnId;

/// Maximum slices of one vectored send.
const GATHERED: usize = 64;

/// The result of sending a batch.
enum Sending {
    All,
    Part,
    Broken(ErrorKind),
}

impl<P: Poller> ReadinessDriver<P> {
    /// Sends a batch, after an optional first attempt that offered some bytes and sent fewer.
    #[cold]
    pub(super) fn send_rest(
        &mut self,
        id: ConnId,
        mut batch: Box<Batch>,
        first: Option<(usize, io::Result<usize>)>,
    ) -> SendOutcome {
        let Some(entry) = self.table.entry(id) else { return SendOutcome::Done(batch) };
        debug_assert!(entry.outgoing == NONE, "one send at a time (C3)");
        if entry.flags & flag::CONNECTING != 0 {
            return self.keep(id, batch);
        }
        let Some(socket) = &entry.socket else { return SendOutcome::Done(batch) };
        let sending = first
            .and_then(|(offered, sent)| advance::<P>(&mut batch, offered, sent))
            .unwrap_or_else(|| transmit::<P>(socket, &mut batch, &self.buffer[..self.lent]));
        match sending {
            Sending::All => SendOutcome::Done(batch),
            Sending::Part => self.keep(id, batch),
            Sending::Broken(why) => {
                self.handle_send_error(id, why);
                SendOutcome::Done(batch)
            }
        }
    }

    /// Handles the failure of a `try_send`. Returns 0, the number of bytes sent.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_try_send_error(&mut self, id: ConnId, error: &io::Error) -> usize {
        if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
            self.handle_send_error(id, error.kind());
        }
        0
    }

    /// Handles a failed send, after which all others fail too.
    ///
    /// A peer that replies early and closes resets the connection because we keep sending, and its
    /// reply is still in the kernel. That input is delivered first, unless reading is paused.
    #[cold]
    fn handle_send_error(&mut self, id: ConnId, why: ErrorKind) {
        let Some(entry) = self.table.entry(id) else { return };
        // Any other failure may leave the connection as it is, and its end would never be read.
        let is_over = matches!(why, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
        if !is_over || entry.flags & flag::NOT_READING != 0 {
            return self.end(id, Closed::Reset);
        }
        if entry.flags & flag::BROKEN != 0 {
            return;
        }
        entry.flags |= flag::BROKEN | flag::CAN_READ;
        // EPIPE: Linux reports a reset that followed an end of stream this way, and only once.
        // Reading then ends with an end of stream in any case.
        if why == ErrorKind::BrokenPipe {
            entry.flags |= flag::FIN_BEFORE_RESET;
        }
        if !P::LEVEL {
            self.enqueue(id);
        }
    }

    #[cold]
    pub(super) fn continue_sending(&mut self, id: ConnId) -> Option<TurnStep<P::Socket>> {
        let entry = self.table.entry(id)?;
        let batch = self.outgoing.batch(entry.outgoing);
        match transmit::<P>(entry.socket.as_ref()?, batch, &[]) {
            Sending::All => {
                // Write interest stays for now: after a full socket the engine usually has more to
                // send.
                let index = std::mem::replace(&mut entry.outgoing, NONE);
                Some(TurnStep::Sent(id, self.outgoing.remove(index)))
            }
            Sending::Part => {
                entry.flags &= !flag::CAN_WRITE;
                None
            }
            Sending::Broken(why) => {
                self.handle_send_error(id, why);
                None
            }
        }
    }

    /// Keeps the unsent bytes until there is room.
    #[cold]
    fn keep(&mut self, id: ConnId, mut batch: Box<Batch>) -> SendOutcome {
        batch.own(&self.buffer[..self.lent]);
        let Some(entry) = self.table.entry(id) else { return SendOutcome::Done(batch) };
        entry.flags &= !flag::CAN_WRITE;
        entry.outgoing = self.outgoing.insert(batch);
        self.sync(id);
        SendOutcome::Pending
    }
}

/// Sends until the kernel takes no more.
fn transmit<P: Poller>(socket: &P::Socket, batch: &mut Batch, lent: &[u8]) -> Sending {
    loop {
        let (offered, sent) = match batch.single(lent) {
            Some(bytes) => (bytes.len(), P::send(socket, bytes)),
            None => transmit_gathered::<P>(socket, batch, lent),
        };
        if let Some(sending) = advance::<P>(batch, offered, sent) {
            return sending;
        }
    }
}

/// Evaluates one attempt; `None` if there may be room for more.
fn advance<P: Poller>(
    batch: &mut Batch,
    offered: usize,
    sent: io::Result<usize>,
) -> Option<Sending> {
    match sent {
        Ok(n) => {
            batch.advance(n);
            if batch.is_empty() {
                return Some(Sending::All);
            }
            // Less than offered: the socket is full. An edge comes only after `WouldBlock`, though.
            (P::LEVEL && n < offered).then_some(Sending::Part)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => None,
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(Sending::Part),
        Err(error) => Some(Sending::Broken(error.kind())),
    }
}

fn transmit_gathered<P: Poller>(
    socket: &P::Socket,
    batch: &Batch,
    lent: &[u8],
) -> (usize, io::Result<usize>) {
    let mut slices = [IoSlice::new(&[]); GATHERED];
    let filled = batch.gather(lent, &mut slices);
    let slices = &slices[..filled];
    (slices.iter().map(|slice| slice.len()).sum(), P::send_gathered(socket, slices))
}
