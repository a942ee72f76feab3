//! The effect of compression: the connections that negotiated it, and the size of messages in each
//! direction.

use serde::Serialize;

use super::figures::figures;
use crate::client::Traffic;
use crate::plan::Plan;
use throng_proto::ws::deflate::{Mode as DeflateMode, Settings as Deflate};

/// Bytes of a run's messages, plain and on the wire.
pub(crate) struct DeflateSums {
    agreed: u64,
    messages_received: u64,
    sent: u64,
    received: u64,
    wire_sent: Option<f64>,
    wire_received: Option<f64>,
}

figures! {
    /// Compression of one run, including the warm-up. A ratio is payload bytes on the wire divided
    /// by bytes of the messages: lower is better, 1 means no compression, and a message that was
    /// not compressed counts at its full size. Neither number includes frame headers.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize)]
    pub struct DeflateReport from |sums: DeflateSums| {
        /// Connections that negotiated permessage-deflate; 0 if the server declined.
        connections_agreed: u64 = sums.agreed, Count "connections compressed";
        /// The ratio of sent messages.
        ratio_sent: Option<f64> = sums.wire_sent.map(|bytes| bytes / sums.sent as f64),
            Share "sent, of their size" csv;
        /// The ratio of messages received from the server.
        ratio_received: Option<f64> = sums.wire_received.map(|bytes| bytes / sums.received as f64),
            Share "received, of their size" csv;
        /// Bytes of the messages received from the server, after inflating.
        bytes_received: u64 = sums.received;
        /// Average bytes of a message received from the server, including its frame header.
        wire_bytes_per_message_received: Option<f64> = sums
            .wire_received
            .map(|bytes| bytes / sums.messages_received as f64)
            .map(|bytes| bytes + head_bytes(bytes));
    }
}

/// Formats a mode as on the command line.
pub fn mode_name(deflate: &Deflate) -> String {
    match deflate.mode {
        _ if !deflate.enabled => "off".to_owned(),
        DeflateMode::Window { bits } => format!("window:{bits}"),
        _ => "no-context".to_owned(),
    }
}

impl DeflateReport {
    /// Returns `None` if compression was not offered.
    pub(crate) fn of_plan(plan: &Plan, traffic: &Traffic) -> Option<Self> {
        let size = plan.size as u64;
        let (sent, received) = (traffic.messages_out * size, traffic.messages_in * size);
        let wire = |plain: u64, before: u64, after: u64| {
            (plain > 0).then(|| (plain.saturating_sub(before) + after) as f64)
        };
        let Traffic { deflate_input_bytes, deflate_output_bytes, .. } = *traffic;
        let Traffic { inflate_output_bytes, inflate_input_bytes, .. } = *traffic;
        plan.deflate.enabled.then(|| {
            Self::of(DeflateSums {
                agreed: traffic.agreed,
                messages_received: traffic.messages_in,
                sent,
                received,
                wire_sent: wire(sent, deflate_input_bytes, deflate_output_bytes),
                wire_received: wire(received, inflate_output_bytes, inflate_input_bytes),
            })
        })
    }
}

/// Describes a ratio.
pub fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

/// Returns the size of the head of an unmasked frame with `payload` bytes.
fn head_bytes(payload: f64) -> f64 {
    match payload {
        _ if payload < 126.0 => 2.0,
        _ if payload < 65_536.0 => 4.0,
        _ => 10.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Mode, Pace};
    use crate::target::Target;

    fn plan(deflate: Deflate) -> Plan {
        let second = std::time::Duration::from_secs(1);
        let pace = Pace::Closed { pipeline: 1 };
        let target = Target::parse("ws://h:1").unwrap();
        let mode = Mode::Echo { pace, duration: second, warmup: second };
        Plan { size: 1000, deflate, ..Plan::new(target, mode) }
    }

    fn on(mode: DeflateMode) -> Deflate {
        Deflate::new(mode)
    }

    #[test]
    fn messages_that_went_as_they_were_count_as_they_are() {
        let traffic = Traffic {
            agreed: 3,
            messages_out: 10,
            messages_in: 8,
            deflate_input_bytes: 10_000,
            deflate_output_bytes: 2_000,
            inflate_output_bytes: 4_000,
            inflate_input_bytes: 400,
        };
        let plan = plan(on(DeflateMode::Shared));
        let report = DeflateReport::of_plan(&plan, &traffic).unwrap();
        assert_eq!((report.ratio_sent, report.ratio_received), (Some(0.2), Some(0.55)));
        assert_eq!(report.wire_bytes_per_message_received, Some(554.0));
        assert_eq!(report.bytes_received, 8_000);
        let nothing = DeflateReport::of_plan(&plan, &Traffic::default()).unwrap();
        assert_eq!((nothing.connections_agreed, nothing.ratio_sent), (0, None));
    }

    #[test]
    fn nothing_offered_is_nothing_reported() {
        assert_eq!(DeflateReport::of_plan(&plan(Deflate::default()), &Traffic::default()), None);
        assert_eq!(mode_name(&Deflate::default()), "off");
        assert_eq!(mode_name(&on(DeflateMode::Shared)), "no-context");
        assert_eq!(mode_name(&on(DeflateMode::Window { bits: 9 })), "window:9");
    }
}
