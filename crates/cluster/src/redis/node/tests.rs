//! Steps of a part without a server.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError};
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::announcement::Announcement;
use crate::control::Control;
use crate::envelope::Place;
use crate::outbox::WhileDown;
use crate::redis::calls::CallOutcome;
use crate::redis::reply::{AskError, Waiting, block_on};
use crate::redis::{Outgoing, Settings, Tls};
use crate::sequencer::Tail;

/// Members that record the publications that they get.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<u8>>>);

impl Members for Notes {
    fn begin(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>, _: bool) {}
    fn deliver(&mut self, _: &Arc<str>, _: Place, _: &[u8]) {}
    fn refill(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>) {}
    fn live(&mut self, _: &Arc<str>) {}
    fn publish(&mut self, _: &str, envelope: &[u8]) {
        self.0.lock().unwrap().extend(envelope);
    }
    fn end(&mut self, _: &Arc<str>) -> bool {
        true
    }
    fn presence(&mut self, _: &str, _: Announcement<'_>) {}
    fn control(&mut self, _: Control<'_>) {}
    fn subscribers(&mut self, _: &str) -> u64 {
        0
    }
}

fn node() -> (Node, Notes) {
    let url = "redis://127.0.0.1:1".to_owned();
    let settings = Settings { url, prefix: "test".to_owned(), node: 1, tls: Tls::default() };
    let target = RedisTarget::all(settings).unwrap().remove(0);
    let pool = Arc::new(SendBudget::new(1));
    let status = Arc::new(Status::new(vec![None], Arc::clone(&pool), Budget::new(1)));
    let own = PartContext { part: 0, events: unbounded_channel().0, status, pool };
    let notes = Notes::default();
    let members: Box<dyn Members> = Box::new(notes.clone());
    let members = Rc::new(RefCell::new(members));
    let node = Node::new(target, own, members, Budget::new(1));
    node.own.status.set_up(0);
    (node, notes)
}

fn publish_locally(node: &mut Node, text: u8) {
    let (_, reserved) = node.own.pool.reserve(0, 10, None).unwrap();
    let (channel, envelope) = ("a".into(), [text].into());
    let while_down = WhileDown::Local;
    let outgoing = Outgoing { channel, envelope, keep: None, while_down };
    node.publish(outgoing, reserved, Ticket::default());
}

#[test]
fn local_publications_keep_their_order_when_the_connection_is_lost_amid_a_batch() {
    let (mut node, notes) = node();
    node.sender.outbox.connected();
    (1..=3).for_each(|text| publish_locally(&mut node, text));
    (0..2).for_each(|_| drop(node.sender.outbox.send_if(true, |_| true)));
    let lost = RedisError::from((ErrorKind::Io, "the connection was closed"));
    let busy = RedisError::from((ErrorKind::Extension, "BUSY"));
    node.published(Ok(vec![CallOutcome::NotNow(busy), CallOutcome::Broken(lost)]));
    publish_locally(&mut node, 4);
    assert_eq!(*notes.0.lock().unwrap(), [1, 3, 4]);
    assert_eq!(node.own.counters().unknown.load(Ordering::Relaxed), 1);
    assert!(node.sender.outbox.is_empty() && node.own.pool.bytes() == 0);
}

#[test]
fn a_question_that_waits_for_the_first_connection_ends_at_its_limit() {
    let (mut node, _) = node();
    // Keeps the part from being set down during the test.
    (node.link.is_linking, node.link.disconnected_at) = (true, 3_600_000);
    let asks = Arc::default();
    let ask = |node: &mut Node, limit| {
        let (reply, waiting) = Waiting::begin(&asks);
        let ask = survey::SurveyInput::Ask("a".into(), Instant::now() + limit, waiting.unwrap());
        node.handle(NodeEvent::Survey(ask));
        reply
    };
    let reply = ask(&mut node, Duration::ZERO);
    let (_answer, waiting) = Waiting::begin(&asks);
    let command = control::ControlInput::Send(None, Vec::new(), waiting.unwrap());
    node.handle(NodeEvent::Control(command));
    assert_eq!(node.link.before.len(), 2);
    node.on_time();
    assert_eq!(node.link.before.len(), 1, "the command waits on");
    assert_eq!(block_on(reply), Err(AskError::NoAnswer));
    let limit = Duration::from_millis(500);
    let _reply = ask(&mut node, limit);
    assert!(node.rest() <= limit, "{:?}", node.rest());
}

#[test]
fn a_server_that_was_away_for_long_is_found_before_what_waits_for_it_is_given_up() {
    let (mut node, _) = node();
    let waits: Vec<u64> = (0..1_000)
        .map(|_| {
            node.broken("away");
            node.link.retry_at.saturating_sub(node.clock.now())
        })
        .collect();
    assert_eq!(waits[0], 0, "the first attempt is at once");
    assert!(waits.iter().all(|wait| *wait < 1_000), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait > 500), "they do not all come at once: {waits:?}");
}
