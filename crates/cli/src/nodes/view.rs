//! The lines that show the state of each node, written every second: in place on a terminal.

use std::cell::Cell;
use std::fmt;
use std::io::stdout;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use throng_load::units::{grouped, show_ns};

use super::member::{MemberShared, NodeCounts};
use crate::terminal;

/// Counts of a node at the last status line.
#[derive(Clone, Copy, Default)]
struct Before {
    sent: u64,
    delivered: u64,
    from_others: u64,
}

pub(super) struct View {
    in_place: bool,
    at: Instant,
    before: Vec<Before>,
    /// Lines above the cursor that must be replaced.
    above: Cell<usize>,
}

impl View {
    pub(super) fn new(shared: &MemberShared) -> Self {
        let before = vec![Before::default(); shared.nodes.len()];
        let in_place = terminal::is_replaceable(&stdout());
        Self { in_place, at: Instant::now(), before, above: Cell::new(0) }
    }

    pub(super) fn show(&mut self, shared: &MemberShared) {
        let now = Instant::now();
        let seconds = (now - self.at).as_secs_f64().max(1e-3);
        self.at = now;
        let mut text = match self.above.get() {
            0 => String::new(),
            lines => format!("\x1b[{lines}A"),
        };
        for (at, (counts, before)) in shared.nodes.iter().zip(&mut self.before).enumerate() {
            let line = line(at + 1, counts, before, seconds);
            if self.in_place {
                text += &format!("\x1b[2K{}\n", terminal::fitting(&stdout(), &line));
            } else {
                text += &format!("{line}\n");
            }
        }
        terminal::text_as_is(text);
        self.above.set(if self.in_place { shared.nodes.len() } else { 0 });
    }

    /// Writes a permanent line.
    pub(super) fn note(&self, text: impl fmt::Display) {
        self.above.set(0);
        terminal::line(text);
    }

    pub(super) fn finish(&self) {
        self.above.set(0);
    }
}

fn line(number: usize, counts: &NodeCounts, before: &mut Before, seconds: f64) -> String {
    let now = Before {
        sent: counts.sent.load(Relaxed),
        delivered: counts.delivered.load(Relaxed),
        from_others: counts.from_others.load(Relaxed),
    };
    let then = std::mem::replace(before, now);
    let latency = counts.take_latency();
    if counts.address().is_none() {
        return format!("node {number}  killed");
    }
    let rate = |now: u64, then: u64| grouped(((now - then) as f64 / seconds) as u64);
    let times = match latency.count() {
        0 => "-".to_owned(),
        _ => format!(
            "p50 {}, p99 {}",
            show_ns(latency.quantile_ns(0.5)),
            show_ns(latency.quantile_ns(0.99))
        ),
    };
    format!(
        "node {number}  {:>4} clients  |  {:>6} sent/s  |  {:>7} delivered/s, {:>7} from others \
         after {times}",
        counts.clients.load(Relaxed),
        rate(now.sent, then.sent),
        rate(now.delivered, then.delivered),
        rate(now.from_others, then.from_others),
    )
}
