//! The configuration of a balancer from files and flags. Each mistake is reported with its location
//! and a remedy.

mod check;
mod error;
mod reader;
mod settings;
mod token;
mod units;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::settings::Settings;
use crate::{CookieKey, Network};
use reader::{Document, Table, Value};

pub(crate) use check::{MAX_BACKENDS, check_backend};
pub use error::{ConfigError, Location};
pub use token::Token;

/// The configuration of a balancer. Read a file with [`Config::parse`], or begin with the default,
/// [`read`](Config::read) files and set fields, and [`check`](Config::check) at the end.
///
/// ```
/// use throng_balance::Config;
///
/// let text = "
///     listen = \"127.0.0.1:8080\"
///     backends = [\"127.0.0.1:9001\", { address = \"127.0.0.1:9002\", weight = 2 }]
///     [timeouts]
///     connect = \"2s\"
/// ";
/// let config = Config::parse(text, "balance.toml").unwrap();
/// assert_eq!(config.backends[1].weight, 2);
/// let error = Config::parse("backends = [\"127.0.0.1\"]", "balance.toml").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "balance.toml:1:13: backends[0] is \"127.0.0.1\": a port is missing: \
///      write \"127.0.0.1:9001\""
/// );
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses where clients connect: `listen = "127.0.0.1:8080"`, or a list. Default
    /// 127.0.0.1:8080. A change needs a restart.
    pub listen: Vec<SocketAddr>,
    /// The number of event loops: `shards`. 0, the default: one for each usable CPU. A change needs
    /// a restart.
    pub shards: usize,
    /// The backends: `backends`, a list of addresses or of tables `{ address, weight, send_proxy
    /// }`. None are needed if they register themselves. When a configuration without the key is
    /// [applied](crate::Balancer::apply), the backends of the last one stay; only `backends = []`
    /// removes them.
    pub backends: Vec<BackendConfig>,
    /// The settings, each by its own name; `[timeouts]`, `[health]` and `[health.check]` are
    /// tables.
    pub settings: Settings,
    /// Registration of backends: `[register]`. Default: they do not register themselves.
    pub register: Option<Register>,
    /// The address of the API for operators: `[admin]` with `listen`. Default: none. A change needs
    /// a restart.
    pub admin: Option<SocketAddr>,
    /// The token of operators: `token`, or the first line of `token_file`, in `[admin]`. Without it
    /// `listen` there must be a loopback address. Default: none.
    pub admin_token: Option<Token>,
    /// The shutdown: `[shutdown]`.
    pub shutdown: Shutdown,
    /// Warnings: valid values that are hardly intended.
    warnings: Vec<String>,
    /// A text named the backends, even if only that there are none.
    names_backends: bool,
    /// The location of each key, for mistakes that only show once everything is read.
    locations: BTreeMap<String, Location>,
}

/// A configured backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// Its address.
    pub address: SocketAddr,
    /// Its weight, 1 to [`MAX_WEIGHT`](crate::MAX_WEIGHT). Default 1.
    pub weight: u32,
    /// Begin each connection with a PROXY v2 header. Default false.
    pub send_proxy: bool,
}

impl BackendConfig {
    /// Creates a backend of weight 1, without a PROXY header.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, weight: 1, send_proxy: false }
    }
}

/// The registration of backends: `[register]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The token of backends: `token`, or the first line of `token_file`, a path relative to the
    /// configuration's file.
    pub token: Token,
    /// The time that a backend gets new clients without a heartbeat, if it does not give one
    /// itself. Default 10 s.
    pub time_to_live: Duration,
    /// The networks that backends may be in: `networks`. Default: all but link-local addresses,
    /// where clouds have services that hand out credentials.
    pub networks: Vec<Network>,
}

impl Register {
    /// Returns whether a backend may be at `address`.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        let is_link_local = match address.to_canonical() {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        match self.networks.is_empty() {
            true => !is_link_local,
            false => self.networks.iter().any(|network| network.contains(address)),
        }
    }
}

/// The shutdown of a balancer: `[shutdown]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// The time over which tunnels are closed. Default 10 s.
    pub window: Duration,
    /// The time after which connections that are left are reset. Default 30 s.
    pub deadline: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))],
            shards: 0,
            backends: Vec::new(),
            settings: Settings::default(),
            register: None,
            admin: None,
            admin_token: None,
            shutdown: Shutdown {
                window: Duration::from_secs(10),
                deadline: Duration::from_secs(30),
            },
            warnings: Vec::new(),
            names_backends: false,
            locations: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Parses the whole configuration from the TOML `text`; `file_name` is for errors, and relative
    /// paths start at its folder.
    ///
    /// # Errors
    /// The first mistake: an unknown key, a wrong type, a value out of its range, or two values
    /// that contradict each other.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        config.read(text, file_name)?;
        config.check()?;
        Ok(config)
    }

    /// Takes over the keys of the TOML `text`; keys that it does not mention stay. Lists are
    /// replaced as a whole.
    ///
    /// # Errors
    /// The errors of [`Config::parse`] that show in one value alone; then `self` is half changed:
    /// drop it.
    pub fn read(&mut self, text: &str, file_name: &str) -> Result<(), ConfigError> {
        let document = Document::new(file_name, text);
        let table = document.parse()?;
        let root = Table::root(&document, &table);
        root.put("listen", &mut self.listen, |value| {
            value
                .list("an address such as \"127.0.0.1:8080\", or a list of them")?
                .iter()
                .map(Value::address)
                .collect()
        })?;
        root.put("shards", &mut self.shards, |value| Ok(value.number(u64::MAX)? as usize))?;
        root.put("backends", &mut self.backends, |value| {
            self.locations.retain(|key, _| !key.starts_with("backends["));
            self.names_backends = true;
            value.list("a list of addresses or [[backends]] tables")?.iter().map(backend).collect()
        })?;
        let mut warnings = Vec::new();
        let before = self.register.clone();
        root.put("register", &mut self.register, |value| {
            register(value, before, file_name, &mut warnings).map(Some)
        })?;
        if let Some(value) = root.take("admin") {
            let admin = value.table("[admin], and below it listen = \"127.0.0.1:8081\"")?;
            admin.put("listen", &mut self.admin, |value| value.address().map(Some))?;
            let keys = ("token", "token_file");
            let token = token(&admin, keys, file_name, &mut warnings)?;
            self.admin_token = token.or(self.admin_token.take());
            admin.finish()?;
        }
        if let Some(value) = root.take("shutdown") {
            let shutdown = value.table("[shutdown], and below it window = \"10s\"")?;
            shutdown.put("window", &mut self.shutdown.window, Value::duration)?;
            shutdown.put("deadline", &mut self.shutdown.deadline, Value::duration)?;
            shutdown.finish()?;
        }
        let keys = ("cookie_secret", "cookie_secret_file");
        if let Some(secret) = token(&root, keys, file_name, &mut warnings)? {
            self.settings.cookie_key = CookieKey::of(&secret);
        }
        settings::read(&root, &mut self.settings)?;
        root.finish()?;
        self.locations.extend(document.into_locations());
        self.warnings.extend(warnings);
        Ok(())
    }

    /// Returns warnings about valid values that are hardly intended, one line each: for example a
    /// token that others may read.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns whether it names the backends.
    pub(crate) fn names_backends(&self) -> bool {
        self.names_backends || !self.backends.is_empty()
    }

    /// Checks that it is complete and free of contradictions.
    ///
    /// # Errors
    /// The first mistake, with its location if the value came from a file.
    pub fn check(&self) -> Result<(), ConfigError> {
        check::check(self).map_err(|wrong| {
            let location = self.locations.get(&wrong.key).cloned();
            ConfigError { location, what: wrong.to_string() }
        })
    }
}

fn backend(value: &Value<'_>) -> Result<BackendConfig, ConfigError> {
    if value.is_text() {
        return value.address().map(BackendConfig::new);
    }
    let example =
        "an address such as \"127.0.0.1:9001\", or { address = \"127.0.0.1:9001\", weight = 2 }";
    let table = value.table(example)?;
    let address = table
        .take("address")
        .ok_or_else(|| value.wrong("its address is missing: add address = \"127.0.0.1:9001\""))?;
    let mut backend = BackendConfig::new(address.address()?);
    // Its range is checked with all others, which covers values from flags.
    let any = u64::from(u32::MAX);
    table.put("weight", &mut backend.weight, |value| Ok(value.number(any)? as u32))?;
    table.put("send_proxy", &mut backend.send_proxy, Value::switch)?;
    table.finish()?;
    Ok(backend)
}

/// Reads the table; keys that it does not have stay as `before`.
fn register(
    value: &Value<'_>,
    before: Option<Register>,
    file_name: &str,
    warnings: &mut Vec<String>,
) -> Result<Register, ConfigError> {
    let table = value.table("[register], and below it token_file = \"token\"")?;
    let token = token(&table, ("token", "token_file"), file_name, warnings)?;
    let mut register = match (token, before) {
        (Some(token), Some(before)) => Register { token, ..before },
        (Some(token), None) => {
            Register { token, time_to_live: Duration::from_secs(10), networks: Vec::new() }
        }
        (None, Some(before)) => before,
        (None, None) => {
            let remedy =
                "what backends have to show is missing: add token_file = \"token\", or token";
            return Err(value.wrong(remedy));
        }
    };
    table.put("time_to_live", &mut register.time_to_live, Value::duration)?;
    table.put("networks", &mut register.networks, settings::networks)?;
    table.finish()?;
    Ok(register)
}

/// Returns the secret in the first of the keys, or the first line of the file that the second
/// names.
fn token(
    table: &Table<'_>,
    (key, file_key): (&'static str, &'static str),
    file_name: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<Token>, ConfigError> {
    match (table.take(key), table.take(file_key)) {
        (None, None) => Ok(None),
        (Some(_), Some(file)) => {
            let remedy = format!("there is a {key}, too: keep one of {key} and {file_key}");
            Err(file.wrong(remedy))
        }
        (Some(token), None) => {
            // Even where it is a number: the value is never shown.
            let text = token.text("").map_err(|_| token.wrong_secret("write it in quotes"))?;
            Token::new(text).map(Some).map_err(|remedy| token.wrong_secret(remedy))
        }
        (None, Some(file)) => {
            let name = file.text("the path of a file that has the token")?;
            let path = Path::new(file_name).parent().unwrap_or(Path::new("")).join(name);
            let text = std::fs::read_to_string(&path).map_err(|error| {
                file.wrong(format_args!(
                    "{} cannot be read ({error}): name a file that has the token",
                    path.display()
                ))
            })?;
            if is_public(&path) {
                let path = path.display();
                warnings.push(format!(
                    "{path} can be read by every user of this machine: chmod o-r {path}"
                ));
            }
            let first = text.lines().next().unwrap_or_default();
            Token::new(first).map(Some).map_err(|why| file.wrong(why))
        }
    }
}

/// Returns whether all users of the machine may read the file.
#[cfg(unix)]
fn is_public(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn is_public(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests;
