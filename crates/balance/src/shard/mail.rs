//! The mail of a shard: commands of other threads, and reports to them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;

use throng_engine::mailbox::Inbox;
use throng_io::SessionFailure;

use super::upkeep::Meters;
use crate::backend::Backend;
use crate::command::BalanceCommand;
use crate::moving::MoveCommand;
use crate::report::{BackendReport, Failure};

/// Incoming commands, and outgoing reports.
pub(super) struct BalanceMail {
    commands: Inbox<BalanceCommand>,
    reports: Sender<BackendReport>,
    /// Orders about tunnels that move, for the end of the turn.
    orders: Vec<MoveCommand>,
}

impl BalanceMail {
    pub(super) fn new(commands: Inbox<BalanceCommand>, reports: Sender<BackendReport>) -> Self {
        Self { commands, reports, orders: Vec::new() }
    }

    /// Takes the commands so far.
    pub(super) fn take(&mut self) -> Vec<BalanceCommand> {
        self.commands.drain().collect()
    }

    /// Returns whether there are commands that were not taken.
    pub(super) fn has_commands(&self) -> bool {
        self.commands.has_commands()
    }

    /// Keeps an order about tunnels that move for the end of the turn.
    pub(super) fn keep_order(&mut self, order: MoveCommand) {
        self.orders.push(order);
    }

    /// Returns whether there are such orders.
    #[cfg(target_os = "linux")]
    pub(super) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Takes them.
    #[cfg(target_os = "linux")]
    pub(super) fn take_orders(&mut self) -> Vec<MoveCommand> {
        std::mem::take(&mut self.orders)
    }

    /// Counts a failure, of the backend or of the balancer, and reports it.
    pub(super) fn report(
        &self,
        meters: &mut Meters,
        backend: &Arc<Backend>,
        failure: Failure,
        is_retry: bool,
    ) {
        if failure.is_of_connection() {
            backend.note_refusal();
        }
        if failure.is_ours() {
            meters.count(|it| it.own_failures += 1);
        } else {
            backend.totals().failures.fetch_add(1, Relaxed);
        }
        let backend = Arc::clone(backend);
        self.send(BackendReport::Failed { backend, failure, spares_health: is_retry });
    }

    /// Reports that the TLS session of a tunnel's backend failed.
    pub(super) fn report_tunnel(&self, backend: Arc<Backend>, why: SessionFailure) {
        self.send(BackendReport::of_tunnel(backend, why));
    }

    fn send(&self, report: BackendReport) {
        // The receiver is gone only when the whole balancer ends.
        let _ = self.reports.send(report);
    }
}
