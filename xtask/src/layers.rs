//! The layers of tests, in the order in which they run: cheap and informative ones first.

mod autobahn;
mod cargo_test;
mod clients;
mod deny;
mod examples;
mod fuzz;
mod loom;
mod metrics;
mod proxies;
mod sslyze;

use crate::outcome::{Stop, Tally};
use crate::site::Site;
use crate::tidy;

/// One layer of tests.
pub(crate) struct Layer {
    /// The name for `--only` and `--skip`.
    pub(crate) name: &'static str,
    /// The tested property, in one line.
    pub(crate) about: &'static str,
    /// Runs the layer.
    pub(crate) run: fn(&Site) -> Result<Tally, Stop>,
}

/// Every layer.
pub(crate) const LAYERS: &[Layer] = &[
    Layer {
        name: "tidy",
        about: "repository checks: wording, widths, citations, names, commit subjects",
        run: tidy::run,
    },
    Layer {
        name: "cargo",
        about: "cargo test --workspace: unit, property, simulation and doc tests",
        run: cargo_test::run,
    },
    Layer { name: "loom", about: "every interleaving of mailbox and counts", run: loom::run },
    Layer { name: "fuzz", about: "a few seconds of each fuzz target", run: fuzz::run },
    Layer {
        name: "examples",
        about: "each example builds, starts and answers",
        run: examples::run,
    },
    Layer {
        name: "autobahn-server",
        about: "Autobahn's 517 cases against our server",
        run: autobahn::run_server,
    },
    Layer {
        name: "autobahn-tls",
        about: "Autobahn's cases but compression against our server with TLS",
        run: autobahn::run_server_with_tls,
    },
    Layer {
        name: "autobahn-client",
        about: "Autobahn's 517 cases against the load generator's client",
        run: autobahn::run_client,
    },
    Layer {
        name: "autobahn-library",
        about: "Autobahn's 517 cases against the library's client",
        run: autobahn::run_library_client,
    },
    Layer { name: "client-node", about: "Node's ws against our server", run: clients::run_node },
    Layer {
        name: "client-python",
        about: "Python's websockets against our server",
        run: clients::run_python,
    },
    Layer {
        name: "client-tungstenite",
        about: "tungstenite against our server",
        run: clients::run_tungstenite,
    },
    Layer {
        name: "client-chromium",
        about: "Chromium: its WebSocket, and the page at /",
        run: clients::run_chromium,
    },
    Layer { name: "promtool", about: "promtool: metrics and alert rules", run: metrics::run },
    Layer {
        name: "sslyze",
        about: "sslyze against our server: Mozilla's intermediate configuration of TLS",
        run: sslyze::run,
    },
    Layer { name: "proxies", about: "nginx and HAProxy under our bench", run: proxies::run },
    Layer { name: "deny", about: "cargo deny: licences, bans, sources", run: deny::run },
];
