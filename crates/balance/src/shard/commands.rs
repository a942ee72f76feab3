//! Commands of other threads, and what of the configuration a shard keeps.

use throng_io::Driver;
use throng_proto::http1;

use super::BalanceParts;
use super::records::BalanceRecord;
use crate::command::BalanceCommand;
use crate::settings::Configuration;

impl BalanceParts {
    pub(super) fn run_commands<D: Driver>(&mut self, driver: &mut D) {
        let commands: Vec<BalanceCommand> = self.commands.drain().collect();
        for command in commands {
            match command {
                BalanceCommand::Configure(configuration) => {
                    self.limits = limits_of(&configuration);
                    self.response_limits = response_limits_of(&configuration);
                    self.most_connections = most_connections(&configuration, self.descriptors_for);
                    let rate = configuration.settings.close_rate;
                    let bucket = self.bucket(rate);
                    self.orphans.set_rate(rate, bucket);
                    let before = self.configuration.settings.timeouts.tunnel;
                    if before != configuration.settings.timeouts.tunnel {
                        self.look_at_all_tunnels();
                    }
                    self.configuration = configuration;
                    self.memory.forget_limit();
                    let records = &self.records;
                    self.waiting.unbind(|id| match records.at(id.slot()) {
                        Some((at, BalanceRecord::Client(client))) if at == id => {
                            client.exchange.as_ref().and_then(|exchange| exchange.route.clone())
                        }
                        _ => None,
                    });
                }
                BalanceCommand::CloseTunnels { backend, closing, most } => {
                    self.begin_close_job(backend, &closing, most);
                }
                BalanceCommand::KeepTunnels(backend) => {
                    self.close_jobs.retain(|job| !job.is_of(&backend));
                }
                BalanceCommand::Publish(published) => {
                    self.publish();
                    // Who asked may have stopped waiting.
                    let _ = published.send(());
                }
                BalanceCommand::ShutDown { window, deadline } => {
                    self.begin_shutdown(driver, window, deadline)
                }
            }
        }
    }
}

/// Returns `max_connections`, limited by the descriptors.
pub(super) fn most_connections(configuration: &Configuration, descriptors_for: usize) -> usize {
    match configuration.settings.max_connections {
        0 => descriptors_for,
        asked => asked.min(descriptors_for),
    }
}

pub(super) fn limits_of(configuration: &Configuration) -> http1::Limits {
    let settings = &configuration.settings;
    http1::Limits {
        max_header_bytes: settings.max_header_bytes,
        max_headers: settings.max_headers,
        max_body: settings.max_body,
    }
}

/// Returns the limits of responses. Bodies are limited for clients only, not for backends: a body
/// is forwarded as it is received, however long.
pub(super) fn response_limits_of(configuration: &Configuration) -> http1::Limits {
    let settings = &configuration.settings;
    http1::Limits {
        max_header_bytes: settings.max_response_header_bytes,
        max_headers: settings.max_response_headers,
        max_body: u64::MAX,
    }
}
