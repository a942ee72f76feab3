//! `throng service` with Wine's service manager.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use super::Wine;
use crate::layers::examples::greeting::{self, Url};

/// The name of the service.
const NAME: &str = "throng-xtask";

/// The time for an echo, and for a drain.
const LIMIT: Duration = Duration::from_secs(60);

/// Installs a service, starts it, has it echo a text, stops it, and removes it.
pub(super) fn run(wine: &Wine<'_>) -> Result<(), String> {
    let folder = wine.folder();
    let log = folder.join("service.log");
    let _ = std::fs::remove_file(&log);
    let address = free_address().map_err(|error| error.to_string())?;
    let listen = address.to_string();
    let throng = wine.throng();
    let service = |words: &[&str]| step(wine, throng.as_ref(), words, &folder);
    // Of a run that failed.
    let _ = service(&["service", "uninstall", "--name", NAME]);
    service(
        &[
            &["service", "install", "--name", NAME][..],
            &["serve", "--listen", &listen, "--log-file", "service.log"],
        ]
        .concat(),
    )?;
    let outcome = serve(wine, address, &folder, &log);
    service(&["service", "uninstall", "--name", NAME])?;
    outcome
}

fn serve(wine: &Wine<'_>, address: SocketAddr, folder: &Path, log: &Path) -> Result<(), String> {
    let manage = |words: &[&str]| step(wine, "net".as_ref(), words, folder);
    manage(&["start", NAME])?;
    let url = Url::of_websocket(address, "/echo");
    let echoed = until(|| {
        let answer = greeting::connect(&url).and_then(|it| greeting::exchange(it, &url, "hello"));
        answer.ok().filter(|answer| answer == "hello").map(|_| Ok(()))
    });
    manage(&["stop", NAME])?;
    echoed.unwrap_or_else(|| Err("it does not echo".to_owned()))?;
    // Wine ends its services with the last other program, so another one runs until it has drained.
    let stopped = until(|| {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let has_stopped = text.contains("\"event\":\"stopped\"");
        match step(wine, "sc".as_ref(), &["query", NAME], folder) {
            Ok(state) if state.contains("STOPPED") && has_stopped => Some(Ok(())),
            Ok(_) => None,
            Err(why) => Some(Err(why)),
        }
    });
    stopped.unwrap_or_else(|| Err("it has not stopped, or not drained before".to_owned()))
}

/// Runs a program that must succeed; returns its output.
fn step(wine: &Wine<'_>, program: &OsStr, words: &[&str], folder: &Path) -> Result<String, String> {
    let mut command = wine.start(program);
    let output = command.args(words).current_dir(folder).output();
    let output = output.map_err(|error| format!("cannot run Wine: {error}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("`{}` ended with {}: {text}", words.join(" "), output.status)),
    }
}

/// Calls `work` until it returns something, or the time is over.
fn until<T>(mut work: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let done = work();
        if done.is_some() || Instant::now() >= deadline {
            return done;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
