//! One piece of work of a session, and how the session goes on after it.

use throng_engine::Remote;
use throng_engine::workers::{Busy, OverflowPolicy, Overload, SubmitOutcome, credits_for};
use throng_io::ConnId;

use crate::http::Delivered;
use crate::ws::Socket;

/// The reason that comes with a close code of 1013.
pub(crate) const BUSY: &str = "the server is busy; try again later";

/// How a session goes on.
type Then<D> = Box<dyn for<'a, 's> FnOnce(&'s mut Socket<'a, D>) + Send>;

/// The same on its way to the session's route, which alone knows `D`.
pub(crate) struct Continuation<D>(pub(crate) Then<D>);

impl<D: 'static> Socket<'_, D> {
    /// Runs `work` on the server's pool of workers, where it may block, and then `then` with its result: here on the shard, as any
    /// callback. Messages that come meanwhile are dealt with; the offloads of one connection are carried out one at a time, in
    /// order, and so is what follows them; while eight of them are to come, the connection is not read. If the session has ended,
    /// `work` may not be run, and `then` is not.
    ///
    /// What `work` holds is not known here: eight messages that it keeps are up to eight times `max_message_size` for each
    /// connection. [`offload_holding`](Self::offload_holding) is for work that holds much.
    ///
    /// A panic in `work` closes the connection with 1011 and is counted.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn slow_lookup(query: &str) -> String { query.to_uppercase() }
    /// let search = Ws::new().on_message(|ws, message| {
    ///     let Message::Text(query) = message else { return };
    ///     let query = query.to_owned();
    ///     let _ = ws.offload(move || slow_lookup(&query), |ws, answer| {
    ///         let _ = ws.send(answer);
    ///     });
    /// });
    /// # let _ = App::new().ws("/", search);
    /// ```
    ///
    /// # Errors
    /// [`Busy`]: the pool's queue is full, and `work` was dropped. With [`Overload::Close`] the connection is being closed with 1013
    /// then. With [`Overload::Pause`], the default, `work` waits for room instead and the connection is not read until it has it;
    /// only a second one that would have to wait, say from the same callback, is refused. So is that of a session that has ended or
    /// is being closed, from `close` say: nothing is left to pause, and without an end to what such sessions leave behind, memory would
    /// have none. Whoever cannot do without it does it then and there, or sees to a `queue_size` for as many as may leave at once.
    pub fn offload<T, W, C>(&mut self, work: W, then: C) -> Result<(), Busy>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
        C: FnOnce(&mut Socket<'_, D>, T) + Send + 'static,
    {
        self.offload_holding(0, work, then)
    }

    /// [`offload`](Self::offload) for `work` that holds `bytes`, of a message say: the connection is not read while 256 KiB of them are
    /// to come, or eight. So a peer that sends large messages has one of them wait, whatever their size. (Each 32 KiB count as one more
    /// of the eight.)
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn store(picture: &[u8]) -> String { picture.len().to_string() }
    /// let pictures = Ws::new().on_message(|ws, message| {
    ///     let picture = OwnedMessage::from(message);
    ///     let bytes = picture.as_bytes().len();
    ///     let _ = ws.offload_holding(bytes, move || store(picture.as_bytes()), |ws, name| {
    ///         let _ = ws.send(name);
    ///     });
    /// });
    /// # let _ = App::new().ws("/", pictures);
    /// ```
    ///
    /// # Errors
    /// As for [`offload`](Self::offload).
    pub fn offload_holding<T, W, C>(&mut self, bytes: usize, work: W, then: C) -> Result<(), Busy>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
        C: FnOnce(&mut Socket<'_, D>, T) + Send + 'static,
    {
        let debt = credits_for(bytes);
        let context = self.context();
        let Some(pool) = context.pool.get() else { return Err(Busy) };
        let (id, overload) = (self.cx().id(), pool.settings().overload);
        let mut way_back = WayBack::new(self.cx().core_ref().remote().clone(), id);
        let work = move || {
            way_back.must_tell = true;
            let result = work();
            let then: Then<D> = Box::new(move |ws| then(ws, result));
            way_back.deliver(Delivered::Then(Box::new(Continuation(then)), debt));
        };
        // After its end a session deals with no result, and has nothing to pause.
        let patience = if self.cx().is_open() {
            OverflowPolicy::WaitAndNotify(debt)
        } else {
            OverflowPolicy::Refuse
        };
        match pool.submit(id, &context.path, patience, Box::new(work)) {
            Ok(SubmitOutcome::Queued) => Ok(()),
            Ok(SubmitOutcome::Waiting | SubmitOutcome::Saturated) => {
                self.cx_mut().stop_reading();
                Ok(())
            }
            Err(busy) => {
                if overload == Overload::Close {
                    self.close(1013, BUSY);
                }
                Err(busy)
            }
        }
    }
}

/// Tells the session of its work's result, or that a panic took its place.
struct WayBack {
    remote: Remote,
    id: ConnId,
    /// The work has begun, and its end was not told.
    must_tell: bool,
}

impl WayBack {
    fn new(remote: Remote, id: ConnId) -> Self {
        Self { remote, id, must_tell: false }
    }

    fn deliver(&mut self, what: Delivered) {
        self.must_tell = false;
        self.remote.post(self.id, Box::new(what));
    }
}

impl Drop for WayBack {
    fn drop(&mut self) {
        if self.must_tell {
            self.deliver(Delivered::WorkPanicked);
        }
    }
}
