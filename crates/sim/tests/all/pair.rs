//! Both roles of the engine against each other: one shard dials another, through the same faults.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use throng_engine::{
    Answer, BuildOptions, Close, Cx, Limits, Message, Refusal, Sent, Service, Shard, build,
};
use throng_io::Closed;
use throng_proto::http1::{Request, Response};
use throng_proto::ws::handshake::{
    Key, check_request, check_response, encode_request, encode_response,
};
use throng_sim::{Faults, Net, Rng, SimDriver, Waiting};

const MESSAGES: u32 = 20;

/// Outcome of one client's calls.
#[derive(Debug, Default)]
struct Call {
    opened: u32,
    failed: u32,
    closed: Vec<u16>,
    received: u32,
    sent: u32,
}

type Calls = Rc<RefCell<BTreeMap<u32, Call>>>;

/// Shard 0 serves echoes, shard 1 calls.
struct Role {
    serves: bool,
    calls: Calls,
    served: Rc<RefCell<(u32, u32)>>,
}

fn key(number: u32) -> Key {
    let mut nonce = [9; 16];
    nonce[..4].copy_from_slice(&number.to_le_bytes());
    Key::new(nonce)
}

impl Role {
    fn say(&self, cx: &mut Cx<'_>, number: u32) {
        let text = format!("{number} {}", "x".repeat(number as usize * 37));
        assert_ne!(cx.send(Message::Text(&text)), Sent::Closed);
    }
}

impl Service for Role {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        let key = check_request(request.method(), request.is_http11(), request).expect("our own");
        cx.write(|out| encode_response(&key.accept(), None, out).expect("no subprotocol"));
        Answer::Upgraded
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, status: u16, reason: &str) {
        // A fault that delays the request can cause a timeout; other failures are impossible.
        assert_eq!(status, 408, "{reason}");
    }

    fn on_refused(&mut self, _: &mut Cx<'_>, why: Refusal) {
        panic!("no request is refused here: {why:?}");
    }

    fn on_connected(&mut self, cx: &mut Cx<'_>) {
        let key = key(cx.data());
        cx.write(|out| encode_request("sim", "/", &key, &[], &[], out).expect("it can be sent"));
    }

    fn on_response(&mut self, cx: &mut Cx<'_>, response: &Response<'_>) -> Answer {
        match check_response(response.status(), response, &key(cx.data()), &[]) {
            Ok(_) => Answer::Upgraded,
            Err(_) => Answer::Done { keep_alive: false },
        }
    }

    fn on_failed(&mut self, cx: &mut Cx<'_>, _: Closed) {
        self.calls.borrow_mut().entry(cx.data()).or_default().failed += 1;
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        if self.serves {
            self.served.borrow_mut().0 += 1;
            return;
        }
        let mut calls = self.calls.borrow_mut();
        let call = calls.entry(cx.data()).or_default();
        call.opened += 1;
        (0..4).for_each(|number| self.say(cx, number));
        call.sent = 4;
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        if self.serves {
            let _ = cx.send(message);
            return;
        }
        let Message::Text(text) = message else { panic!("an echo of another kind") };
        let mut calls = self.calls.borrow_mut();
        let call = calls.entry(cx.data()).or_default();
        assert!(text.starts_with(&format!("{} ", call.received)), "out of order: {text}");
        call.received += 1;
        if call.sent < MESSAGES {
            self.say(cx, call.sent);
            call.sent += 1;
        } else if call.received == MESSAGES {
            cx.close(1000, "all received");
        }
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>) {
        if self.serves {
            self.served.borrow_mut().1 += 1;
            return;
        }
        self.calls.borrow_mut().entry(cx.data()).or_default().closed.push(close.code.get());
    }
}

/// Turns each shard that has something to do, until none has.
fn drive(net: &throng_sim::SharedNet, shards: &mut [Shard<SimDriver, Role>], rng: &mut Rng) {
    for _ in 0..2_000_000 {
        let now = net.borrow().now();
        let (mut ready, mut next) = (Vec::new(), None);
        for (index, shard) in shards.iter_mut().enumerate() {
            shard.driver().progress();
            let due = match shard.driver().is_ready() {
                true => Some(now),
                false => {
                    let deadline = shard.next_deadline().map(|deadline| deadline.0);
                    [deadline, shard.driver().next_event_at()].into_iter().flatten().min()
                }
            };
            match due {
                Some(at) if at <= now => ready.push(index),
                Some(at) => next = Some(next.map_or(at, |known: u64| known.min(at))),
                None => {}
            }
        }
        if !ready.is_empty() {
            let index = rng.pick(&ready);
            assert_eq!(shards[index].turn().expect("a wait does not fail"), None);
            net.borrow_mut().advance_to(now + 1_000);
        } else if let Some(at) = next {
            net.borrow_mut().advance_to(at);
        } else {
            return;
        }
    }
    panic!("it does not end");
}

#[test]
fn both_roles_agree_whatever_the_network_does() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut faults = Faults::of(&mut rng);
        (faults.clock_leaps, faults.receive_buffer) = (0, faults.receive_buffer.max(1000));
        let net = Net::shared();
        let here = SocketAddr::from(([127, 0, 0, 1], 1));
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 2));
        let mut drivers: Vec<SimDriver> = (0..2)
            .map(|shard| {
                let mut faults = faults.clone();
                if shard == 1 {
                    faults.adopt_fails = 0;
                }
                SimDriver::new(&net, shard, faults, rng.fork(), Waiting::Never)
            })
            .collect();
        let listener = net.borrow_mut().listen(here);
        drivers[0].add_listener(listener);
        let (calls, served) = (Calls::default(), Rc::default());
        let heartbeat_interval = std::time::Duration::from_secs(5);
        let limits = Limits::default().heartbeat_interval(heartbeat_interval);
        // Only the listener of one shard accepts, because in reality each role would have its own
        // process.
        let mut shards = Vec::new();
        for (index, driver) in drivers.into_iter().enumerate() {
            let options = BuildOptions {
                limits: limits.clone(),
                seed: Some(seed),
                ..BuildOptions::default()
            };
            let built = build(vec![driver], &options, |_, _, _| Role {
                serves: index == 0,
                calls: Rc::clone(&calls),
                served: Rc::clone(&served),
            });
            shards.extend(built.expect("valid limits").shards);
        }
        let count = 1 + rng.below(8) as u32;
        for number in 0..count {
            let to = if rng.one_in(5) { nowhere } else { here };
            shards[1].connect(to, None, number).expect("it can be begun");
            if to == nowhere {
                calls.borrow_mut().entry(number).or_default().received = u32::MAX;
            }
        }
        drive(&net, &mut shards, &mut rng);
        let calls = calls.borrow();
        assert_eq!(calls.len(), count as usize, "seed {seed}: a client had no callback");
        for (number, call) in calls.iter() {
            let what = format!("seed {seed}, call {number}: {call:?}");
            assert_eq!(call.opened + call.failed, 1, "{what}");
            assert_eq!(call.closed.len() as u32, call.opened, "{what}");
            if call.received == u32::MAX {
                assert_eq!(call.failed, 1, "{what}");
            } else if call.opened == 1 {
                assert_eq!((call.received, call.closed[0]), (MESSAGES, 1000), "{what}");
            } else {
                assert!(faults.adopt_fails > 0, "{what}");
            }
        }
        let (opened, closed) = *served.borrow();
        assert_eq!(opened, closed, "seed {seed}");
        for shard in &shards {
            let audit = shard.audit();
            assert_eq!((audit.connections, audit.admitted, audit.cold), (0, 0, 0), "seed {seed}");
        }
    }
}
