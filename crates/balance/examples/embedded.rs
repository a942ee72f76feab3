//! A balancer and two servers in one program, `ws://127.0.0.1:9001/echo`, with its own operations:
//!
//! ```text
//! curl http://127.0.0.1:9002/backends
//! curl -X POST http://127.0.0.1:9002/drain/127.0.0.1:40123
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use throng::prelude::*;
use throng_balance::{BackendConfig, Balancer, Config, PeerAddress};

/// Starts a backend on a free port.
fn start_server() -> throng::Result<Running> {
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    Server::new(App::new().ws("/echo", echo)).bind("127.0.0.1:0")?.start()
}

/// Returns the routes for operators. They have no login, so only operators may reach them.
fn operations(balancer: &Balancer) -> App {
    let (status, drain) = (balancer.clone(), balancer.clone());
    App::new()
        .get("/backends", move |_| {
            let rows = status.status().backends;
            let line = |row: &throng_balance::Row| {
                format!("{} is {} with {} tunnels\n", row.address, row.state, row.tunnels)
            };
            Response::text(rows.iter().map(line).collect::<String>())
        })
        .post("/drain/{address}", move |request| {
            let address = request.param("address").unwrap_or_default();
            let address: SocketAddr = address
                .parse()
                .map_err(|_| Reject::bad_request("expected an address of /backends"))?;
            // Its clients are asked to reconnect, and get the other backend.
            match drain.drain(address, None) {
                Ok(plan) => Ok(Response::text(format!("{} tunnels are closed\n", plan.tunnels))),
                Err(error) => Err(Reject::bad_request(error.to_string())),
            }
        })
}

fn main() -> Result<(), Box<dyn Error>> {
    let servers = [start_server()?, start_server()?];
    let mut config = Config::default();
    config.listen = vec!["127.0.0.1:9001".parse::<PeerAddress>()?];
    config.backends = servers.iter().map(|it| BackendConfig::new(it.local_addr())).collect();
    let balancer = Balancer::start(config)?;

    let operations = Server::new(operations(&balancer)).bind("127.0.0.1:9002")?;
    operations.run_until_signal(DrainPlan::default())?;

    // The tunnels end first, so that none are left when the servers stop.
    balancer.shut_down(Duration::from_secs(5), Duration::from_secs(10))?;
    for server in servers {
        server.shutdown(DrainPlan::default()).wait()?;
    }
    Ok(())
}
