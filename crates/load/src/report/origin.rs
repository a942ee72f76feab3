//! The time, place and program of a run, which distinguish its figures from others.

use std::time::SystemTime;

use serde::Serialize;
use throng_proto::url::masked;

use crate::units::show_bytes;

/// The program, the time, the command line and the machine of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Origin {
    /// When the run ended, in RFC 3339 form.
    pub date: String,
    /// The version of the program.
    pub version: &'static str,
    /// The command line. Values that may be secret are masked.
    pub command: String,
    /// The machine of the generator.
    pub machine: Machine,
}

/// A machine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// System and architecture, with the kernel's release where it is known.
    pub system: String,
    /// The model name of the CPU, if known.
    pub cpu: Option<String>,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Memory that this process may use, if known.
    pub memory_bytes: Option<u64>,
}

impl Origin {
    /// Returns the machine as this process sees it now.
    #[must_use]
    pub fn now() -> Self {
        let args = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION"),
            command: masked_command(args),
            machine: Machine::here(),
        }
    }

    /// Returns the lines about the machine.
    pub(crate) fn remarks(&self) -> Vec<(&'static str, String)> {
        let Machine { system, cpu, cpus, memory_bytes } = &self.machine;
        let mut machine = vec![system.clone()];
        machine.extend(cpu.clone());
        machine.push(format!("{cpus} CPU{}", if *cpus == 1 { "" } else { "s" }));
        machine.extend(memory_bytes.map(|bytes| show_bytes(bytes as i64)));
        vec![
            ("run", format!("{}, throng {}: {}", self.date, self.version, self.command)),
            ("machine", machine.join(", ")),
        ]
    }
}

impl Machine {
    fn here() -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let system = [std::env::consts::OS, release.trim(), std::env::consts::ARCH];
        let words: Vec<&str> = system.into_iter().filter(|word| !word.is_empty()).collect();
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            system: words.join(" "),
            cpu: model.map(|(_, name)| name.trim().to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: throng_io::memory::available(),
        }
    }
}

/// Flags whose values may be secret. Of a header line, everything after its name may be secret.
const SECRET: [&str; 2] = ["--token", "--cookie"];
const HEADER: [&str; 2] = ["--header", "-H"];

/// Joins the words of a command line, with `***` instead of possible secrets.
fn masked_command(args: impl Iterator<Item = String>) -> String {
    let mut words = Vec::new();
    let mut before = String::new();
    for (at, arg) in args.enumerate() {
        let name = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned();
        let shown = match arg.split_once('=') {
            _ if at == 0 => name(&arg),
            _ if SECRET.contains(&&*before) => "***".to_owned(),
            _ if HEADER.contains(&&*before) => header(&arg),
            Some((flag, _)) if SECRET.contains(&flag) => format!("{flag}=***"),
            Some((flag, line)) if HEADER.contains(&flag) => format!("{flag}={}", header(line)),
            _ if arg.starts_with("-H") && arg.len() > 2 => format!("-H{}", header(&arg[2..])),
            _ => masked(&arg),
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+*?&<>{}[]".contains(c);
        words.push(match !shown.is_empty() && shown.chars().all(is_plain) {
            true => shown,
            false => format!("'{shown}'"),
        });
        before = arg;
    }
    words.join(" ")
}

/// Masks the value of a header line.
fn header(line: &str) -> String {
    format!("{}: ***", line.split_once(':').map_or("", |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_shown_without_what_may_be_secret() {
        let shown = |args: &[&str]| masked_command(args.iter().map(|&arg| arg.to_owned()));
        assert_eq!(
            shown(&["/usr/bin/throng", "bench", "echo", "ws://u:p@h:1/a?token=t&x", "-c", "10"]),
            "throng bench echo ws://***@h:1/a?token=***&x -c 10"
        );
        assert_eq!(
            shown(&["throng", "--token", "s", "--token=s", "--cookie", "a=s", "--cookie=a=s"]),
            "throng --token *** --token=*** --cookie *** --cookie=***"
        );
        assert_eq!(
            shown(&["throng", "-H", "X-Key: s", "--header=X-Key: s", "-HX-Key: s", "s s"]),
            "throng -H 'X-Key: ***' '--header=X-Key: ***' '-HX-Key: ***' 's s'"
        );
    }

    #[test]
    fn the_machine_and_the_time_are_known() {
        let origin = Origin::now();
        assert!(origin.machine.cpus > 0 && origin.machine.system.contains(std::env::consts::ARCH));
        assert!(origin.date.ends_with('Z') && !origin.version.is_empty(), "{origin:?}");
    }
}
