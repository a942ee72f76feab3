//! The line that shows how far a run is, on standard error and only on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use throng_load::cast::CastProgress;
use throng_load::units::{grouped, rounded, show_duration};
use throng_load::{Progress, Stage};

/// A progress line. Hidden when standard error is not a terminal.
pub(super) struct Bar {
    bar: ProgressBar,
    title: String,
}

impl Bar {
    pub(super) fn new(title: &str, quiet: bool) -> Self {
        let bar = ProgressBar::new(1000);
        if quiet {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        // The template is a constant; if it were wrong, the default bar would do.
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
            bar.set_style(style);
        }
        Self { bar, title: title.to_owned() }
    }

    pub(super) fn show(&mut self, progress: &Progress) {
        self.bar.set_position((progress.stage.share() * 1000.0) as u64);
        self.bar.set_message(format!("{}: {}", self.title, words(progress)));
    }

    /// The same for a comparison of broadcasts.
    pub(super) fn show_cast(&mut self, progress: &CastProgress) {
        self.bar.set_position((progress.done * 1000 / progress.total.max(1)) as u64);
        self.bar.set_message(format!("{}: {}", self.title, cast_words(progress)));
    }

    /// The title from here on.
    pub(super) fn rename(&mut self, title: &str) {
        if self.title != title {
            title.clone_into(&mut self.title);
        }
    }

    pub(super) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

fn words(progress: &Progress) -> String {
    let rate = rounded(progress.per_s);
    match progress.stage {
        Stage::Connecting { ready, wanted } => {
            format!("connecting {} of {}", grouped(ready), grouped(wanted))
        }
        Stage::WarmingUp { .. } => format!("warming up, {rate}/s"),
        Stage::Measuring { elapsed, total } => format!(
            "{rate}/s, {} of {}",
            show_duration(std::time::Duration::from_secs(elapsed.as_secs())),
            show_duration(total)
        ),
        Stage::Publishing { done, total } => {
            format!("publish {} of {}, {rate} deliveries/s", grouped(done), grouped(total))
        }
        Stage::Draining { waiting } => format!("waiting for {} answers", grouped(waiting)),
    }
}

fn cast_words(progress: &CastProgress) -> String {
    let subscribers = grouped(progress.subscribers as u64);
    let shards = progress.shards;
    let s = if shards == 1 { "" } else { "s" };
    if progress.connecting {
        return format!("connecting {subscribers} subscribers, {shards} shard{s}");
    }
    format!(
        "{subscribers} subscribers, {shards} shard{s}, broadcast {} of {}",
        grouped(progress.done as u64),
        grouped(progress.total as u64)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_comparison_says_where_it_is() {
        let mut progress =
            CastProgress { shards: 1, subscribers: 15_000, connecting: true, done: 3, total: 66 };
        assert_eq!(cast_words(&progress), "connecting 15,000 subscribers, 1 shard");
        (progress.connecting, progress.shards) = (false, 2);
        assert_eq!(cast_words(&progress), "15,000 subscribers, 2 shards, broadcast 3 of 66");
    }

    #[test]
    fn every_stage_has_words() {
        let say = |stage| words(&Progress { stage, connections: 5, done: 10, per_s: 1234.0 });
        assert_eq!(say(Stage::Connecting { ready: 5, wanted: 1000 }), "connecting 5 of 1,000");
        let (elapsed, total) = (Duration::from_millis(2400), Duration::from_secs(10));
        assert_eq!(say(Stage::WarmingUp { elapsed, total }), "warming up, 1,234/s");
        assert_eq!(say(Stage::Measuring { elapsed, total }), "1,234/s, 2s of 10s");
        assert_eq!(
            say(Stage::Publishing { done: 3, total: 10 }),
            "publish 3 of 10, 1,234 deliveries/s"
        );
        assert_eq!(say(Stage::Draining { waiting: 7 }), "waiting for 7 answers");
    }
}
