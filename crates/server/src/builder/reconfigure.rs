//! Changes of settings while a server runs.

use std::time::Duration;

use super::Server;
use crate::error::Result;
use crate::running::Running;

/// The longest wait for event loops that are busy in a handler.
const APPLIED_WITHIN: Duration = Duration::from_secs(1);

impl Running {
    /// Applies limits, back-pressure and origins from `server`, the description of a server with
    /// the same routes, while connections stay open: [`Server::limits`] with the sizes of routes,
    /// [`Server::backpressure`], [`Channels::backpressure`](crate::channel::Channels::backpressure)
    /// and [`Server::origins`]. All other settings stay as they were bound.
    ///
    /// Each event loop applies them before this returns; a loop that is busy in a handler for more
    /// than a second does so when the handler returns. Do not call this in a handler.
    /// [`max_connections`](crate::Limits::max_connections) does not change, nor does the part of
    /// [`write_timeout`](crate::Limits::write_timeout) that the kernel enforces. Deadlines already
    /// set do not change, and a new longest lifetime applies to later sessions.
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
    /// then nothing changes.
    pub fn reconfigure(&self, server: &Server) -> Result<()> {
        server.check()?;
        let (classes, routes) = (server.classes(), server.route_options());
        let applied = self.serving.live.configurator.apply(&server.limits, &classes, &routes)?;
        self.serving.live.origins.replace(server.origins.clone());
        // An event loop that is busy in a handler applies the settings when the handler returns.
        let _ = applied.wait(APPLIED_WITHIN);
        Ok(())
    }
}
