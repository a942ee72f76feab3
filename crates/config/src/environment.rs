//! Variables of the environment that are settings: `THRONG_TIMEOUTS_CONNECT`.

use std::ffi::OsString;

use crate::foreign;
use crate::key::Table;
use crate::units;

/// The variable that names the configuration file.
pub(crate) const FILE: &str = "THRONG_CONFIG";
/// The variable that names the file of tuned settings.
pub const TUNED: &str = "THRONG_TUNED";

/// A variable that begins with `THRONG_`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The key at this index of the table has this value.
    Setting { at: usize, variable: String, value: Result<String, OsString> },
    /// The variable belongs to no key of the table: a warning.
    Unknown(String),
}

/// Finds the setting that a variable names. Returns `None` if the variable is meant for other
/// programs.
pub(crate) fn find(table: &Table, name: &OsString, value: OsString) -> Option<Found> {
    let variable = name.to_string_lossy().into_owned();
    let rest = variable.strip_prefix("THRONG_")?;
    if [FILE, TUNED].contains(&variable.as_str())
        || is_of_kubernetes(rest, &value.to_string_lossy())
    {
        return None;
    }
    let at = table.keys.iter().position(|key| key.variable() == variable);
    Some(match at {
        Some(at) => Found::Setting { at, variable, value: value.into_string() },
        None => {
            let known: Vec<String> = table.keys.iter().map(|key| key.variable()).collect();
            let known = known.iter().map(String::as_str).chain([FILE, TUNED]);
            let hint =
                foreign::hint(table.program, rest, |name| table.key(name).is_some(), |_| true)
                    .or_else(|| units::did_you_mean(&variable, known))
                    .unwrap_or_else(|| format!("`throng config show {}` lists all", table.program));
            Found::Unknown(format!(
                "environment {variable}: {} has no such setting, so it is ignored: {hint}",
                table.program
            ))
        }
    })
}

/// Returns whether Kubernetes wrote the variable. It gives each pod variables for each service of
/// its namespace. For one called `throng` they are `THRONG_SERVICE_HOST`, `THRONG_SERVICE_PORT`,
/// `THRONG_SERVICE_PORT_HTTP`, `THRONG_PORT=tcp://10.0.0.1:80`, `THRONG_PORT_80_TCP` and
/// `THRONG_PORT_80_TCP_ADDR`; for `throng-web`, `THRONG_WEB_SERVICE_HOST` and so on.
/// `THRONG_PORT=9001` is not one of them: a person wrote that.
fn is_of_kubernetes(rest: &str, value: &str) -> bool {
    rest.starts_with("SERVICE_")
        || rest.contains("_SERVICE_")
        || rest.starts_with("PORT_")
        || rest.contains("_PORT_")
        || ((rest == "PORT" || rest.ends_with("_PORT")) && value.contains("://"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, Kind};

    static TABLE: Table = Table {
        program: "serve",
        keys: &[
            Key::new("shards", Kind::COUNT, "0", ""),
            Key::new("heartbeat.interval", Kind::DURATION, "25s", ""),
        ],
    };

    fn found(name: &str, value: &str) -> Option<Found> {
        find(&TABLE, &name.into(), value.into())
    }

    #[test]
    fn variables_of_kubernetes_are_not_ours() {
        for (name, value) in [
            ("THRONG_PORT", "tcp://10.0.0.1:80"),
            ("THRONG_PORT_80_TCP", "tcp://10.0.0.1:80"),
            ("THRONG_PORT_80_TCP_ADDR", "10.0.0.1"),
            ("THRONG_PORT_80_TCP_PORT", "80"),
            ("THRONG_PORT_80_TCP_PROTO", "tcp"),
            ("THRONG_SERVICE_HOST", "10.0.0.1"),
            ("THRONG_SERVICE_PORT", "80"),
            ("THRONG_SERVICE_PORT_HTTP", "80"),
            ("THRONG_WEB_SERVICE_HOST", "10.0.0.1"),
            ("THRONG_WEB_PORT", "udp://10.0.0.1:80"),
            ("THRONG_WEB_PORT_80_UDP", "udp://10.0.0.1:80"),
            ("HOME", "/"),
            ("THRONG_CONFIG", "throng.toml"),
            ("THRONG_TUNED", "throng.tuned.toml"),
        ] {
            assert_eq!(found(name, value), None, "{name}");
        }
        assert!(matches!(found("THRONG_PORT", "9001"), Some(Found::Unknown(_))));
    }

    #[test]
    fn an_unknown_variable_is_a_warning_with_the_nearest_name() {
        for (name, hint) in [
            ("THRONG_SHARD", "did you mean THRONG_SHARDS?"),
            ("THRONG_HEARTBEAT_INTERVALL", "did you mean THRONG_HEARTBEAT_INTERVAL?"),
            ("THRONG_CONFIGS", "did you mean THRONG_CONFIG?"),
            ("THRONG_TUNE", "did you mean THRONG_TUNED?"),
            ("THRONG_VERSION", "`throng config show serve`"),
        ] {
            let Some(Found::Unknown(warning)) = found(name, "1") else { panic!("{name}") };
            assert!(warning.contains(name) && warning.contains(hint), "{warning}");
        }
    }

    #[test]
    fn every_key_has_a_variable() {
        for (at, key) in TABLE.keys.iter().enumerate() {
            let variable = key.variable();
            let value = Ok("x".to_owned());
            assert_eq!(found(&variable, "x"), Some(Found::Setting { at, variable, value }));
        }
    }
}
