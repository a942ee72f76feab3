//! Bodies from asynchronous streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::body::{SourcePull, StreamSource};

/// Maximum items taken at a time: a stream of empty items must not occupy the connection's thread.
const MAX_ITEMS: usize = 1024;

/// A stream as the source of a body. It is polled when the earlier items have been sent.
pub(crate) struct StreamBody<S, F> {
    stream: Pin<Box<S>>,
    /// Appends an item's bytes to the body.
    append: F,
    waker: Waker,
}

impl<S, F> StreamBody<S, F>
where
    S: Stream + Send,
    F: FnMut(S::Item, &mut Vec<u8>) -> io::Result<()> + Send,
{
    pub(crate) fn new(stream: S, append: F) -> Self {
        Self { stream: Box::pin(stream), append, waker: Waker::noop().clone() }
    }
}

impl<S, F> StreamSource for StreamBody<S, F>
where
    S: Stream + Send,
    F: FnMut(S::Item, &mut Vec<u8>) -> io::Result<()> + Send,
{
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<SourcePull> {
        let mut cx = Context::from_waker(&self.waker);
        for _ in 0..MAX_ITEMS {
            match self.stream.as_mut().poll_next(&mut cx) {
                Poll::Ready(Some(item)) => (self.append)(item, out)?,
                Poll::Ready(None) => return Ok(SourcePull::End),
                Poll::Pending if out.is_empty() => return Ok(SourcePull::Wait),
                // The stream is polled again only when the client has taken these bytes.
                Poll::Pending => return Ok(SourcePull::More),
            }
            if out.len() >= room {
                return Ok(SourcePull::More);
            }
        }
        if out.is_empty() {
            self.waker.wake_by_ref();
            return Ok(SourcePull::Wait);
        }
        Ok(SourcePull::More)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.waker = waker;
    }

    fn ends_with_client(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// A stream that returns these polls, then stays pending.
    struct Polls<T>(Vec<Poll<Option<T>>>);

    impl<T: Unpin> Stream for Polls<T> {
        type Item = T;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
            if self.0.is_empty() { Poll::Pending } else { self.0.remove(0) }
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn append(item: &str, out: &mut Vec<u8>) -> io::Result<()> {
        out.extend_from_slice(item.as_bytes());
        Ok(())
    }

    #[test]
    fn a_stream_is_polled_for_the_room_that_there_is() {
        let items = ["ab", "cd", "ef"].map(|item| Poll::Ready(Some(item)));
        let mut body = StreamBody::new(Polls(items.into()), append);
        let mut out = Vec::new();
        assert_eq!(body.pull(3, &mut out).unwrap(), SourcePull::More);
        assert_eq!(out, b"abcd", "the third item waits for room");
        out.clear();
        // Available items are sent before the body waits for the stream.
        assert_eq!(body.pull(3, &mut out).unwrap(), SourcePull::More);
        assert_eq!(out, b"ef");
        out.clear();
        assert_eq!(body.pull(3, &mut out).unwrap(), SourcePull::Wait);
        body.stream.0.push(Poll::Ready(None));
        assert_eq!(body.pull(3, &mut out).unwrap(), SourcePull::End);
        assert!(out.is_empty());
    }

    #[test]
    fn empty_items_without_end_do_not_occupy_the_thread() {
        let empty = std::iter::repeat_with(|| Poll::Ready(Some(""))).take(3 * MAX_ITEMS);
        let mut body = StreamBody::new(Polls(empty.collect()), append);
        let wakes = Arc::<Wakes>::default();
        body.set_waker(Arc::clone(&wakes).into());
        let mut out = Vec::new();
        assert_eq!(body.pull(3, &mut out).unwrap(), SourcePull::Wait);
        assert_eq!((body.stream.0.len(), wakes.0.load(Ordering::SeqCst)), (2 * MAX_ITEMS, 1));
    }
}
