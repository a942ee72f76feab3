//! Changes of settings while a server runs.

use std::time::Duration;

use super::Server;
use crate::error::Result;
use crate::running::Running;

/// The longest wait for event loops that a handler holds up.
const APPLIED_WITHIN: Duration = Duration::from_secs(1);

impl Running {
    /// Takes over limits, back-pressure and origins from `server`, which is the description of a
    /// server with the same routes, while connections stay open: those of
    /// [`Server::limits`] with the sizes of routes, [`Server::backpressure`],
    /// [`Channels::backpressure`](crate::channel::Channels::backpressure) and [`Server::origins`].
    /// All else stays as it was bound.
    ///
    /// Each event loop applies them before this returns, or when a handler that holds it up for
    /// more than a second does; do not call this in a handler. Of the limits,
    /// [`max_connections`](crate::Limits::max_connections) stays, and so does the part of
    /// [`write_timeout`](crate::Limits::write_timeout) that the kernel enforces. A deadline that
    /// was set before stays, and the longest lifetime is that of sessions which begin later.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn main() -> throng::Result<()> {
    /// let echo = || Ws::new().on_message(|ws, (), message| ws.send(message));
    /// let app = || App::new().ws("/echo", echo());
    /// let running = Server::new(app()).bind("127.0.0.1:0")?.start()?;
    /// let limits = Limits::default().max_message_size(64 << 10);
    /// running.reconfigure(&Server::new(app()).limits(limits))?;
    /// # running.shutdown(DrainPlan::NOW).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) as for [`Server::check`], or if the routes differ;
    /// nothing is changed then.
    pub fn reconfigure(&self, server: &Server) -> Result<()> {
        server.check()?;
        let (classes, routes) = (server.classes(), server.route_options());
        let applied = self.serving.live.configurator.apply(&server.limits, &classes, &routes)?;
        self.serving.live.origins.replace(server.origins.clone());
        // An event loop that a handler holds up applies them when that returns.
        let _ = applied.wait(APPLIED_WITHIN);
        Ok(())
    }
}
