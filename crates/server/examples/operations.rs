//! Limits, events, metrics and a graceful shutdown at SIGTERM or SIGINT:
//! `ws://127.0.0.1:9001/echo`, and for the operators `curl http://127.0.0.1:9001/metrics`,
//! `/livez` and `/readyz`.

use std::time::Duration;

use throng::prelude::*;
use throng::server::{Observe, ServerEvent};

fn main() -> throng::Result<()> {
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let app = App::new().ws("/echo", echo).health().metrics("/metrics");
    let limits = Limits::default()
        .max_message_size(64 << 10)
        .max_connections_per_address(1_000)
        .max_messages_per_second(500);
    let bound = Server::new(app)
        .limits(limits)
        .observe(Observe::new().on_event(|event| match event {
            // The proxy's access log already has these refusals.
            ServerEvent::Refused { .. } => {}
            event => eprintln!("{event}"),
        }))
        .bind("127.0.0.1:9001")?;
    // Load balancers see `/readyz` turn to 503; new clients are still served for two seconds. Then
    // the server closes the sessions over ten seconds.
    let plan = DrainPlan::default()
        .delay(Duration::from_secs(2))
        .window(Duration::from_secs(10))
        .code(CloseCode::SERVICE_RESTART);
    let drained = bound.run_until_signal(plan)?;
    eprintln!("{} connections had to be reset", drained.forced);
    Ok(())
}
