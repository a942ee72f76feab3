//! Replies that a cluster is asked for.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use throng_centrifuge::Encoding;
use throng_centrifuge::reply::Reply;
use throng_engine::Remote;
use throng_io::{ConnId, Instant};

use super::dialect::frame;
use crate::ws::{SessionMail, Socket, Timer, continuation};

/// A reply that is not there yet.
pub(super) type Replying = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A reply that a session waits for. Its waker makes the session look again.
struct Awaited {
    replying: Mutex<Option<Replying>>,
    encoding: Encoding,
    remote: Remote,
    session: ConnId,
    look_again: fn(Arc<Awaited>) -> SessionMail,
}

impl Wake for Awaited {
    fn wake(self: Arc<Self>) {
        let (remote, session) = (self.remote.clone(), self.session);
        remote.post(session, Box::new((self.look_again)(self)));
    }
}

/// Sends a reply when it is there.
pub(super) fn reply_later<D: Send + 'static>(
    ws: &mut Socket<'_, D>,
    encoding: Encoding,
    replying: Replying,
) {
    let (remote, session) = (ws.cx().core_ref().remote().clone(), ws.cx().id());
    let look_again = look_again::<D>;
    let replying = Mutex::new(Some(replying));
    look(ws, Arc::new(Awaited { replying, encoding, remote, session, look_again }));
}

/// Makes a timer that is due at once.
fn look_again<D: Send + 'static>(awaited: Arc<Awaited>) -> SessionMail {
    let then = continuation(move |ws: &mut Socket<'_, D>, _: &mut D| look(ws, awaited));
    SessionMail::SetTimer(Instant(0), Timer::new(), then)
}

fn look<D: Send + 'static>(ws: &mut Socket<'_, D>, awaited: Arc<Awaited>) {
    let waker = Waker::from(Arc::clone(&awaited));
    let mut replying = awaited.replying.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(future) = replying.as_mut() else { return };
    if let Poll::Ready(reply) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
        *replying = None;
        let mut out = Vec::new();
        awaited.encoding.encode(&reply, &mut out);
        ws.send(frame(awaited.encoding, out));
    }
}
