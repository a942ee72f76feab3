//! The tables of listeners, and all listeners of a configuration.

use throng_config::listen::listen_address;
use throng_config::{Defaults, Draft, Key, Kind, Record, Records};
use throng_http::Network;
use throng_io::PeerAddress;

use super::Config;
use crate::listener::{LISTEN, ListenAt, ListenerRules, TLS_LISTEN};

pub(super) const NETWORKS: Kind = Kind::List(&Kind::Text("a network such as \"10.0.0.0/8\""));
pub(super) const UNIX_MODE: Kind = Kind::Text("permissions in octal such as \"660\"");

/// A listener with rules of its own: a table `[[listener]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its address: `address`.
    pub address: PeerAddress,
    /// Whether clients use TLS: `tls`. Default false.
    pub has_tls: bool,
    /// Its name, by default its address, and its rules: `name`, `accept_proxy`,
    /// `trusted_proxies`, `plain` and `max_connections`.
    pub rules: ListenerRules,
    /// Whether other processes may also listen on its port: `share_port`. Default:
    /// [`Config::share_port`].
    pub share_port: bool,
    /// The permissions of the file of a Unix socket: `unix_mode`. Default: [`Config::unix_mode`].
    pub unix_mode: u32,
}

pub(super) static LISTENERS: Records = Records {
    alias: Some("listener"),
    fields: &[
        Key::new("address", Kind::Listener, "", "where clients connect, as in listen"),
        Key::new("name", Kind::Text("a name such as \"edge\""), "", "name; if not set, address"),
        Key::new("tls", Kind::Switch, "false", "whether clients have TLS there, that of [tls]"),
        Key::new("accept_proxy", Kind::Switch, "false", "as accept_proxy; if not set, that one"),
        Key::new("trusted_proxies", NETWORKS, "", "in place of trusted_proxies"),
        Key::new(
            "plain",
            Kind::Word(&["refuse", "redirect", "serve"]),
            "refuse",
            "as tls.plain; if not set, that one",
        ),
        Key::new("share_port", Kind::Switch, "false", "as share_port; if not set, that one"),
        Key::new("unix_mode", UNIX_MODE, "", "as unix_mode; if not set, that one"),
        Key::new(
            "max_connections",
            Kind::COUNT,
            "0",
            "its clients at a time, besides max_connections; more get 503; 0 = no limit of its own",
        ),
    ],
    is_first_required: true,
    parse: None,
    defaults: Defaults::new(),
    example: "a table such as { address = \"0.0.0.0:8443\", tls = true }",
};

/// Reads all listeners with tables, with the defaults of the whole file.
pub(super) fn listeners(draft: &Draft, unix_mode: u32, share_port: bool) -> Vec<ListenerConfig> {
    let of_one = |record: &Record<'_>| listener(record, unix_mode, share_port);
    draft.records("listeners").iter().filter_map(of_one).collect()
}

fn listener(record: &Record<'_>, unix_mode: u32, share_port: bool) -> Option<ListenerConfig> {
    let text: String = record.get("address");
    let address = listen_address(&text, |error, remedy| {
        let remedy = match error {
            Some(error) => format!("{error}: {remedy}"),
            None => remedy,
        };
        record.wrong_field("address", remedy);
    })?;
    let unix_mode = match record.get::<Option<String>>("unix_mode") {
        None => unix_mode,
        Some(text) => octal(&text).unwrap_or_else(|| {
            record.wrong_field("unix_mode", OCTAL);
            unix_mode
        }),
    };
    let name: Option<String> = record.get("name");
    let proxies = || record.parse_list::<Network>("trusted_proxies").into();
    let rules = ListenerRules {
        accept_proxy: record.is_set("accept_proxy").then(|| record.get("accept_proxy")),
        trusted_proxies: record.is_set("trusted_proxies").then(proxies),
        plain: if record.is_set("plain") { record.parse("plain") } else { None },
        max_connections: record.get("max_connections"),
        is_counted: true,
        ..ListenerRules::named(&name.unwrap_or_else(|| address.to_string()))
    };
    let share_port =
        if record.is_set("share_port") { record.get("share_port") } else { share_port };
    Some(ListenerConfig { address, has_tls: record.get("tls"), rules, share_port, unix_mode })
}

/// Returns permissions of the file of a Unix socket from their octal form.
pub(super) fn octal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777)
}

pub(super) const OCTAL: &str = "write permissions in octal, for example \"660\"";

impl Config {
    /// Returns all listeners: of `listen`, of `tls.listen`, and with tables.
    pub(crate) fn all_listeners(&self) -> Vec<ListenAt> {
        let secured = self.tls.as_ref().map_or(&[][..], |tls| &tls.listen);
        let is_all = self.tls.is_some() && secured.is_empty();
        let of_list = |address: &PeerAddress, name: &str, has_tls| ListenAt {
            address: *address,
            has_tls,
            unix_mode: self.unix_mode,
            share_port: self.share_port,
            rules: ListenerRules::named(name),
        };
        let listen = self.listen.iter().map(|address| of_list(address, LISTEN, is_all));
        let secured = secured.iter().map(|address| of_list(address, TLS_LISTEN, true));
        let own = self.listeners.iter().map(|listener| ListenAt {
            address: listener.address,
            has_tls: listener.has_tls,
            unix_mode: listener.unix_mode,
            share_port: listener.share_port,
            rules: listener.rules.clone(),
        });
        listen.chain(secured).chain(own).collect()
    }

    /// Returns the listener with this name; without a name, the first one with TLS or without it,
    /// or else the first.
    ///
    /// # Errors
    /// A sentence with the unknown name and the remedy.
    pub(crate) fn listener(&self, name: Option<&str>, has_tls: bool) -> Result<ListenAt, String> {
        let mut all = self.all_listeners();
        let at = match name {
            Some(name) => all.iter().position(|it| *it.rules.name == *name).ok_or_else(|| {
                format!("no listener has the name {name:?}: write one of {}", names(&all))
            })?,
            None => all.iter().position(|it| it.has_tls == has_tls).unwrap_or_default(),
        };
        if at < all.len() { Ok(all.swap_remove(at)) } else { Err("no listener".to_owned()) }
    }

    /// Returns the names of all listeners.
    pub(crate) fn listener_names(&self) -> Vec<std::sync::Arc<str>> {
        let mut names: Vec<_> = self.all_listeners().into_iter().map(|it| it.rules.name).collect();
        names.dedup();
        names
    }
}

fn names(all: &[ListenAt]) -> String {
    let mut names: Vec<_> = all.iter().map(|it| &*it.rules.name).collect();
    names.dedup();
    names[..names.len().min(20)].join(", ")
}
