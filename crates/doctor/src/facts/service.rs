//! The time that a service manager gives a process to end.

use super::parse;
use super::tree::Tree;

/// Folders of units, the strongest first.
const FOLDERS: [&str; 4] =
    ["etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

/// Files with defaults for all units, the strongest first.
const DEFAULTS: [&str; 2] = ["etc/systemd/system.conf", "usr/lib/systemd/system.conf"];

/// The default of systemd, in seconds.
const DEFAULT: u64 = 90;

/// The default of Kubernetes, in seconds.
const DEFAULT_OF_PODS: u64 = 30;

/// The variable that can pass a pod's `terminationGracePeriodSeconds` on.
const OF_POD: &str = "TERMINATION_GRACE_PERIOD_SECONDS";

/// Returns the time in seconds, and the name of its setting.
pub(super) fn stop_time(tree: &Tree, groups: &str) -> Option<(u64, &'static str)> {
    let variable = |name: &str| tree.variable(name);
    if variable("KUBERNETES_SERVICE_HOST").is_some() {
        let given = variable(OF_POD).and_then(|text| parse::seconds(&text));
        return Some((given.unwrap_or(DEFAULT_OF_PODS), "terminationGracePeriodSeconds"));
    }
    // A shell in a session has a unit as well, and ends in another way.
    let unit = groups.lines().find_map(|line| line.rsplit('/').next()?.strip_suffix(".service"));
    let unit = unit.filter(|unit| !unit.is_empty() && !unit.starts_with("user@"))?;
    variable("INVOCATION_ID")?;
    // The unit of a service that only started a shell, such as a runner of tests, is not meant.
    let own = tree.text("proc/self/stat");
    let own = own.as_deref().and_then(|stat| stat.split(' ').next());
    if let (Some(main), Some(own)) = (variable("SYSTEMD_EXEC_PID"), own)
        && main != own
    {
        return None;
    }
    let of_unit = of_unit(tree, &format!("{unit}.service"));
    let of_all = || {
        let default = |file: &&str| {
            let text = tree.text(file)?;
            parse::seconds(parse::unit_value(&text, "Manager", "DefaultTimeoutStopSec")?)
        };
        DEFAULTS.iter().find_map(default)
    };
    Some((of_unit.or_else(of_all).unwrap_or(DEFAULT), "TimeoutStopSec"))
}

/// Reads the unit and its drop-ins; the last one counts.
fn of_unit(tree: &Tree, unit: &str) -> Option<u64> {
    let mut found = None;
    if let Some(text) = FOLDERS.iter().find_map(|folder| tree.text(&format!("{folder}/{unit}"))) {
        found = time(&text).or(found);
    }
    for folder in FOLDERS.iter().rev() {
        let drop_ins = format!("{folder}/{unit}.d");
        for name in tree.names(&drop_ins) {
            if let Some(text) = tree.text(&format!("{drop_ins}/{name}")) {
                found = time(&text).or(found);
            }
        }
    }
    found
}

fn time(unit: &str) -> Option<u64> {
    let value = |key| parse::unit_value(unit, "Service", key).and_then(parse::seconds);
    value("TimeoutStopSec").or_else(|| value("TimeoutSec"))
}
