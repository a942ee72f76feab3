//! The measurements of each mode, with a row for each figure: its form in the JSON, and its form
//! for readers and in CSV.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::{RunSums, figures};
use super::model::Cell;
use super::{DeflateReport, seconds};
use crate::pool::Traffic;
use crate::record::{Record, Summary};
use crate::sampler::Memory;
use crate::units::grouped;
use crate::work::{
    BroadcastOutcome, ChannelLayout, ConnectOutcome, EchoOutcome, FanoutOutcome, ScriptOutcome,
};

figures! {
    /// The report of echoed messages.
    #[derive(Clone, Debug, Default, Serialize)]
    pub struct EchoReport from |run: (RunSums<'_, EchoOutcome>, &Traffic)| {
        /// Answers within it.
        messages: u64 = run.0.sum.in_time, Count "messages" csv;
        /// Measured time.
        measured_s: f64 = run.0.measured_s, Seconds "measured";
        /// Answered messages per second.
        messages_per_s: f64 = run.0.per_s(run.0.sum.in_time), Number "messages a second" csv;
        /// Received payload bytes per second.
        payload_bytes_per_s: f64 = run.0.per_s(run.0.sum.in_time) * run.0.plan.size as f64,
            Bytes "payload a second, each way";
        /// Answers per second of server CPU time (all threads): the figure least affected by other
        /// load on the machine.
        messages_per_server_cpu_s: Option<f64> = run.0.sampled.per_server_cpu_s(),
            Number "messages per server CPU-second" csv;
        /// Server CPU time (all threads) per answer.
        server_cpu_us_per_message: Option<f64> = run.0.sampled.server_cpu_us_each(),
            Us "server CPU by message" csv;
        /// CPU time of this generator (all threads) per answer. If it is close to the server's, the
        /// generator needs as many cores as the server.
        generator_cpu_us_per_message: Option<f64> = (run.0.sum.in_time > 0)
            .then(|| run.0.sampled.generator().cpu_s * 1e6 / run.0.sum.in_time as f64),
            Us "generator CPU by message" csv;
        /// The effect of compression, if it was offered.
        deflate: Option<DeflateReport> = DeflateReport::of_plan(run.0.plan, run.1);
        /// From the send to the answer; in an open loop from the planned time.
        latency: Option<Summary> = run.0.sum.latency.summary(), Us "latency";
        /// The figures that only an open loop has.
        open_loop: Option<OpenLoopReport> = run.0.plan.mode.is_open().then(|| {
            let EchoOutcome { planned, unanswered, lateness, .. } = run.0.sum;
            OpenLoopReport::of((*planned, *unanswered, lateness, run.0.measured_s))
        });
    }
}

figures! {
    /// Adherence of an open loop to its schedule.
    #[derive(Clone, Copy, Debug, Serialize)]
    pub struct OpenLoopReport from |run: (u64, u64, &Record, f64)| {
        /// Messages planned within the measured time. The generator skips no message.
        planned: u64 = run.0;
        /// Planned messages per second. If this exceeds `messages_per_s` of the answers, the server
        /// or the generator fell behind. `null` if no time was measured.
        planned_per_s: Option<f64> = (run.3 > 1e-6).then(|| run.0 as f64 / run.3);
        /// Planned messages without an answer at the end. Their age counts as their latency, as a
        /// lower bound.
        unanswered: u64 = run.1;
        /// Lateness of sent messages, with any cause.
        lateness: Option<Summary> = run.2.summary(), Us "lateness";
    }
}

/// Idle connections and how they ended.
pub(crate) struct IdleSums {
    pub(crate) connections: u64,
    pub(crate) has_echoed: bool,
    pub(crate) memory_before: Option<Memory>,
    pub(crate) echo_cpu_s: Option<f64>,
    pub(crate) closes: Option<ClosesReport>,
}

impl RunSums<'_, IdleSums> {
    /// Returns the growth of one kind of the server's memory per connection.
    fn growth(&self, kind: fn(&Memory) -> u64) -> Option<f64> {
        let before = self.sum.memory_before.as_ref().map(kind)?;
        let after = self.sampled.server_memory.as_ref().map(kind)?;
        Some((after as f64 - before as f64) / self.sum.connections as f64)
    }
}

figures! {
    /// Idle connections.
    #[derive(Clone, Debug, Serialize)]
    pub struct IdleReport from |run: RunSums<'_, IdleSums>| {
        /// Connections held.
        connections: u64 = run.sum.connections, Count "" csv;
        /// Connections that answered the echo after the idle time, if it was requested: all of
        /// them.
        answered: Option<u64> = run.sum.has_echoed.then_some(run.sum.connections),
            Count "answered an echo" csv;
        /// Idle time.
        held_s: f64 = run.measured_s, Seconds "" csv;
        /// The server's memory before the first connection.
        memory_before: Option<Memory> = run.sum.memory_before;
        /// The server's memory with all connections open.
        memory_after: Option<Memory> = run.sampled.server_memory;
        /// Growth of the resident set per connection.
        rss_bytes_per_connection: Option<f64> = run.growth(|memory| memory.rss_bytes),
            Number "" csv;
        /// Growth of private memory per connection.
        private_bytes_per_connection: Option<f64> = run.growth(|memory| memory.private_bytes),
            Number "" csv;
        /// Growth of anonymous memory (heap and stacks) per connection.
        anonymous_bytes_per_connection: Option<f64> = run.growth(|memory| memory.anonymous_bytes),
            Number "" csv;
        /// Server CPU during the idle time; 1 is one core kept busy.
        server_cores_while_idle: Option<f64> = run.sampled.server().map(|cpu| cpu.cores),
            Share "server CPU" csv => Self::cpu_cell;
        /// Server CPU time of an echo after the idle time, if it was requested.
        server_cpu_us_per_echo: Option<f64> = run
            .sum
            .echo_cpu_s
            .map(|seconds| seconds * 1e6 / run.sum.connections as f64), Us "" csv;
        /// Closes by the server after the run, if the run waited for them.
        closes: Option<ClosesReport> = run.sum.closes.clone();
    }
}

impl IdleReport {
    fn cpu_cell(&self) -> Option<Cell> {
        let cores = self.server_cores_while_idle?;
        let words = format!(
            "{:.2} % of a core while {} connections did nothing for {}",
            cores * 100.0,
            grouped(self.connections),
            seconds(self.held_s)
        );
        Some(Cell::shown(cores, words))
    }
}

/// Closes of a run's connections by the server.
#[derive(Clone, Debug, Serialize)]
pub struct ClosesReport {
    /// Seconds from the first close to the last.
    pub span_s: f64,
    /// Connections closed with a Close frame, by its code; 1005 if the frame had no code.
    pub by_code: BTreeMap<u16, u64>,
    /// Connections that ended without a Close frame.
    pub without_frame: u64,
    /// Connections that were still open at the end of the wait.
    pub left_open: u64,
}

figures! {
    /// Connections made one after the other, or by a schedule.
    #[derive(Clone, Copy, Debug, Serialize)]
    pub struct ConnectReport from |run: RunSums<'_, ConnectOutcome>| {
        /// Connections that completed connect, upgrade, one echo and reset within the measured
        /// time.
        connections: u64 = run.sum.in_time, Count "connections" csv;
        /// Measured time.
        measured_s: f64 = run.measured_s, Seconds "measured";
        /// Completed connections per second.
        connections_per_s: f64 = run.per_s(run.sum.in_time),
            Number "connections a second (connect, upgrade, echo, reset)" csv;
        /// Completed connections per second of server CPU time.
        connections_per_server_cpu_s: Option<f64> = run.sampled.per_server_cpu_s(),
            Number "connections per server CPU-second" csv;
        /// From the connect call to the established TCP connection.
        tcp: Option<Summary> = run.sum.tcp.summary(), Us "TCP";
        /// From the TCP connection to the end of the TLS handshake; `null` without TLS.
        tls: Option<Summary> = run.sum.tls.summary(), Us "TLS";
        /// From the end of the previous step to the accepted upgrade.
        upgrade: Option<Summary> = run.sum.upgrade.summary(), Us "upgrade";
        /// From the accepted upgrade to the answer to one message.
        echo: Option<Summary> = run.sum.echo.summary(), Us "echo";
        /// All steps together. In an open loop this counts from the planned time, and includes the
        /// age of unanswered connections.
        total: Option<Summary> = run.sum.total.summary(), Us "together";
        /// Adherence to the schedule, with connections in place of messages; `null` in a closed
        /// loop.
        open_loop: Option<OpenLoopReport> = run.plan.mode.is_open().then(|| {
            let ConnectOutcome { planned, unanswered, lateness, .. } = run.sum;
            OpenLoopReport::of((*planned, *unanswered, lateness, run.measured_s))
        });
        /// Planned connections of an open loop that had to wait, because as many connections as
        /// allowed were open. The wait counts in their times.
        waited_for_place: Option<u64> = run.plan.mode.is_open().then_some(run.sum.waited);
    }
}

figures! {
    /// One connection publishes, all others receive.
    #[derive(Clone, Copy, Debug, Serialize)]
    pub struct BroadcastReport from |run: RunSums<'_, BroadcastOutcome>| {
        /// Subscribers.
        subscribers: u64 = run.plan.common.connections as u64, Count "subscribers" csv;
        /// Publishes that reached all subscribers.
        publishes: u64 = run.sum.last.count(), Count "publishes delivered to each" csv;
        /// From the publish to the first subscriber, one time per publish.
        first: Option<Summary> = run.sum.first.summary(), Us "first has it";
        /// From the publish to each subscriber.
        delivery: Option<Summary> = run.sum.delivery.summary(), Us "each has it";
        /// From the publish to the last subscriber, one time per publish.
        last: Option<Summary> = run.sum.last.summary(), Us "last has it";
        /// Server CPU time (all threads) per publish.
        server_cpu_us_per_publish: Option<f64> = run.server_cpu_us_per(run.sum.last.count()),
            Us "server CPU by publish" csv;
        /// Server CPU time per delivered message.
        server_cpu_us_per_delivery: Option<f64> = run.server_cpu_us_per(run.sum.delivery.count()),
            Us "server CPU by delivery" csv;
    }
}

figures! {
    /// Messages to many channels, by a schedule.
    #[derive(Clone, Debug, Serialize)]
    pub struct FanoutReport
        from |run: (RunSums<'_, FanoutOutcome>, ChannelLayout, Vec<Slice>)|
    {
        /// Channels, each with its own publisher.
        channels: u64 = run.1.channels as u64, Count "channels";
        /// Subscribers of each.
        subscribers_per_channel: u64 = run.1.subscribers as u64, Count "subscribers of each";
        /// Messages planned within the measured time; all of them were sent.
        published: u64 = run.0.sum.published, Count "published";
        /// Measured time.
        measured_s: f64 = run.0.measured_s, Seconds "measured";
        /// Published messages per second.
        published_per_s: f64 = run.0.per_s(run.0.sum.published), Number "published a second";
        /// Deliveries per second received within the measured time.
        received_per_s: f64 = run.0.per_s(run.0.sum.in_time), Number "delivered a second";
        /// Server CPU time (all threads) per delivery.
        server_cpu_us_per_delivery: Option<f64> = run.0.server_cpu_us_per(run.0.sum.received),
            Us "server CPU by delivery";
        /// Expected deliveries of the published messages, one for each subscriber of the channel.
        expected: u64 = run.0.sum.expected, Count "deliveries expected";
        /// Received deliveries, including late ones.
        received: u64 = run.0.sum.received;
        /// Deliveries that never arrived.
        lost: u64 = run.0.sum.lost, Count "never came";
        /// Subscribers that lost at least one message.
        subscribers_with_loss: u64 = run.0.sum.losers, Count "subscribers with loss";
        /// Maximum messages lost by one subscriber.
        most_lost_by_one_subscriber: u64 = run.0.sum.most_lost.0, Count "most lost by one";
        /// Deliveries of a message that had already arrived, at any time of the run.
        duplicates: u64 = run.0.sum.duplicates, Count "came twice";
        /// Deliveries that arrived after a later message, at any time of the run.
        reordered: u64 = run.0.sum.reordered, Count "out of order";
        /// From the planned time of a publish to each subscriber.
        latency: Option<Summary> = run.0.sum.latency.summary(), Us "latency";
        /// Lateness of sent messages, with any cause.
        lateness: Option<Summary> = run.0.sum.lateness.summary(), Us "lateness";
        /// The measured time, slice by slice.
        slices: Vec<Slice> = run.2;
    }
}

/// A short slice of the measured time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slice {
    /// The end of the slice, from the beginning of the measured time.
    pub at_s: f64,
    /// Deliveries a second.
    pub received_per_s: f64,
    /// Latency of the deliveries received in the slice.
    pub latency: Option<Summary>,
    /// Server CPU; 1 is one core kept busy.
    pub server_cores: Option<f64>,
    /// The server's resident memory at the end of the slice.
    pub server_rss_bytes: Option<u64>,
    /// CPU of this generator's busiest thread.
    pub generator_cores: Option<f64>,
}

figures! {
    /// Clients that followed a script.
    #[derive(Clone, Debug, Serialize)]
    pub struct ScriptReport from |run: (RunSums<'_, ScriptOutcome>, String, Vec<StepReport>)| {
        /// The script's file.
        script: String = run.1;
        /// Completed loops and scripts within the measured time.
        rounds: u64 = run.0.sum.rounds, Count "rounds";
        /// Loops a second.
        rounds_per_s: f64 = run.0.per_s(run.0.sum.rounds), Number "rounds a second";
        /// Messages sent within the measured time.
        sent: u64 = run.0.sum.sent, Count "messages sent";
        /// Sent messages per second.
        sent_per_s: f64 = run.0.per_s(run.0.sum.sent);
        /// Messages compared within the measured time.
        received: u64 = run.0.sum.received;
        /// Expected messages that arrived within the measured time.
        answers: u64 = run.0.sum.answers(), Count "expected messages";
        /// Expected messages per second.
        answers_per_s: f64 = run.0.per_s(run.0.sum.answers()),
            Number "expected messages a second";
        /// The measured time. It ends early when the last client has finished the script.
        measured_s: f64 = run.0.measured_s, Seconds "measured";
        /// Server CPU time (all threads) per expected message.
        server_cpu_us_per_answer: Option<f64> = run.0.sampled.server_cpu_us_each(),
            Us "server CPU by expected message";
        /// Clients that finished the script.
        clients_finished: u64 = run.0.sum.finished, Count "clients at the end of the script";
        /// Clients that were waiting for a message when the run ended.
        clients_waiting: u64 = run.0.sum.waiting,
            Count "clients still waiting" => |script| some(script.clients_waiting);
        /// Messages dropped because a client that was not waiting for a message had too many.
        left_out: u64 = run.0.sum.left_out,
            Count "messages left out" => |script| some(script.left_out);
        /// From a client's last send to each expected message.
        latency: Option<Summary> = run.0.sum.latency.summary(), Us "latency";
        /// The lines of the script.
        steps: Vec<StepReport> = run.2;
        /// Descriptions of the first mismatches.
        mismatches: Vec<String> = run.0.sum.examples.clone();
    }
}

/// Returns a count that readers see only if it is not 0.
fn some(count: u64) -> Option<u64> {
    Some(count).filter(|&count| count > 0)
}

/// A line of a script.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// The number of the line, from 1.
    pub line: usize,
    /// The line itself.
    pub text: String,
    /// Number of times that the step was completed within the measured time.
    pub done: u64,
    /// Messages that arrived instead of the expected one.
    pub mismatches: u64,
    /// Number of times that no message arrived.
    pub missing: u64,
    /// From the client's last send to the expected message.
    pub latency: Option<Summary>,
}
