//! The settings of a server as the rules of `throng doctor` need them.

use std::net::{Ipv4Addr, SocketAddr};

use throng_config::{Draft, Listen};
use throng_doctor::Io;

/// Returns what the rules need of the values, which listen at these addresses.
pub(super) fn settings(draft: &Draft, listen: &[String]) -> throng_doctor::Settings {
    let some = |number: u64| Some(number).filter(|&number| number > 0);
    let is_window = draft.get("deflate.enabled") && draft.get::<String>("deflate.mode") == "window";
    let listens = listen.iter().map(|text| Listen::parse(text));
    // A Unix socket is for programs of this machine, as a loopback address.
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let of_one =
        |listen: Listen<'_>| listen.addresses().into_iter().map(move |it| it.unwrap_or(local));
    let heartbeat = draft.get::<std::time::Duration>("heartbeat.interval");
    throng_doctor::Settings {
        max_connections: some(draft.get("max_connections")),
        shards: some(draft.get("shards")),
        io: match draft.get::<String>("io").as_str() {
            "threads" => Io::Threads,
            "portable" | "iocp" => Io::Portable,
            _ => Io::Epoll,
        },
        tables: draft.parse("descriptors").unwrap_or_default(),
        inherited: listens.clone().any(|listen| !listen.is_address()),
        listen: listens.clone().flat_map(of_one).collect(),
        listeners: listens.count() as u64,
        backlog: draft.get("backlog"),
        max_backlog: draft.get("max_backlog"),
        max_message_size: draft.get("max_message_size"),
        max_memory: some(draft.get("max_memory")),
        heartbeat: Some(heartbeat).filter(|interval| !interval.is_zero()),
        any_origin: draft.get::<Vec<String>>("allowed_origins").iter().any(|it| it == "*"),
        admin: draft.get("admin.listen"),
        deflate_bits: is_window.then(|| draft.get("deflate.window_bits")),
        pinned: draft.get::<String>("pin") == "cores",
        ..throng_doctor::Settings::default()
    }
}
