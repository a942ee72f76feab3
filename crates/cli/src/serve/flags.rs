//! The flags of `throng serve` that are settings, and the sources of its settings.

use std::path::{Path, PathBuf};

use throng_config::{ConfigError, ConfigErrors, Draft, Sources, read_file, read_file_in_use};

use super::{Settings, TABLE};
use crate::failure::Failure;
use crate::terminal;

/// The flags that are settings; shared by `serve` and `config show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct SettingFlags {
    /// Address and port; may be repeated, or several with commas [default: 127.0.0.1:9001]
    ///
    /// Port 0 takes a free one; unix:PATH is a Unix socket, systemd stands for the sockets that
    /// systemd passed on.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    listen: Vec<String>,
    /// Event loops; 0 = one per usable CPU [default: 0]
    #[arg(long, value_name = "N", hide_short_help = true)]
    shards: Option<String>,
    /// Open connections; 0 = as many as descriptors allow [default: 0]
    #[arg(long, value_name = "N")]
    max_connections: Option<String>,
    /// Descriptor table of an event loop: shared, per-shard (its own, so that the descriptor limit
    /// counts for each), or auto (its own if --max-connections needs it) [default: auto]
    #[arg(long, value_name = "TABLES", hide_short_help = true)]
    descriptors: Option<String>,
    /// I/O backend: auto, epoll, portable, or threads (one per connection) [default: auto]
    #[arg(long, value_name = "IO", hide_short_help = true)]
    io: Option<String>,
    /// Larger messages are closed with 1009; above 4MiB this raises --max-frame-size, too [default:
    /// 4MiB]
    #[arg(long, value_name = "SIZE", hide_short_help = true)]
    max_message_size: Option<String>,
    /// Larger frames are closed with 1009 [default: 4MiB, or --max-message-size if that is more]
    #[arg(long, value_name = "SIZE", hide_short_help = true)]
    max_frame_size: Option<String>,
    /// Rules of the channels that match: slow receivers, history, presence; may be repeated
    ///
    /// For example 'prices.*=latest,max_backlog=64KiB,max_age=5s'. The first rule that matches
    /// applies.
    #[arg(long, value_name = "RULE")]
    channel: Vec<String>,
    /// Share channels with the servers that use this Redis or Valkey
    ///
    /// For example redis://10.0.0.5:6379, several such with commas between them,
    /// redis-sentinel://10.0.0.5:26379,10.0.0.6:26379/mymaster or redis-cluster://10.0.0.5:6379.
    #[arg(long, value_name = "URL")]
    cluster: Option<String>,
    /// Compress for clients that can (permessage-deflate): each message by itself (shared), with
    /// the last 2^BITS bytes as context (window:BITS, 9 to 15), or not [default: off]
    #[arg(long, value_name = "shared|window:BITS|off", hide_short_help = true)]
    deflate: Option<String>,
    /// Serve the files of a directory, at every path that has no other meaning
    #[arg(long, value_name = "PATH")]
    dir: Option<String>,
    /// Serve https and wss with this certificate, in PEM
    ///
    /// Followed by those that lead to a root; several with commas, chosen by the name that a client
    /// asks for.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// Its private key, in PEM and not encrypted; several with commas, in the same order
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Serve metrics and statistics here, for operators, and not at --listen
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
    #[command(flatten)]
    log: crate::log::LogFlags,
    /// Read settings from a TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any setting, for example --set heartbeat.interval=10s; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl SettingFlags {
    /// Reads all sources in their order: the file, the environment, the flags, and then `--set`.
    /// `defaults` override the defaults of the table, because of `reason`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn draft(
        &self,
        reason: &'static str,
        defaults: &[(&str, &str)],
    ) -> Result<Draft, Failure> {
        self.draft_by(read_file, reason, defaults)
    }

    /// Does the same while the server runs, when the file may be incomplete.
    ///
    /// # Errors
    /// The file cannot be read, or looks incomplete.
    pub(super) fn draft_in_use(
        &self,
        reason: &'static str,
        defaults: &[(&str, &str)],
    ) -> Result<Draft, Failure> {
        self.draft_by(read_file_in_use, reason, defaults)
    }

    /// Returns the path of the configuration file.
    pub(super) fn file(&self) -> Option<PathBuf> {
        Sources::path(self.config.as_deref())
    }

    fn draft_by(
        &self,
        read: fn(&Path) -> Result<String, ConfigError>,
        reason: &'static str,
        defaults: &[(&str, &str)],
    ) -> Result<Draft, Failure> {
        let mut sources = Sources::new(&TABLE);
        if let Some(path) = self.file() {
            let text = read(&path).map_err(ConfigErrors::from)?;
            sources.file(&path.display().to_string(), &text);
        }
        sources.environment(std::env::vars_os());
        for (key, flag, text) in [
            ("shards", "--shards", &self.shards),
            ("max_connections", "--max-connections", &self.max_connections),
            ("descriptors", "--descriptors", &self.descriptors),
            ("io", "--io", &self.io),
            ("dir", "--dir", &self.dir),
            ("tls.cert", "--tls-cert", &self.tls_cert),
            ("tls.key", "--tls-key", &self.tls_key),
            ("admin.listen", "--admin", &self.admin),
            ("cluster.url", "--cluster", &self.cluster),
            ("max_message_size", "--max-message-size", &self.max_message_size),
            ("max_frame_size", "--max-frame-size", &self.max_frame_size),
        ] {
            if let Some(text) = text {
                sources.flag(flag, key, text);
            }
        }
        sources.flags("--listen", "listen", &self.listen);
        self.log.add_to(&mut sources);
        sources.flags("--channel", "channels", &self.channel);
        if let Some(deflate) = &self.deflate {
            set_deflate(&mut sources, deflate)?;
        }
        for pair in &self.set {
            sources.set(pair);
        }
        for (key, text) in defaults {
            sources.default_to(key, text, reason);
        }
        // A message may come in a single frame.
        sources.raise("max_frame_size", "max_message_size");
        Ok(sources.finish())
    }

    /// Returns the checked settings, and prints warnings. `defaults` override the defaults of the
    /// table, because of `reason`.
    ///
    /// # Errors
    /// All mistakes, with their place and remedy.
    pub fn settings(
        &self,
        reason: &'static str,
        defaults: &[(&str, &str)],
    ) -> Result<Settings, Failure> {
        let draft = self.draft(reason, defaults)?;
        let settings = Settings::from_draft(draft)?;
        settings.warnings.iter().for_each(terminal::error_line);
        Ok(settings)
    }
}

/// Takes the value of `--deflate`, which stands for three settings.
fn set_deflate(sources: &mut Sources, text: &str) -> Result<(), ConfigErrors> {
    const FLAG: &str = "--deflate";
    let (mode, bits) = match text.trim().split_once(':') {
        None if text == "off" => {
            sources.flag(FLAG, "deflate.enabled", "false");
            return Ok(());
        }
        None if text == "shared" => (text, None),
        Some(("window", bits)) => ("window", Some(bits)),
        _ => {
            return Err(ConfigError::message(format_args!(
                "{FLAG}: it is {text:?}: write shared, window:BITS with 9 to 15 bits, or off"
            ))
            .into());
        }
    };
    sources.flag(FLAG, "deflate.enabled", "true");
    sources.flag(FLAG, "deflate.mode", mode);
    if let Some(bits) = bits {
        sources.flag(FLAG, "deflate.window_bits", bits);
    }
    Ok(())
}
