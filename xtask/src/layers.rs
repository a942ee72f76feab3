//! The layers of tests, in the order in which they run: cheap and informative ones first.

mod autobahn;
mod cargo_test;
mod clients;
mod deny;
mod examples;
mod fuzz;
mod loom;
mod metrics;
mod planted;
mod portable;
mod publish;
mod sslyze;
pub(crate) mod wine;

use crate::outcome::{Stop, Tally};
use crate::server::Server;
use crate::site::Site;
use crate::tidy;

/// A part of a layer.
type SiteStep<T> = fn(&Site) -> Result<T, Stop>;

/// One layer of tests.
pub(crate) struct Layer {
    /// The name for `--only` and `--skip`.
    pub(crate) name: &'static str,
    /// The tested property, in one line.
    pub(crate) about: &'static str,
    /// Runs the layer.
    pub(crate) run: SiteStep<Tally>,
    /// Builds a part of the requirements of `run` in advance, in parallel with the layer `cargo`,
    /// whose tests mostly wait.
    pub(crate) prepare: Option<SiteStep<()>>,
    /// Whether the layer takes minutes and rarely finds more than the others, so that only
    /// `--night` includes it.
    pub(crate) night: bool,
}

/// The layer that runs while the requirements of others are built.
pub(crate) const CARGO: &str = "cargo";

/// Every layer.
pub(crate) const LAYERS: &[Layer] = &[
    Layer {
        name: "tidy",
        about: "repository checks: wording, widths, citations, names, commit subjects",
        run: tidy::run,
        prepare: None,
        night: false,
    },
    Layer {
        name: CARGO,
        about: "cargo test --workspace: unit, property, simulation and doc tests",
        run: cargo_test::run,
        prepare: None,
        night: false,
    },
    Layer {
        name: "loom",
        about: "every interleaving of mailbox and counts",
        run: loom::run,
        prepare: Some(loom::prepare),
        night: false,
    },
    Layer {
        name: "fuzz",
        about: "a few seconds of each fuzz target",
        run: fuzz::run,
        prepare: Some(fuzz::prepare),
        night: false,
    },
    Layer {
        name: "planted",
        about: "faults planted in the record layer of TLS: a test notices each",
        run: planted::run,
        prepare: Some(planted::prepare),
        night: true,
    },
    Layer {
        name: "windows",
        about: "libraries and programs type-check for Windows",
        run: portable::run_windows,
        prepare: Some(portable::prepare_windows),
        night: false,
    },
    Layer {
        name: "wine",
        about: "tests of twelve crates, throng.exe serve and its service, for Windows under Wine",
        run: wine::run,
        prepare: Some(wine::prepare),
        night: true,
    },
    Layer {
        name: "portable",
        about: "the workspace type-checks for other systems; throng links for macOS and FreeBSD",
        run: portable::run_all,
        prepare: None,
        night: true,
    },
    Layer {
        name: "examples",
        about: "each example builds, starts and answers",
        run: examples::run,
        prepare: None,
        night: false,
    },
    Layer {
        name: "autobahn-server",
        about: "Autobahn's short cases against the server",
        run: autobahn::run_server,
        prepare: Some(Server::build),
        night: false,
    },
    Layer {
        name: "autobahn-tls",
        about: "Autobahn's cases but compression against the server with TLS 1.3 and 1.2",
        run: autobahn::run_server_with_tls,
        prepare: None,
        night: false,
    },
    Layer {
        name: "autobahn-client",
        about: "Autobahn's short cases against the load generator's client",
        run: autobahn::run_client,
        prepare: None,
        night: false,
    },
    Layer {
        name: "autobahn-library",
        about: "Autobahn's short cases against the library's client",
        run: autobahn::run_library_client,
        prepare: None,
        night: false,
    },
    Layer {
        name: "autobahn-client-tls",
        about: "Autobahn's cases but compression against both clients with TLS 1.3 and 1.2",
        run: autobahn::run_clients_with_tls,
        prepare: None,
        night: false,
    },
    Layer {
        name: "autobahn-deflate",
        about: "Autobahn's 216 cases with compression against the server and both clients",
        run: autobahn::run_with_compression,
        prepare: None,
        night: true,
    },
    Layer {
        name: "autobahn-wine",
        about: "Autobahn's 517 cases against throng.exe under Wine, twice",
        run: autobahn::run_server_under_wine,
        prepare: None,
        night: true,
    },
    Layer {
        name: "clients-wine",
        about: "Node, Python, tungstenite, Go, curl and Chromium against throng.exe under Wine",
        run: clients::run_under_wine,
        prepare: None,
        night: true,
    },
    Layer {
        name: "client-node",
        about: "Node's ws against our server",
        run: clients::run_node,
        prepare: None,
        night: false,
    },
    Layer {
        name: "client-python",
        about: "Python's websockets against our server",
        run: clients::run_python,
        prepare: None,
        night: false,
    },
    Layer {
        name: "client-tungstenite",
        about: "tungstenite against our server",
        run: clients::run_tungstenite,
        prepare: None,
        night: false,
    },
    Layer {
        name: "client-go",
        about: "Go's crypto/tls and gorilla's websocket against our server",
        run: clients::run_go,
        prepare: None,
        night: false,
    },
    Layer {
        name: "client-centrifuge",
        about: "the Centrifuge protocol's clients for JavaScript, Python and Go against our server",
        run: clients::run_centrifuge,
        prepare: None,
        night: false,
    },
    Layer {
        name: "client-chromium",
        about: "Chromium: its WebSocket, and the page at /",
        run: clients::run_chromium,
        prepare: None,
        night: false,
    },
    Layer {
        name: "promtool",
        about: "promtool: metrics and alert rules",
        run: metrics::run,
        prepare: None,
        night: false,
    },
    Layer {
        name: "sslyze",
        about: "sslyze against our server: Mozilla's intermediate configuration of TLS",
        run: sslyze::run,
        prepare: None,
        night: false,
    },
    Layer {
        name: "deny",
        about: "cargo deny: licences, bans, sources; no tokio without its features",
        run: deny::run,
        prepare: Some(deny::prepare),
        night: false,
    },
    Layer {
        name: "publish",
        about: "cargo publish --dry-run: every crate packs, and compiles from its package",
        run: publish::run,
        prepare: None,
        night: false,
    },
];
