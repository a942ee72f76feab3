//! The settings of a balancer as the rules of `throng doctor` need them.

use throng_balance::Config;
use throng_doctor::Settings;

/// Returns what the rules need of a configuration.
pub(crate) fn checked_settings(config: &Config) -> Settings {
    let some = |number: usize| Some(number as u64).filter(|&number| number > 0);
    let sources = &config.settings.sources;
    Settings {
        max_connections: some(config.settings.max_connections),
        shards: some(config.shards),
        tables: config.descriptors,
        listen: config.listen_addresses().collect(),
        listeners: config.listen_addresses().count() as u64,
        pinned: config.is_pinned,
        tls: config.tls.is_some(),
        shutdown: config.shutdown.delay + config.shutdown.deadline,
        admin: config.admin,
        backends: (config.all_backends().count() + config.all_names().count()) as u64,
        sources: some(sources.len()),
        ..Settings::default()
    }
}
