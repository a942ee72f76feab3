//! Tests of a balancer's decisions, with a simulated clock.

use std::sync::atomic::Ordering::Relaxed;

mod carried;
mod drain;
mod health;
mod passthrough;
mod pools;
mod property;
mod rebalance;
mod refusals;
mod register;
mod reload;

use super::*;
use crate::backend::{SHARES_PER_WEIGHT, Wanted};
use crate::config::server_names;
use crate::status::{Changes, RemovedBackend, Surplus};

const TOKEN: &str = "[register]\ntoken = \"0123456789abcdef\"\n";

fn at(seconds: f64) -> Instant {
    Instant::default().after(Duration::from_secs_f64(seconds))
}

fn address(port: u16) -> PeerAddress {
    ([127, 0, 0, 1], port).into()
}

/// With backends at these ports and `more` settings, with tables last.
fn config(ports: &[u16], more: &str) -> Config {
    let backends: Vec<_> = ports.iter().map(|&port| format!("\"{}\"", address(port))).collect();
    let text = format!("backends = [{}]\n{more}", backends.join(", "));
    Config::parse(&text, "b.toml").unwrap()
}

fn core(ports: &[u16], more: &str) -> ControlCore {
    let mut core = ControlCore::new(config(ports, more));
    assert!(core.take_configuration().is_some());
    core
}

fn backend(core: &ControlCore, port: u16) -> Arc<Backend> {
    let mut all = core.backends().map(|(backend, _)| backend);
    Arc::clone(all.find(|backend| backend.address() == address(port)).expect("it is in the list"))
}

fn states(core: &ControlCore) -> Vec<&'static str> {
    core.backends().map(|(backend, _)| backend.state().word()).collect()
}

fn ports(core: &ControlCore) -> Vec<u16> {
    core.backends().map(|(backend, _)| backend.address().port()).collect()
}

fn open(backend: &Backend, tunnels: u32) {
    (0..tunnels).for_each(|_| backend.open_tunnel());
}

fn close(backend: &Backend, tunnels: u32) {
    for _ in 0..tunnels {
        backend.close_tunnel();
        backend.totals().closed.fetch_add(1, Relaxed);
    }
}

fn fail(core: &mut ControlCore, port: u16, times: usize, now: Instant) {
    let backend = backend(core, port);
    for _ in 0..times {
        core.handle_failure(&backend, Failure::Refused, false, now, SystemTime::UNIX_EPOCH);
    }
}

fn apply(core: &mut ControlCore, config: Config, now: Instant) -> Result<Changes, Error> {
    config.check()?;
    core.apply(config, now, |_| {})
}

fn expire(core: &mut ControlCore, now: Instant) -> Option<Instant> {
    core.expire(now, SystemTime::UNIX_EPOCH)
}

/// Commands in short form: the port, and `+` for keep, or rate, code, order, deadline and count.
fn commands(core: &mut ControlCore) -> Vec<String> {
    let short = |command| match command {
        ControlCommand::Keep(backend) => format!("{} keep", backend.address().port()),
        ControlCommand::Close(backend, closing, most) => {
            let Closing { code, rate, order, deadline, later } = closing;
            let all = if later { "all" } else { "open" };
            let most = most.map_or(all.to_owned(), |most| most.to_string());
            let port = backend.address().port();
            format!("{port} close {most} at {rate}/s with {code} {order:?} by {deadline:?}")
        }
    };
    core.take_commands().into_iter().map(short).collect()
}
