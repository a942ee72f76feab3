//! The table for people: a label, then figures, narrow enough for a terminal of 100 columns.

use std::fmt;

use super::{
    BroadcastReport, ConnectReport, EchoReport, GeneratorReport, IdleReport, Measured, PlanReport,
    Report, ServerReport,
};
use crate::record::Summary;
use crate::units::{grouped, rounded, show_bytes, show_duration, show_ns};

pub const LABEL: usize = 12;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:LABEL$}{}", self.plan.mode, self.plan)?;
        writeln!(f)?;
        match &self.result {
            Measured::Echo(echo) => echo.rows(f)?,
            Measured::Idle(idle) => idle.rows(f)?,
            Measured::Connect(connect) => connect.rows(f)?,
            Measured::Broadcast(broadcast) => broadcast.rows(f)?,
            Measured::Fanout(fanout) => fanout.rows(f)?,
        }
        self.setup_row(f)?;
        server_rows(f, self.server.as_ref())?;
        generator_row(f, &self.generator, self.machine_busy_share)?;
        if self.errors.total() > 0 {
            self.error_rows(f)?;
        }
        writeln!(f)?;
        writeln!(f, "{:LABEL$}{}", "verdict", self.verdict.line)
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.payload, self.text) {
            ("json", _) => "JSON",
            (_, true) => "text",
            _ => "binary",
        };
        let size = show_bytes(self.size_bytes as i64);
        let seconds = |s: f64| show_duration(std::time::Duration::from_secs_f64(s));
        writeln!(f, "{}", self.url)?;
        write!(f, "{:LABEL$}", "")?;
        match self.mode {
            "broadcast" => write!(f, "{} subscribers", grouped(self.connections as u64))?,
            "connect" => write!(f, "{} at a time", grouped(self.connections as u64))?,
            _ if self.connections == 1 => write!(f, "1 connection")?,
            _ => write!(f, "{} connections", grouped(self.connections as u64))?,
        }
        if self.mode != "idle" {
            write!(f, ", {size} {kind}")?;
        }
        if self.deflate != "off" {
            write!(f, ", deflate {}", self.deflate)?;
        }
        if let Some(pipeline) = self.pipeline {
            write!(f, ", pipeline {pipeline} (closed loop)")?;
        }
        if let Some(rate) = self.rate_per_s {
            let of = if self.mode == "fanout" { "in all" } else { "each" };
            write!(f, ", {} messages/s {of} (open loop)", rounded(rate))?;
        }
        if let Some(publishes) = self.publishes {
            write!(f, ", {} publishes", grouped(publishes as u64))?;
        }
        if let Some(duration) = self.duration_s {
            let held = if self.mode == "idle" { "held " } else { "" };
            write!(f, ", {held}{}", seconds(duration))?;
        }
        if let Some(warmup) = self.warmup_s.filter(|&s| s > 0.0) {
            write!(f, " after {} of warm-up", seconds(warmup))?;
        }
        if self.source_addresses > 1 {
            write!(f, ", {} source addresses", self.source_addresses)?;
        }
        if self.threads > 1 {
            write!(f, ", {} threads", self.threads)?;
        }
        Ok(())
    }
}

/// The heading and the rows of one or more [`Summary`]s.
pub fn times(f: &mut fmt::Formatter<'_>, rows: &[(&str, Option<Summary>)]) -> fmt::Result {
    if rows.iter().all(|(_, summary)| summary.is_none()) {
        return Ok(());
    }
    write!(f, "{:LABEL$}", "")?;
    for head in ["min", "p50", "p90", "p99", "p99.9", "max"] {
        write!(f, "{head:>10}")?;
    }
    writeln!(f)?;
    for (label, summary) in rows {
        let Some(s) = summary else { continue };
        write!(f, "{label:LABEL$}")?;
        for us in [s.min_us, s.p50_us, s.p90_us, s.p99_us, s.p999_us, s.max_us] {
            write!(f, "{:>10}", show_ns((us * 1e3).round() as u64))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

pub fn per_cpu_second(f: &mut fmt::Formatter<'_>, what: &str, rate: Option<f64>) -> fmt::Result {
    match rate {
        Some(rate) => writeln!(f, "{:LABEL$}{} {what} per server CPU-second", "", rounded(rate)),
        None => Ok(()),
    }
}

impl EchoReport {
    fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:LABEL$}{} a second ({} in {}, {} of payload a second each way)",
            "messages",
            rounded(self.messages_per_s),
            grouped(self.messages),
            show_ns((self.measured_s * 1e9) as u64),
            show_bytes(self.payload_bytes_per_s as i64),
        )?;
        per_cpu_second(f, "messages", self.messages_per_server_cpu_s)?;
        if let Some(deflate) = &self.deflate {
            deflate.rows(f)?;
        }
        let mut rows = vec![("latency", self.latency)];
        if let Some(open) = self.open_loop {
            rows.push(("lateness", open.lateness));
        }
        times(f, &rows)?;
        match self.open_loop {
            Some(open) => writeln!(
                f,
                "{:LABEL$}latency counts from the planned time; {} planned ({} a second), {} unanswered",
                "",
                grouped(open.planned),
                rounded(open.planned_per_s),
                grouped(open.unanswered)
            ),
            None => Ok(()),
        }
    }
}

impl IdleReport {
    fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.memory_before, self.memory_after) {
            (Some(before), Some(after)) => {
                let per = |bytes: Option<f64>| rounded_signed(bytes.unwrap_or(0.0));
                writeln!(
                    f,
                    "{:LABEL$}{:>10}{:>10}{:>18}",
                    "memory", "before", "after", "bytes/connection"
                )?;
                for (label, before, after, each) in [
                    (
                        "  resident",
                        before.rss_bytes,
                        after.rss_bytes,
                        self.rss_bytes_per_connection,
                    ),
                    (
                        "  private",
                        before.private_bytes,
                        after.private_bytes,
                        self.private_bytes_per_connection,
                    ),
                    (
                        "  anonymous",
                        before.anonymous_bytes,
                        after.anonymous_bytes,
                        self.anonymous_bytes_per_connection,
                    ),
                ] {
                    writeln!(
                        f,
                        "{label:LABEL$}{:>10}{:>10}{:>18}",
                        show_bytes(before as i64),
                        show_bytes(after as i64),
                        per(each)
                    )?;
                }
            }
            _ => writeln!(f, "{:LABEL$}not known: the server's process cannot be read", "memory")?,
        }
        match self.server_cores_while_idle {
            Some(cores) => writeln!(
                f,
                "{:LABEL$}{:.2} % of a core while {} connections did nothing for {}",
                "server CPU",
                cores * 100.0,
                grouped(self.connections),
                show_duration(std::time::Duration::from_secs_f64(self.held_s))
            ),
            None => Ok(()),
        }
    }
}

fn threads(n: usize) -> String {
    if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") }
}

fn rounded_signed(value: f64) -> String {
    if value < 0.0 { format!("-{}", rounded(-value)) } else { rounded(value) }
}

impl ConnectReport {
    fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:LABEL$}{} a second ({} in {}: connect, upgrade, echo, reset)",
            "connections",
            rounded(self.connections_per_s),
            grouped(self.connections),
            show_ns((self.measured_s * 1e9) as u64),
        )?;
        per_cpu_second(f, "connections", self.connections_per_server_cpu_s)?;
        times(
            f,
            &[
                ("TCP", self.tcp),
                ("upgrade", self.upgrade),
                ("echo", self.echo),
                ("together", self.total),
            ],
        )
    }
}

impl BroadcastReport {
    fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:LABEL$}{} publishes to {} subscribers each",
            "delivered",
            grouped(self.publishes),
            grouped(self.subscribers)
        )?;
        if let (Some(publish), Some(delivery)) =
            (self.server_cpu_us_per_publish, self.server_cpu_us_per_delivery)
        {
            writeln!(
                f,
                "{:LABEL$}{} of server CPU a publish, {delivery:.2} us a delivery",
                "",
                show_ns((publish * 1e3) as u64)
            )?;
        }
        times(
            f,
            &[
                ("first has it", self.first),
                ("each has it", self.delivery),
                ("last has it", self.last),
            ],
        )
    }
}

/// The watched server.
pub fn server_rows(f: &mut fmt::Formatter<'_>, server: Option<&ServerReport>) -> fmt::Result {
    let Some(server) = server else {
        return writeln!(
            f,
            "{:LABEL$}not watched: no process on this machine was found for its port",
            "server"
        );
    };
    let pids: Vec<String> = server.pids.iter().map(u32::to_string).collect();
    let name = server.name.as_deref().unwrap_or("?");
    write!(f, "{:LABEL$}{name} (pid {})", "server", pids.join(", "))?;
    if let Some(cpu) = server.cpu {
        write!(f, ", {:.1} % CPU, {}", cpu.cores * 100.0, threads(cpu.threads))?;
    }
    if let Some(memory) = server.memory {
        write!(f, ", {} resident", show_bytes(memory.rss_bytes as i64))?;
    }
    if let Some(descriptors) = server.descriptors {
        write!(f, ", {} descriptors", grouped(descriptors as u64))?;
    }
    writeln!(f, "{}", if server.same_process { ", in this process" } else { "" })
}

/// Ourselves, and the machine.
pub fn generator_row(
    f: &mut fmt::Formatter<'_>,
    generator: &GeneratorReport,
    machine_busy_share: Option<f64>,
) -> fmt::Result {
    let cpu = generator.cpu;
    write!(f, "{:LABEL$}{:.1} % of its core", "generator", cpu.busiest_thread_cores * 100.0)?;
    if cpu.busiest_thread_waiting >= 0.01 {
        write!(f, ", waited {:.0} % for one", cpu.busiest_thread_waiting * 100.0)?;
    }
    if let Some(memory) = generator.memory {
        write!(f, ", {} resident", show_bytes(memory.rss_bytes as i64))?;
    }
    if let Some(busy) = machine_busy_share {
        write!(f, "; the machine was {:.0} % busy", busy * 100.0)?;
    }
    writeln!(f)
}

impl Report {
    fn setup_row(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.setup.connections == 0 {
            return Ok(());
        }
        let took = show_ns((self.setup.took_s * 1e9) as u64);
        write!(f, "{:LABEL$}{} connections in {took}", "setup", grouped(self.setup.connections))?;
        if let (Some(tcp), Some(upgrade)) = (self.setup.tcp, self.setup.upgrade) {
            let p50 = |s: Summary| show_ns((s.p50_us * 1e3) as u64);
            write!(f, " (p50: TCP {}, upgrade {})", p50(tcp), p50(upgrade))?;
        }
        writeln!(f)
    }

    fn error_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = &self.errors;
        let kinds = [
            (errors.wrong_answers, "wrong answers"),
            (errors.connections_lost, "connections lost"),
            (errors.connects_failed, "connects failed"),
            (errors.sends_refused, "sends refused (backlog full)"),
            (errors.publishes_incomplete, "publishes incomplete"),
        ];
        let seen: Vec<String> = kinds
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{} {what}", grouped(*n)))
            .collect();
        writeln!(f, "{:LABEL$}{}", "errors", seen.join(", "))?;
        match &errors.first {
            Some(first) => writeln!(f, "{:LABEL$}first: {first}", ""),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Mode, Pace, Plan};
    use crate::report::{
        Errors, GeneratorReport, OpenLoopReport, SCHEMA, ServerReport, SetupReport,
    };
    use crate::sampler::{CpuUsage, Memory};
    use crate::verdict::{Facts, Verdict};
    use crate::{Record, Target};

    fn summary() -> Option<Summary> {
        let mut record = Record::new();
        (1..=100).for_each(|i| record.add(i * 10_000));
        record.summary()
    }

    fn report() -> Report {
        let target = Target::parse("ws://127.0.0.1:9001").unwrap();
        let mode = Mode::Echo {
            pace: Pace::Open { rate_per_s: 10.0 },
            duration: Duration::from_secs(10),
            warmup: Duration::from_millis(500),
        };
        let plan = Plan { connections: 10_000, ..Plan::new(target, mode) };
        let cpu = CpuUsage {
            wall_s: 10.0,
            cpu_s: 9.9,
            cores: 0.99,
            busiest_thread_cores: 0.99,
            busiest_thread_waiting: 0.0,
            threads: 1,
        };
        let facts = Facts { completed: 1, server: Some(cpu), ..Facts::default() };
        Report {
            schema: SCHEMA,
            plan: PlanReport::of(&plan, 1),
            setup: SetupReport { connections: 10_000, took_s: 0.4, tcp: summary(), upgrade: None },
            result: Measured::Echo(EchoReport {
                measured_s: 10.0,
                messages: 1_000_000,
                messages_per_s: 100_000.0,
                payload_bytes_per_s: 1e7,
                messages_per_server_cpu_s: Some(101_010.1),
                server_cpu_us_per_message: Some(9.9),
                deflate: None,
                latency: summary(),
                open_loop: Some(OpenLoopReport {
                    planned: 1_000_000,
                    planned_per_s: 100_000.0,
                    unanswered: 0,
                    lateness: summary(),
                }),
            }),
            server: Some(ServerReport {
                pids: vec![42],
                name: Some("throng".to_owned()),
                cpus_allowed: Some(1),
                cpu: Some(cpu),
                memory: Some(Memory { rss_bytes: 4 << 20, ..Memory::default() }),
                descriptors: Some(10_012),
                same_process: false,
            }),
            generator: GeneratorReport::default(),
            machine_busy_share: Some(0.7),
            errors: Errors::default(),
            verdict: Verdict::of(&facts),
        }
    }

    #[test]
    fn the_table_tells_the_story_in_100_columns() {
        let text = report().to_string();
        for words in [
            "ws://127.0.0.1:9001/echo",
            "10,000 connections, 100 B binary, 10.0 messages/s each (open loop), 10s after 500ms of warm-up",
            "100,000 a second (1,000,000 in 10.0 s",
            "101,010 messages per server CPU-second",
            "p99.9",
            "500 us",
            "latency counts from the planned time",
            "throng (pid 42), 99.0 % CPU, 1 thread, 4 MiB resident, 10,012 descriptors",
            "verdict     server-limited",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        for line in text.lines().filter(|line| !line.starts_with("verdict")) {
            assert!(line.chars().count() <= 110, "{line}");
        }
        assert!(!text.contains("errors"));
    }

    #[test]
    fn errors_are_listed_with_the_first_in_words() {
        let mut report = report();
        report.errors.wrong_answers = 3;
        report.errors.note(|| "answer 7 was 99 bytes long".to_owned());
        report.errors.note(|| "later".to_owned());
        let text = report.to_string();
        assert!(text.contains("3 wrong answers") && text.contains("first: answer 7"), "{text}");
    }

    #[test]
    fn json_names_are_stable_and_unknown_is_null() {
        let mut report = report();
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        for pointer in [
            "/schema",
            "/plan/mode",
            "/plan/connections",
            "/plan/size_bytes",
            "/plan/rate_per_s",
            "/plan/duration_s",
            "/setup/took_s",
            "/result/messages_per_s",
            "/result/messages_per_server_cpu_s",
            "/result/latency/p50_us",
            "/result/latency/p999_us",
            "/result/open_loop/unanswered",
            "/server/pids/0",
            "/server/cpu/cpu_s",
            "/server/cpu/busiest_thread_cores",
            "/server/memory/rss_bytes",
            "/generator/cpu/cores",
            "/machine_busy_share",
            "/errors/wrong_answers",
            "/verdict/limit",
            "/verdict/line",
        ] {
            assert!(json.pointer(pointer).is_some_and(|v| !v.is_null()), "{pointer}");
        }
        assert_eq!(json["verdict"]["limit"], "server");
        assert!(json["plan"]["pipeline"].is_null());
        report.server = None;
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert!(json["server"].is_null());
        assert!(report.to_string().contains("not watched"));
    }
}
