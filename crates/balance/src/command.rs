//! Commands that other threads send to a shard.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::backend::Backend;
use crate::configuration::Configuration;
use crate::moving::MoveCommand;
use crate::settings::Closing;

/// A command for a shard.
#[derive(Debug)]
pub enum BalanceCommand {
    /// Use this configuration from now on.
    Configure(Arc<Configuration>),
    /// Close tunnels of this backend.
    CloseTunnels {
        /// Their backend.
        backend: Arc<Backend>,
        /// The code, the rate and the order.
        closing: Closing,
        /// The number that all shards together may still close; `None`: all of them.
        most: Option<Arc<AtomicU32>>,
    },
    /// Stop closing tunnels of this backend.
    KeepTunnels(Arc<Backend>),
    /// An order, or news, about tunnels that move; carried out at the end of the turn.
    Move(MoveCommand),
    /// Publish the metrics now, and send a notification.
    Publish(Sender<()>),
    /// Stop accepting, close all tunnels within `window`, and end by `deadline`.
    ShutDown {
        /// Tunnels are closed spread over this time.
        window: Duration,
        /// Connections that remain after this time are reset.
        deadline: Duration,
        /// Another process accepts from the same sockets: clients that have not sent a request yet
        /// are answered.
        hand_over: bool,
    },
}
