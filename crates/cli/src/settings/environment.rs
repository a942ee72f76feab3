//! Settings in the environment: `THRONG_MAX_BACKLOG`, `THRONG_HEARTBEAT_INTERVAL`.

use std::ffi::OsString;

use super::SETTINGS;

/// A variable that is meant for us.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) variable: String,
}

/// The setting that a variable names, if it names one of ours; an error if its value is no text.
pub(super) fn read(name: OsString, value: OsString) -> Result<Option<Found>, String> {
    let variable = name.to_string_lossy().into_owned();
    let Some(rest) = variable.strip_prefix("THRONG_") else { return Ok(None) };
    if is_of_kubernetes(rest, &value.to_string_lossy()) {
        return Ok(None);
    }
    let value = value.into_string().map_err(|value| {
        format!(
            "the environment variable {variable} is {value:?}, which is not UTF-8: set it to UTF-8 text, or unset it"
        )
    })?;
    let key = rest.to_ascii_lowercase();
    let known = SETTINGS.iter().find(|setting| setting.key.replace('.', "_") == key);
    let key = known.map_or(key, |setting| setting.key.to_owned());
    Ok(Some(Found { key, value, variable }))
}

/// Kubernetes gives each pod variables for each service of its namespace. For one called `throng`
/// they are `THRONG_SERVICE_HOST`, `THRONG_SERVICE_PORT`, `THRONG_SERVICE_PORT_HTTP`,
/// `THRONG_PORT=tcp://10.0.0.1:80`, `THRONG_PORT_80_TCP` and `THRONG_PORT_80_TCP_ADDR`; for
/// `throng-web`, `THRONG_WEB_SERVICE_HOST` and so on. A server would not start next to its own
/// service if it took them for misspelt settings. `THRONG_PORT=9001` is still one: a person wrote
/// that.
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
        ] {
            assert!(read(name.into(), value.into()).unwrap().is_none(), "{name}");
        }
        let by_hand = read("THRONG_PORT".into(), "9001".into()).unwrap().unwrap();
        assert_eq!(by_hand.key, "port");
    }

    #[test]
    fn every_setting_has_a_variable() {
        for setting in SETTINGS {
            let name = format!("THRONG_{}", setting.key.replace('.', "_").to_ascii_uppercase());
            let found = read(name.clone().into(), "x".into()).unwrap();
            assert_eq!(found.unwrap().key, setting.key, "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_no_text_is_told() {
        use std::os::unix::ffi::OsStringExt;

        let bad = || OsString::from_vec(vec![b'2', 0xff]);
        let message = read("THRONG_SHARDS".into(), bad()).unwrap_err();
        assert!(message.contains("THRONG_SHARDS") && message.contains("UTF-8"), "{message}");
        assert!(read("LESS".into(), bad()).unwrap().is_none());
    }
}
