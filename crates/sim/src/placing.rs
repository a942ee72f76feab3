//! Sessions placed on a shard by their peer's number.

use throng_engine::{Answer, Core, Cx, UserEvent};
use throng_proto::ws::handshake::encode_response;

use crate::record::SharedRecord;

/// An accepted upgrade that moves to another shard.
struct Moved {
    peer: u32,
    accept: [u8; 28],
}

/// The shard that a peer's session is placed on.
pub(crate) fn shard_of(peer: u32, shards: usize) -> usize {
    peer as usize % shards
}

/// Passes an accepted upgrade to another shard.
pub(crate) fn leave(
    record: &SharedRecord,
    cx: &mut Cx<'_>,
    to: usize,
    peer: u32,
    accept: [u8; 28],
) -> Answer {
    let mut record = record.borrow_mut();
    if !record.moves.under_way.insert(peer) {
        record.violation(format!("peer {peer} moves, and moves again"));
    }
    let id = cx.id();
    cx.core().move_upgrade(id, to, UserEvent(Box::new(Moved { peer, accept })));
    Answer::Upgrading
}

/// Opens the session of an upgrade that has moved, or that could not move. Returns any other event.
pub(crate) fn on_user_event(
    record: &SharedRecord,
    cx: &mut Cx<'_>,
    event: UserEvent,
    shards: usize,
    subprotocol_of: fn(u32) -> Option<&'static str>,
) -> Option<UserEvent> {
    let moved = match event.0.downcast::<Moved>() {
        Ok(moved) => *moved,
        Err(event) => return Some(UserEvent(event)),
    };
    let (id, peer) = (cx.id(), moved.peer);
    let mut record = record.borrow_mut();
    if !record.moves.under_way.remove(&peer) {
        record.violation(format!("the upgrade of peer {peer} came twice"));
    }
    match cx.core_ref().shard() == shard_of(peer, shards) {
        true => record.moves.arrived += 1,
        false => drop(record.moves.returned.insert(peer)),
    }
    if !cx.core().accept_upgrade(id) {
        cx.core().finish_answer(id, false);
        return None;
    }
    cx.set_route(0, peer);
    if let Some(name) = subprotocol_of(peer) {
        cx.set_subprotocol(name);
    }
    cx.write(|out| {
        let _ = encode_response(&moved.accept, None, out);
    });
    record.lifecycle.upgrade(id);
    None
}

/// Records an upgrade whose connection has ended.
pub(crate) fn on_failed(record: &SharedRecord, core: &Core, event: UserEvent) {
    let Ok(moved) = event.0.downcast::<Moved>() else { return };
    let (peer, mut record) = (moved.peer, record.borrow_mut());
    record.trace.mix(core.shard() as u64);
    if !record.moves.under_way.remove(&peer) {
        record.violation(format!("the upgrade of peer {peer} failed after its end"));
    }
    record.moves.lost.insert(peer);
}
