//! Metrics of panics outside of connections.

use serde_json::{Map, Value, json};
use throng_http::openmetrics::{Type, Writer};

use crate::panics::{Callback, Panics};

#[derive(Debug, Default)]
pub(super) struct Figures {
    by_callback: [(&'static str, u64); Callback::ALL.len()],
    failing_ticks: u64,
}

impl Figures {
    pub(super) fn of(panics: &Panics) -> Self {
        Self { by_callback: panics.counts(), failing_ticks: panics.failing_ticks() }
    }

    pub(super) fn add_to(&self, figures: &mut Map<String, Value>) {
        let by_callback = self.by_callback.map(|(name, panics)| (name.to_owned(), panics.into()));
        figures
            .insert("callback_panics".to_owned(), Value::Object(by_callback.into_iter().collect()));
        figures.insert("ticks_failing".to_owned(), json!(self.failing_ticks));
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let help = "Panics of functions that no connection answered for: tick (every), late (a \
                    future or a job whose session or request had ended), event (on_event), \
                    access_log, and answer (to a question of the cluster)";
        let mut metric = writer.metric("callback_panics", help, Type::Counter);
        for (name, panics) in &self.by_callback {
            metric.sample(&[("callback", name)], *panics);
        }
        let help = "Functions of every whose last call panicked";
        writer.metric("ticks_failing", help, Type::Gauge).sample(&[], self.failing_ticks);
    }
}
