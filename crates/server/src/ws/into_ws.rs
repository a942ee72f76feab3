//! The types that can be served at a WebSocket route.

use std::sync::Arc;

use super::closures::Ws;
use super::decision::Decide;
use super::handler::Handler;
use super::messages::ByHandler;

/// A type that can be served at a WebSocket route: a [`Ws`] or a [`Handler`]. It is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be served at a WebSocket route",
    label = "not a WebSocket handler",
    note = "make a handler of closures with `Ws::new().on_message(|ws, (), message| ..)`",
    note = "or implement `Handler`"
)]
pub trait IntoWs: sealed::Sealed {
    /// The data of a connection.
    type Data: Send + 'static;

    /// Converts it.
    fn into_ws(self) -> Ws<Self::Data>;
}

#[allow(unnameable_types, reason = "unnameable traits seal public ones")]
mod sealed {
    pub trait Sealed {}
    impl<D> Sealed for super::Ws<D> {}
    impl<H: super::Handler> Sealed for H {}
}

impl<D: Send + 'static> IntoWs for Ws<D> {
    type Data = D;

    fn into_ws(self) -> Self {
        self
    }
}

impl<H: Handler> IntoWs for H {
    type Data = H::Data;

    fn into_ws(self) -> Ws<H::Data> {
        Ws::handler(self)
    }
}

impl<D: Send + 'static> Ws<D> {
    /// A route of a [`Handler`], to set options, or callbacks that replace the handler's own.
    ///
    /// ```
    /// use throng::prelude::*;
    ///
    /// struct Room;
    ///
    /// impl Handler for Room {
    ///     type Data = String;
    ///
    ///     fn on_upgrade(&self, request: &Request<'_>) -> Result<String, Reject> {
    ///         Ok(request.param("name").unwrap_or_default().to_owned())
    ///     }
    ///
    ///     fn on_message(&self, ws: &mut Socket<'_, String>, _: &mut String, _: Message<'_>) {
    ///         let count = ws.shard_state::<u64>();
    ///         *count += 1;
    ///         let text = count.to_string();
    ///         ws.send(text);
    ///     }
    /// }
    ///
    /// let app = App::new().ws("/{name}", Ws::handler(Room).place_by(|name| name));
    /// # Server::new(app).check().unwrap();
    /// ```
    #[must_use]
    pub fn handler<H: Handler<Data = D>>(handler: H) -> Self {
        let handler = Arc::new(handler);
        let upgrade = Arc::clone(&handler);
        let decide = Decide::Now(Box::new(move |request| upgrade.on_upgrade(request)));
        let mut ws = Self::deciding(decide);
        let (events, losses) = (Arc::clone(&handler), Arc::clone(&handler));
        ws.messages = Box::new(ByHandler(handler));
        ws.on_event(move |ws, data, event| events.on_event(ws, data, event))
            .on_unpublished(move |ws, data, lost| losses.on_unpublished(ws, data, lost))
    }
}
