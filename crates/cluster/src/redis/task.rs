//! Tasks that wait for the server. Each ends with an event for its node.

use tokio::sync::mpsc::UnboundedSender;

/// The event of a task, which is sent at any end of the task.
struct End<E> {
    events: UnboundedSender<E>,
    event: Option<E>,
}

impl<E> Drop for End<E> {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            let _ = self.events.send(event);
        }
    }
}

/// Starts a task, and sends its event when it ends. If the task panics, sends the event for a
/// panic: otherwise the node would wait forever.
pub(super) fn start<E: Send + 'static>(
    events: &UnboundedSender<E>,
    panicked: E,
    task: impl Future<Output = E> + Send + 'static,
) {
    let mut end = End { events: events.clone(), event: Some(panicked) };
    tokio::spawn(async move {
        let event = task.await;
        end.event.replace(event);
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use throng_testkit::{Redis, eventually};

    use crate::envelope::Place;
    use crate::outbox::WhileDown;
    use crate::redis::{Bus, KeepRule, Members, Outgoing, Settings, Tls};
    use crate::sequencer::Tail;

    struct NoMembers;

    impl Members for NoMembers {
        fn begin(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>, _: bool) {}
        fn deliver(&mut self, _: &Arc<str>, _: Place, _: &[u8]) {}
        fn refill(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>) {}
        fn live(&mut self, _: &Arc<str>) {}
        fn publish(&mut self, _: &str, _: &[u8]) {}
        fn end(&mut self, _: &Arc<str>) -> bool {
            true
        }
        fn presence(&mut self, _: &str, _: crate::Announcement<'_>) {}
        fn control(&mut self, _: crate::Control<'_>) {}
        fn subscribers(&mut self, _: &str) -> u64 {
            0
        }
    }

    #[test]
    fn a_node_goes_on_when_a_task_of_it_panics() {
        let Some(redis) = Redis::start("panics", &[]) else { return };
        let settings = Settings {
            url: redis.url(""),
            prefix: "test".to_owned(),
            node: 1,
            tls: Tls::default(),
        };
        let (bus, starter) = Bus::new(settings).unwrap();
        starter.start(NoMembers).unwrap();
        let publish = |channel: &str, keep: Option<KeepRule>| {
            let (channel, envelope) = (channel.into(), [].into());
            let while_down = WhileDown::Buffer;
            assert!(bus.publish(Outgoing { channel, envelope, keep, while_down }));
        };
        let status = || bus.status().snapshot();
        // Publishing to this channel injects a panic into the task.
        publish(super::super::node::PANICS, None);
        eventually("its publication is counted", || status().unknown == 1);
        publish("plain", None);
        publish("kept", Some(KeepRule { count: 10, bytes: 1 << 20, age: Duration::from_secs(60) }));
        eventually("others are published", || status().published == 2 && status().is_up);
        assert_eq!((status().reconnects, status().pending_bytes), (1, 0));
        bus.stop();
    }
}
