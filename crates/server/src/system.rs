//! Counters of the operating system: for all programs of the machine or of the network namespace,
//! and for this process by descriptor table and by thread. Read only when metrics are asked for.

use serde_json::{Map, Value, json};
use throng_http::openmetrics::{self, Type, Writer};
use throng_io::counters::{MachineCounters, ThreadTimes, thread_times};
use throng_io::limits::{descriptor_limits, descriptors_by_table};

/// The counters of the system at one moment.
#[derive(Debug, Default)]
pub(crate) struct System {
    machine: MachineCounters,
    /// Open descriptors of each table.
    descriptors: Vec<usize>,
    /// The limit on them, for each table.
    max_descriptors: u64,
    threads: Vec<ThreadTimes>,
}

/// A counter: its name, meaning, type and value.
type Row = (&'static str, &'static str, Type, fn(&MachineCounters) -> Option<openmetrics::Value>);

const ROWS: &[Row] = &[
    (
        "listen_overflows",
        "Connections that found a listener's accept queue full, of all programs in the network \
         namespace",
        Type::Counter,
        |it| it.listen_overflows.map(Into::into),
    ),
    (
        "listen_drops",
        "Connections that listeners dropped for any reason, of all programs in the network \
         namespace",
        Type::Counter,
        |it| it.listen_drops.map(Into::into),
    ),
    (
        "tcp_segments_sent",
        "TCP segments sent, without those sent again, of all programs in the network namespace",
        Type::Counter,
        |it| it.segments_sent.map(Into::into),
    ),
    (
        "tcp_segments_retransmitted",
        "TCP segments sent again, of all programs in the network namespace",
        Type::Counter,
        |it| it.segments_retransmitted.map(Into::into),
    ),
    (
        "tcp_orphans",
        "TCP connections that belong to no process any longer, of the whole machine",
        Type::Gauge,
        |it| it.orphans.map(Into::into),
    ),
    (
        "tcp_time_wait",
        "TCP connections in TIME_WAIT, of all programs in the network namespace",
        Type::Gauge,
        |it| it.time_wait.map(Into::into),
    ),
    (
        "cpu_seconds",
        "Seconds of all CPUs of the machine together, idle ones included",
        Type::Counter,
        |it| it.cpu_seconds.map(Into::into),
    ),
    (
        "softirq_seconds",
        "Seconds of all CPUs of the machine in soft interrupts, where the kernel handles packets",
        Type::Counter,
        |it| it.softirq_seconds.map(Into::into),
    ),
];

impl System {
    pub(crate) fn read() -> Self {
        Self {
            machine: MachineCounters::read(),
            descriptors: descriptors_by_table(),
            max_descriptors: descriptor_limits().0,
            threads: thread_times(),
        }
    }

    /// Writes the metrics that the system has numbers for.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.set_prefix("process");
        let help = "Open file descriptors of a table: 0 is the process's own, the others belong \
                    to event loops; process_open_fds is their sum";
        let mut metric = writer.metric("table_open_fds", help, Type::Gauge);
        for (table, open) in self.descriptors.iter().enumerate() {
            metric.sample(&[("table", &table.to_string())], *open as u64);
        }
        let help = "Limit on the open file descriptors of each table";
        writer.metric("table_max_fds", help, Type::Gauge).sample(&[], self.max_descriptors);
        if !self.threads.is_empty() {
            let of_threads = |writer: &mut Writer, name, help, of: fn(&ThreadTimes) -> f64| {
                let mut metric = writer.metric(name, help, Type::Counter);
                for times in &self.threads {
                    metric.sample(&[("thread", &times.name)], of(times));
                }
            };
            let help = "CPU time of threads by name; the numbers of workers and connections are \
                        left out of their names. Absent with more than 512 threads";
            of_threads(writer, "thread_cpu_seconds", help, |it| it.cpu.as_secs_f64());
            let help = "Time for which threads were ready to run and had no CPU, by name";
            of_threads(writer, "thread_run_delay_seconds", help, |it| it.run_delay.as_secs_f64());
        }
        writer.set_prefix("throng_machine");
        for (name, help, kind, value) in ROWS {
            if let Some(value) = value(&self.machine) {
                writer.metric(name, help, *kind).sample(&[], value);
            }
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut figures = Map::new();
        for (name, _, _, value) in ROWS {
            let value = match value(&self.machine) {
                Some(openmetrics::Value::Integer(value)) => value.into(),
                Some(openmetrics::Value::Float(value)) => value.into(),
                _ => Value::Null,
            };
            figures.insert((*name).to_owned(), value);
        }
        let table = |open: &usize| json!({"open": open, "max": self.max_descriptors});
        figures.insert("descriptors".to_owned(), self.descriptors.iter().map(table).collect());
        let thread = |times: &ThreadTimes| {
            json!({
                "name": times.name,
                "threads": times.threads,
                "cpu_seconds": times.cpu.as_secs_f64(),
                "run_delay_seconds": times.run_delay.as_secs_f64(),
            })
        };
        figures.insert("threads".to_owned(), self.threads.iter().map(thread).collect());
        Value::Object(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(system: &System) -> String {
        let mut writer = Writer::new("throng");
        system.write(&mut writer);
        writer.finish()
    }

    #[test]
    fn a_number_that_the_system_lacks_is_no_metric_and_null() {
        let mut system = System { descriptors: vec![7, 300], max_descriptors: 1000, ..fixture() };
        let all = text(&system);
        for line in [
            "throng_machine_listen_overflows_total 3",
            "# TYPE throng_machine_tcp_orphans gauge",
            "throng_machine_softirq_seconds_total 0.5",
            "process_table_open_fds{table=\"1\"} 300",
            "process_table_max_fds 1000",
        ] {
            assert!(all.lines().any(|found| found == line), "no {line} in {all}");
        }
        let json = system.to_json();
        assert_eq!(json["listen_overflows"], 3);
        assert_eq!(json["descriptors"][1], json!({"open": 300, "max": 1000}));
        system.machine = MachineCounters::default();
        let none = text(&system);
        assert!(!none.contains("throng_machine_"), "{none}");
        assert!(system.to_json()["listen_overflows"].is_null());
    }

    fn fixture() -> System {
        let machine = MachineCounters::parse(
            "TcpExt: ListenOverflows\nTcpExt: 3\n",
            "",
            "TCP: inuse 1 orphan 4",
            "cpu  0 0 0 100 0 0 50 0",
        );
        System { machine, ..System::default() }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_its_descriptors_and_threads() {
        let all = text(&System::read());
        assert!(all.contains("process_table_open_fds{table=\"0\"} "), "{all}");
        assert!(all.contains("process_thread_cpu_seconds_total{thread="), "{all}");
        assert!(all.contains("\nthrong_machine_listen_overflows_total "), "{all}");
    }
}
