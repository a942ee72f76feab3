//! The server under test: `throng serve` as it is released, built with the profile `dist`.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{cargo, end_tree, last_lines, run_step, wait};
use crate::outcome::Stop;
use crate::site::Site;

/// Time limit of a build with link-time optimisation on two slow cores, beside another layer.
const BUILD: Duration = Duration::from_secs(1800);

/// A running server, until it is stopped or dropped.
pub(crate) struct Server {
    /// The address on which it listens.
    pub(crate) address: SocketAddr,
    child: Option<Child>,
    printed: Option<Receiver<String>>,
    log: String,
}

impl Server {
    /// Builds the server if needed, and starts it on a free loopback port with these
    /// additional flags.
    pub(crate) fn start(site: &Site, flags: &[&str]) -> Result<Server, Stop> {
        if let Some(address) = site.server {
            return Ok(Server { address, child: None, printed: None, log: String::new() });
        }
        println!("building the server (profile dist)");
        Server::build(site)?;
        let mut command = Command::new(site.target.join("dist/throng"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(flags);
        Server::spawn(command, "throng serve")
    }

    /// Builds the server, unless an external one is tested.
    pub(crate) fn build(site: &Site) -> Result<(), Stop> {
        if site.server.is_some() {
            return Ok(());
        }
        let build = ["build", "--profile", "dist", "--quiet", "--package", "throng-cli"];
        Ok(run_step(cargo(site).args(build), BUILD)?)
    }

    /// Starts a program and waits until it prints a loopback address.
    pub(crate) fn spawn(command: Command, name: &str) -> Result<Server, Stop> {
        Server::spawn_and_find(command, name, "")
    }

    /// Starts `throng balance`, which must have been built, with an admin server on a free loopback
    /// port, whose address is the server's.
    pub(crate) fn start_balancer(site: &Site, flags: &[String]) -> Result<Server, Stop> {
        let mut command = Command::new(site.target.join("dist/throng"));
        command.args(["balance", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(flags);
        Server::spawn_and_find(command, "throng balance", "admin: ")
    }

    /// Starts a program and waits until it prints a loopback address in a line with this text.
    fn spawn_and_find(mut command: Command, name: &str, text: &str) -> Result<Server, Stop> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let (lines, printed) = channel();
        follow(child.stdout.take(), lines.clone());
        follow(child.stderr.take(), lines);
        let mut log = String::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match printed.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    log.push_str(&line);
                    if let Some(address) = loopback_address(&line).filter(|_| line.contains(text)) {
                        return Ok(Server {
                            address,
                            child: Some(child),
                            printed: Some(printed),
                            log,
                        });
                    }
                }
                Err(_) => {
                    end_tree(&mut child);
                    return Err(Stop::Failed(format!(
                        "{name} did not say where it listens; it printed:\n{log}"
                    )));
                }
            }
        }
    }

    /// Shuts the server down as an operator does, and checks that it was running and exits with 0.
    pub(crate) fn stop(self) -> Result<(), String> {
        self.stop_by("TERM")
    }

    /// Shuts the server down by a signal, and checks that it was running and exits with 0.
    pub(crate) fn stop_by(mut self, signal: &str) -> Result<(), String> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!(
                "the server had already ended, with {status}:\n{}",
                self.last_words()
            ));
        }
        let asked =
            Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        asked.map_err(|error| format!("cannot run kill: {error}"))?;
        let status =
            wait(&mut child, Duration::from_secs(60)).map_err(|why| format!("the server {why}"))?;
        if status.success() {
            return Ok(());
        }
        Err(format!("the server ended with {status} after SIG{signal}:\n{}", self.last_words()))
    }

    fn last_words(&mut self) -> String {
        if let Some(printed) = self.printed.take() {
            self.log.extend(printed.try_iter());
        }
        last_lines(&self.log, 20)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            end_tree(child);
        }
    }
}

/// Forwards lines as they come, so that the child never blocks on a full pipe.
fn follow(pipe: Option<impl Read + Send + 'static>, lines: Sender<String>) {
    thread::spawn(move || {
        let Some(pipe) = pipe else { return };
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                // The receiver is gone; keep draining the pipe.
            }
            line.clear();
        }
    });
}

/// Finds the first `127.x.y.z:port` in a line, ignoring colour codes and a URL around it.
fn loopback_address(line: &str) -> Option<SocketAddr> {
    let start = line.find("127.")?;
    let end = line[start..].find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':');
    let text = &line[start..end.map_or(line.len(), |end| start + end)];
    text.trim_end_matches(['.', ':']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_inside_a_sentence() {
        let expected = Some("127.0.0.1:9001".parse().unwrap());
        assert_eq!(
            loopback_address("listening on http://127.0.0.1:9001/ with 2 shards\n"),
            expected
        );
        assert_eq!(loopback_address("ws://127.0.0.1:9001."), expected);
        assert_eq!(loopback_address("127.0.0.1:9001\n"), expected);
        assert_eq!(loopback_address("loopback is 127.0.0.1\n"), None);
    }
}
