//! Starting this very binary again, for a part of a benchmark that is to be a process of its own.

use std::io::BufReader;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::wire::{ChildMessage, read_line};
use throng_load::Error;

use super::own::ALL;

/// A process that is wanted. Its standard input and output belong to who starts it, see
/// [`wire`](super::wire); it must end when its input does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A server. It says [`ChildMessage::Listening`](super::wire::ChildMessage), registers every
    /// connection, makes it a member of one channel, and broadcasts as each
    /// [`Order`](super::wire::Order) says.
    Server {
        /// Where to listen; with port 0 on a free port.
        address: String,
        /// Others listen on the same port, and the kernel spreads the subscribers over them.
        share_port: bool,
        /// Event loops.
        shards: usize,
        /// Payload bytes of the message.
        size: usize,
    },
    /// Subscribers, of a broadcast comparison.
    Subscribers {
        /// Where the server listens.
        address: String,
        /// Subscribers of the process.
        subscribers: usize,
        /// Connections to this address from all processes, and the number of this process's first
        /// among them.
        of: usize,
        /// See `of`.
        first: usize,
        /// Payload bytes of the message.
        size: usize,
        /// Longest time without progress while they connect.
        setup_timeout: Duration,
    },
}

/// The command that plays `role`; its standard streams are the caller's to set.
pub(crate) fn command(role: &Role) -> Command {
    // Where this binary cannot be found, starting it fails with a message that names it.
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "lab".into()));
    let mut flags = |word: &str, flags: &[(&str, String)]| {
        command.arg(word);
        for (flag, value) in flags {
            command.arg(flag).arg(value);
        }
    };
    match role {
        Role::Server { address, share_port, shards, size } => flags(
            "own-server",
            &[
                ("--listen", address.clone()),
                ("--share-port", share_port.to_string()),
                ("--shards", shards.to_string()),
                ("--size", size.to_string()),
            ],
        ),
        Role::Subscribers { address, subscribers, of, first, size, setup_timeout } => flags(
            "own-subscribers",
            &[
                ("--url", format!("ws://{address}{ALL}")),
                ("--subscribers", subscribers.to_string()),
                ("--of", of.to_string()),
                ("--first", first.to_string()),
                ("--size", size.to_string()),
                ("--setup-timeout", format!("{}s", setup_timeout.as_secs_f64())),
            ],
        ),
    }
    command
}

/// A server of ours in a process of its own; ended when dropped.
pub(crate) struct OwnServer {
    child: Child,
    /// Where it listens.
    pub address: String,
}

impl OwnServer {
    /// Starts one with so many event loops.
    ///
    /// # Errors
    /// It could not be started, or ended before it listened.
    pub(crate) fn start(shards: usize) -> Result<Self, Error> {
        Self::start_with(shards, &[])
    }

    /// Starts one with further flags of `own-server`.
    ///
    /// # Errors
    /// As [`OwnServer::start`].
    pub(crate) fn start_with(shards: usize, flags: &[String]) -> Result<Self, Error> {
        let cannot = |why: String| Error::Child(format!("cannot start a server to measure: {why}"));
        let address = "127.0.0.1:0".to_owned();
        let mut child = command(&Role::Server { address, share_port: false, shards, size: 0 })
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| cannot(error.to_string()))?;
        let message = child
            .stdout
            .take()
            .map(|output| read_line::<ChildMessage>(&mut BufReader::new(output)));
        let mut server = Self { child, address: String::new() };
        match message {
            Some(Ok(Some(ChildMessage::Listening { address }))) => server.address = address,
            Some(Err(error)) => return Err(cannot(error.to_string())),
            // Its reason is on standard error.
            _ => return Err(cannot("it ended before it listened".to_owned())),
        }
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl super::Server for OwnServer {
    fn address(&self) -> &str {
        &self.address
    }

    fn pid(&self) -> u32 {
        self.pid()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // Its figures have been read; it holds nothing that needs an orderly end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_become_flags() {
        let words = |role| -> Vec<String> {
            command(&role).get_args().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        let address = "127.0.0.1:5".to_owned();
        let role = Role::Server { address: address.clone(), share_port: true, shards: 2, size: 9 };
        let line = words(role).join(" ");
        assert_eq!(line, "own-server --listen 127.0.0.1:5 --share-port true --shards 2 --size 9");
        let setup_timeout = Duration::from_millis(2_500);
        let role = Role::Subscribers {
            address,
            subscribers: 7,
            of: 9,
            first: 2,
            size: 100,
            setup_timeout,
        };
        let line = words(role).join(" ");
        assert!(
            line.contains("--url ws://127.0.0.1:5/all --subscribers 7 --of 9 --first 2"),
            "{line}"
        );
        assert!(line.ends_with("--setup-timeout 2.5s"), "{line}");
    }
}
