//! The flags of `throng balance`, and the configuration that they and the file make.

use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};

use throng_balance::Config;
use throng_config::{ConfigError, ConfigErrors, Draft, Table, Values};

use crate::flags::{HasTable, TableFlags};

/// The flags of `throng balance` that are settings.
pub(crate) type Flags = TableFlags<Config>;

impl HasTable for Config {
    fn table() -> &'static Table {
        Self::table()
    }
}

impl Flags {
    /// Returns the checked configuration: the defaults, overridden by the file, the environment,
    /// the flags, and then `--set`.
    ///
    /// # Errors
    /// All mistakes, with their place and remedy.
    pub(crate) fn config(&self) -> Result<Config, ConfigErrors> {
        self.config_and_values().map(|(config, _)| config)
    }

    /// Reads the configuration. Returns it with the values that it was made from.
    ///
    /// # Errors
    /// Fails as [`Flags::config`] does.
    pub(super) fn config_and_values(&self) -> Result<(Config, Values), ConfigErrors> {
        checked(self.sources()?.finish())
    }

    /// Reads the configuration again while the balancer runs, when the file may be being written.
    ///
    /// # Errors
    /// Fails as [`Flags::config`] does, or if the file looks incomplete.
    pub(super) fn config_again(&self) -> Result<(Config, Values), ConfigErrors> {
        checked(self.sources_in_use()?.finish())
    }
}

fn checked(draft: Draft) -> Result<(Config, Values), ConfigErrors> {
    let values = draft.values().clone();
    let config = Config::from_draft(draft)?;
    fits_here(&config)?;
    Ok((config, values))
}

/// Returns an error if a valid configuration does not fit this process or machine.
fn fits_here(config: &Config) -> Result<(), ConfigErrors> {
    let error = |key: &str, value: &str, remedy: String| match config.values() {
        Some(values) => values.error(key, value, remedy),
        None => ConfigError::message(remedy),
    };
    if config.admin.is_none() {
        let needs = [
            ("register", config.register.is_some(), "no backend can register itself"),
            ("admin.token", config.admin_token.is_some(), "it protects nothing"),
        ];
        if let Some((key, _, what)) = needs.into_iter().find(|(_, is_given, _)| *is_given) {
            let remedy = format!(
                "{what} without an admin API: add admin.listen = \"127.0.0.1:8081\", or --admin \
                 127.0.0.1:8081"
            );
            return Err(error(key, "set", remedy).into());
        }
    }
    // Otherwise each connection to a backend would fail, and count as the backend's failure.
    for &source in config.settings.sources.iter() {
        bind_from(source, config).map_err(|why| {
            let remedy =
                format!("nothing can be sent from it ({why}): write an address of this machine");
            let problem = error("sources", &format!("\"{source}\""), remedy);
            problem.passing_if(throng_io::may_pass(&why))
        })?;
    }
    Ok(())
}

/// Binds an address that connections to backends come from; a link-local one in the zone of each
/// backend that it reaches.
fn bind_from(source: IpAddr, config: &Config) -> std::io::Result<()> {
    let IpAddr::V6(ip) = source else { return UdpSocket::bind((source, 0)).map(drop) };
    if !ip.is_unicast_link_local() {
        return UdpSocket::bind((source, 0)).map(drop);
    }
    let zone = |address: SocketAddr| match address {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() => Some(address.scope_id()),
        _ => None,
    };
    let addresses = config.all_backends().filter_map(|backend| backend.address.socket_addr());
    let mut zones = addresses.filter_map(zone);
    zones.try_for_each(|zone| UdpSocket::bind(SocketAddrV6::new(ip, 0, 0, zone)).map(drop))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use std::time::Duration;
    use throng_balance::{Pick, Sticky};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn config(words: &[&str]) -> Result<Config, String> {
        let line = std::iter::once("balance").chain(words.iter().copied());
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        line.flags.config().map_err(|errors| errors.to_string())
    }

    #[test]
    fn flags_set_the_same_settings_as_the_file() {
        let config = config(&[
            "--listen",
            "127.0.0.1:0,127.0.0.2:0",
            "--backend",
            "127.0.0.1:9001",
            "--backend",
            "127.0.0.1:9002,weight=2,send_proxy",
            "--pick",
            "random",
            "--sticky",
            "cookie:lb",
            "--admin",
            "127.0.0.1:8081",
            "--trusted-proxy",
            "10.0.0.0/8",
            "--source",
            "127.0.0.3",
            "--shards",
            "2",
            "--set",
            "timeouts.connect=2s",
            "--set",
            "health.check.kind=tcp",
            "--set",
            "retries=0",
            "--set",
            "slow_start=0",
        ])
        .unwrap();
        assert_eq!(config.listen.len(), 2);
        assert_eq!((config.backends[0].weight, config.backends[0].send_proxy), (1, false));
        assert_eq!((config.backends[1].weight, config.backends[1].send_proxy), (2, true));
        assert_eq!(config.settings.pick, Pick::Random);
        assert_eq!(config.settings.sticky, Sticky::Cookie("lb".to_owned()));
        assert_eq!(config.admin, Some("127.0.0.1:8081".parse().unwrap()));
        assert!(config.settings.trusted_proxies[0].contains("10.1.1.1".parse().unwrap()));
        assert_eq!(*config.settings.sources, ["127.0.0.3".parse::<IpAddr>().unwrap()]);
        assert_eq!(config.shards, 2);
        assert_eq!(config.settings.timeouts.connect, Duration::from_secs(2));
        assert_eq!((config.settings.retries, config.settings.health.check.is_some()), (0, true));
    }

    #[test]
    fn flags_win_over_the_file_key_by_key() {
        let folder = throng_testkit::TempFolder::new("args");
        let token = folder.write("token", "a-token-of-another-file");
        let text = "backends = \"127.0.0.1:9001\"\nadmin.listen = \"127.0.0.1:8081\"\n\
                    [register]\ntoken = \"0123456789abcdef\"\ntime_to_live = \"7s\"\n\
                    [health.check]\nkind = \"http\"\npath = \"/readyz\"\nrise = 5\n";
        let path = folder.write("balance.toml", text);
        let words = ["--config", path.to_str().unwrap(), "--register-token-file"];
        let set = ["--set", "health.check.interval=3s", "--set", "register.time_to_live=9s"];
        let config_of = |more: &[&str]| {
            config(&[&words[..], &[token.to_str().unwrap()], more].concat()).unwrap()
        };
        let register = config_of(&[]).register.unwrap();
        assert_eq!(register.time_to_live, Duration::from_secs(7));
        assert!(register.token.matches(b"a-token-of-another-file"));
        let config = config_of(&set);
        let (register, check) = (config.register.unwrap(), config.settings.health.check.unwrap());
        assert_eq!(register.time_to_live, Duration::from_secs(9));
        assert!(register.token.matches(b"a-token-of-another-file"));
        assert_eq!((check.interval, check.rise), (Duration::from_secs(3), 5));
        assert_eq!(check.kind, throng_balance::CheckKind::Http("/readyz".to_owned()));
        for file in [path, token] {
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn errors_name_the_flag_with_the_mistake() {
        let good = ["--backend", "127.0.0.1:9001"];
        for (words, parts) in [
            (&["--backend", "127.0.0.1"][..], &["--backend: ", "127.0.0.1:9001"][..]),
            (
                &["--backend", "127.0.0.1:1,wieght=2"],
                &["--backend: ", "127.0.0.1:1,wieght=2", "weight=N"],
            ),
            (&["--backend", "127.0.0.1:1,weight=0"], &["--backend: ", "weight is \"0\""]),
            (&["--backend", "127.0.0.1:1,127.0.0.1:2"], &["once for each backend"]),
            (&["--backend", "9001"], &["--backend: ", "is \"9001\"", "write \"127.0.0.1:9001\""]),
            (&["--listen", "8080"], &["--listen: ", "127.0.0.1:8080", "0.0.0.0:8080"]),
            (&["--admin", "8081"], &["--admin: ", "write \"127.0.0.1:8081\""]),
            (&["--source", "eth0"], &["--source: ", "is \"eth0\"", "an IP address such as"]),
            (&["--shards", "all"], &["--shards: ", "is \"all\"", "a whole number from 0"]),
            (&["--pick", "3"], &["--pick: ", "write one of power_of_two"]),
            (&["--pick", "rnadom"], &["--pick: ", "did you mean random?"]),
            (&["--sticky", "cookie"], &["--sticky: ", "cookie:NAME"]),
            (&["--sticky", "cookie:a b"], &["--sticky: ", "a b"]),
            (&["--set", "shards"], &["--set: ", "\"shards\"", "key=value"]),
            (&["--set", "shard=1"], &["--set: ", "did you mean shards?"]),
            (&["--set", "shards=many"], &["--set: ", "shards is \"many\""]),
            (&["--set", "timeouts.connect=5"], &["--set: ", "5s"]),
            (&["--admin", "0.0.0.0:8081"], &["--admin: ", "loopback"]),
            // An address of the network reserved for documentation: no machine has it.
            (&["--source", "192.0.2.1"], &["sources", "192.0.2.1", "of this machine"]),
            (&["--set", "register.token=0123456789abcdef"], &["register", "--admin 127."]),
            (&["--set", "admin.token=0123456789abcdef"], &["admin.token", "--admin 127."]),
            (&["--config", "/nowhere/x.toml"], &["/nowhere/x.toml cannot be read", "--config"]),
        ] {
            let words: Vec<&str> = good.iter().chain(words).copied().collect();
            let words = if words[2] == "--backend" { &words[2..] } else { &words[..] };
            let error = config(words).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{words:?}: {error}");
            assert!(!error.contains('\n') && !error.contains(":1:"), "{error}");
        }
        let error = config(&[]).unwrap_err();
        assert!(error.contains("backends") && error.contains("127.0.0.1:9001"), "{error}");
    }
}
