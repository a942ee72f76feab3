//! Tunnels do not move on this system.

use std::io;
use std::time::Instant;

use throng_engine::mailbox::Mailbox;
use throng_io::Driver;
pub use throng_io::handover::Passage;

use crate::command::BalanceCommand;
use crate::moving::MovedTunnels;
use crate::shard::Shard;

/// A driver of a shard.
pub(crate) trait Movable: Driver {}

impl<D: Driver> Movable for D {}

/// A shard.
pub(crate) struct Runner<D: Driver>(Shard<D>);

impl<D: Movable> Runner<D> {
    pub(crate) fn new(shard: Shard<D>, _number: u16, _passage: Option<Passage>) -> Self {
        Self(shard)
    }

    /// Runs the shard until it has ended.
    pub(crate) fn run(mut self) -> io::Result<()> {
        while self.0.turn()? {}
        self.0.publish();
        Ok(())
    }
}

/// Enters nothing.
pub(crate) fn prepare<D: Driver>(_drivers: &mut [D], _passages: &[Passage]) -> io::Result<()> {
    Ok(())
}

pub(crate) fn listen(_passage: &Passage, _mailbox: Mailbox<BalanceCommand>) -> io::Result<()> {
    Ok(())
}

/// There are none.
#[derive(Debug)]
pub enum Moves {}

impl Moves {
    pub(crate) fn begin(
        _mailboxes: impl Iterator<Item = Mailbox<BalanceCommand>>,
    ) -> (Option<Self>, io::Result<Vec<Passage>>) {
        (None, Err(io::ErrorKind::Unsupported.into()))
    }

    /// Never called on this system.
    ///
    /// # Errors
    /// Never.
    pub fn run(
        &self,
        _until: Instant,
        _is_alive: &mut dyn FnMut() -> bool,
    ) -> Result<MovedTunnels, String> {
        match *self {}
    }

    /// Never called on this system.
    pub fn abandon(&self) -> u64 {
        match *self {}
    }

    /// Never called on this system.
    pub fn end(&self) {
        match *self {}
    }
}
