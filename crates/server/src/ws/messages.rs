//! The callbacks for messages that handlers can have.

use std::marker::PhantomData;
use std::sync::Arc;

#[cfg(feature = "tokio")]
use throng_engine::SettingError;
use throng_engine::{Chunk, EndReason, Message};
use throng_proto::ws::OwnedMessage;

#[cfg(feature = "tokio")]
use super::async_options::AsyncOptions;
use super::callbacks::Callbacks;
use super::handler::Handler;
use super::outcome::Outcome;
use super::sessions::{AnyEndpoint, Endpoint, OnMessage};
use super::socket::Socket;
use crate::workers::Replies;

/// A callback for messages of any type, before the other callbacks are known.
pub(crate) trait Attach<D>: Send + Sync {
    fn streams(&self) -> bool;

    fn blocks(&self) -> bool;

    fn attach(self: Box<Self>, callbacks: Callbacks<D>) -> Arc<dyn AnyEndpoint>;

    /// Sets the options of futures.
    #[cfg(feature = "tokio")]
    fn set_options(&mut self, options: &AsyncOptions) -> Result<(), SettingError>;
}

impl<D: Send + 'static, M: OnMessage<D>> Attach<D> for M {
    fn streams(&self) -> bool {
        M::STREAMS
    }

    fn blocks(&self) -> bool {
        M::BLOCKS
    }

    fn attach(self: Box<Self>, callbacks: Callbacks<D>) -> Arc<dyn AnyEndpoint> {
        Arc::new(Endpoint { callbacks, messages: *self })
    }

    #[cfg(feature = "tokio")]
    fn set_options(&mut self, options: &AsyncOptions) -> Result<(), SettingError> {
        OnMessage::set_options(self, options)
    }
}

/// A closure that gets whole messages.
pub(super) struct Whole<F, T>(F, PhantomData<fn() -> T>);

impl<F, T> Whole<F, T> {
    pub(super) fn new(on_message: F) -> Self {
        Self(on_message, PhantomData)
    }
}

impl<D, F, T> OnMessage<D> for Whole<F, T>
where
    F: Fn(&mut Socket<'_, D>, &mut D, Message<'_>) -> T + Send + Sync + 'static,
    T: Outcome + 'static,
{
    type Kept = ();

    #[inline]
    fn on_message(&self, ws: &mut Socket<'_, D>, data: &mut D, (): &mut (), message: Message<'_>) {
        self.0(ws, data, message);
    }
}

/// A closure that gets messages in parts.
pub(super) struct Chunks<F, T>(F, PhantomData<fn() -> T>);

impl<F, T> Chunks<F, T> {
    pub(super) fn new(on_chunk: F) -> Self {
        Self(on_chunk, PhantomData)
    }
}

impl<D, F, T> OnMessage<D> for Chunks<F, T>
where
    F: Fn(&mut Socket<'_, D>, &mut D, Chunk<'_>) -> T + Send + Sync + 'static,
    T: Outcome + 'static,
{
    type Kept = ();

    const STREAMS: bool = true;

    fn on_message(&self, ws: &mut Socket<'_, D>, data: &mut D, (): &mut (), message: Message<'_>) {
        let (text, bytes) = (matches!(message, Message::Text(_)), message.as_bytes());
        self.0(ws, data, Chunk { text, first: true, last: true, bytes });
    }

    fn on_chunk(&self, ws: &mut Socket<'_, D>, data: &mut D, chunk: Chunk<'_>) {
        self.0(ws, data, chunk);
    }
}

/// A closure that gets whole messages, on a worker.
pub(super) struct Blocking<F>(pub(super) Arc<F>);

impl<D, F> OnMessage<D> for Blocking<F>
where
    D: Clone + Send + 'static,
    F: Fn(&mut Replies, &D, Message<'_>) + Send + Sync + 'static,
{
    type Kept = ();

    const BLOCKS: bool = true;

    fn on_message(&self, ws: &mut Socket<'_, D>, data: &mut D, (): &mut (), message: Message<'_>) {
        let (handler, data) = (Arc::clone(&self.0), data.clone());
        let bytes = message.as_bytes().len();
        let message = OwnedMessage::from(message);
        let work = move || {
            let mut replies = Replies::default();
            handler(&mut replies, &data, message.as_message());
            replies
        };
        if ws.try_offload(bytes, work, |ws, _, replies| ws.run_replies(replies)).is_err() {
            ws.close_for(EndReason::Workers);
        }
    }
}

/// A user's [`Handler`].
pub(super) struct ByHandler<H>(pub(super) Arc<H>);

impl<H: Handler> OnMessage<H::Data> for ByHandler<H> {
    type Kept = ();

    #[inline]
    fn on_message(
        &self,
        ws: &mut Socket<'_, H::Data>,
        data: &mut H::Data,
        (): &mut (),
        message: Message<'_>,
    ) {
        self.0.on_message(ws, data, message);
    }

    fn on_chunk(&self, ws: &mut Socket<'_, H::Data>, data: &mut H::Data, chunk: Chunk<'_>) {
        self.0.on_chunk(ws, data, chunk);
    }
}

/// Ignores messages: the default.
pub(super) struct Ignore;

impl<D> OnMessage<D> for Ignore {
    type Kept = ();

    fn on_message(&self, _: &mut Socket<'_, D>, _: &mut D, (): &mut (), _: Message<'_>) {}
}
