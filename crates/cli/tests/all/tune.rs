//! `throng tune` and `throng bench --record` as people run them. No figure is asserted that the
//! machine decides.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use throng::prelude::*;
use throng::workers::WorkerSettings;
use throng_testkit::{Client, Got, TempFolder, hold_up};

use crate::support::{Served, throng};

/// The variable with the address of the server that is tuned.
const ADDRESS: &str = "THRONG_TEST_TUNED";

/// Runs the server that is tuned at the address of the variable; nothing without it. Its handlers
/// block for 50 ms, and its pool has two workers for them.
#[test]
fn server() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let ask = Ws::new().on_message_blocking(|replies, (), message| {
        hold_up(Duration::from_millis(50));
        replies.send(message);
    });
    let workers = WorkerSettings::default().pool_size(2);
    let server = Server::new(App::new().ws("/ask", ask)).shards(1).workers(workers);
    server.settings_from_env().unwrap().bind(&*address).unwrap().run().unwrap();
}

fn tune(words: &[&str], address: Option<SocketAddr>) -> Output {
    let mut command = throng();
    command.args(["tune", "--quiet"]).args(words).env_remove("THRONG_TUNED");
    command.envs(address.map(|address| (ADDRESS, address.to_string())));
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An address that nothing has.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The flags for the files, which are in `folder`.
fn files(folder: &TempFolder) -> [String; 4] {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    ["--out".to_owned(), file("out.toml"), "--html".to_owned(), file("out.html")]
}

#[test]
fn a_pool_that_is_too_small_is_found() {
    let folder = TempFolder::new("tune-pool");
    let load = "connections = 64\nduration = \"500ms\"\nwarmup = \"100ms\"\n";
    let scenario = folder.write("load.toml", load);
    let address = free_address();
    let url = format!("ws://{address}/ask");
    let program = std::env::current_exe().unwrap();
    let mut words = vec!["--json", "--scenario", scenario.to_str().unwrap(), "--url", &url];
    words.extend(["--only", "workers.pool_size", "--try", "workers.pool_size=32"]);
    let files = files(&folder);
    words.extend(files.iter().map(String::as_str));
    words.extend(["--", program.to_str().unwrap(), "--exact", "tune::server", "--nocapture"]);
    let output = tune(&words, Some(address));
    let errors = text(&output.stderr);
    if output.status.code() == Some(1) {
        // Other work on this machine: the search refuses, and says so.
        let is_limited = errors.contains("while the server is not the limit: machine-limited");
        assert!(is_limited || errors.contains("runs with equal settings differ"), "{errors}");
        println!("not measured: {errors}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let trial = &report["trials"][0];
    assert_eq!(trial["settings"]["workers.pool_size"], "32", "{report}");
    let page = std::fs::read_to_string(folder.join("out.html")).unwrap();
    assert!(page.contains("workers.pool_size=32"), "{page}");
    let is_limited = |why: &Value| why.as_str().is_some_and(|why| why.starts_with("machine-"));
    if trial["judgement"] == "limited" && is_limited(&trial["reason"]) {
        println!("not measured: {report}");
        return;
    }
    // Sixteen times as many workers wait at a time.
    assert_eq!(trial["judgement"], "kept", "{report}");
    assert!(trial["ratio"]["low"].as_f64().unwrap() > 1.0, "{report}");
    if report["confirmation"]["holds"] != true {
        assert_eq!(report["confirmation"]["ratio"], Value::Null, "{report}");
        println!("not measured: {report}");
        return;
    }
    let tuned = std::fs::read_to_string(folder.join("out.toml")).unwrap();
    assert!(tuned.contains("\nworkers.pool_size = 32\n"), "{tuned}");
}

#[test]
fn mistakes_are_refused_before_anything_starts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("ws://{}", listener.local_addr().unwrap());
    let of = |words: &[&str]| tune(words, None);
    for (output, words) in [
        (of(&["--scenario", "chess"]), "chat, ticker"),
        (of(&["--", "/bin/true"]), "--url ws://"),
        (of(&["--url", &taken, "--", "/bin/true"]), "listens at"),
        (of(&["--only", "shard"]), "shard is not tried here"),
    ] {
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(words), "{output:?}");
    }
}

#[test]
fn a_program_that_ends_is_reported_with_its_words() {
    let folder = TempFolder::new("tune-ends");
    let url = format!("ws://{}", free_address());
    let mut words = vec!["--url", &url];
    let files = files(&folder);
    words.extend(files.iter().map(String::as_str));
    words.extend(["--", "sh", "-c", "echo no database >&2; exit 3"]);
    let ended = tune(&words, None);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let errors = text(&ended.stderr);
    assert!(errors.contains("exit status: 3") && errors.contains("no database"), "{errors}");
}

/// The answers of the server that is left behind would be taken for the ones of the next run.
#[test]
fn a_script_that_leaves_its_server_behind_is_refused() {
    let folder = TempFolder::new("tune-left");
    let scenario = folder.write("load.toml", "duration = \"300ms\"\nwarmup = \"0s\"\n");
    let (program, pid) = (std::env::current_exe().unwrap(), folder.join("pid"));
    let script = format!(
        "'{}' --exact tune::server --nocapture & echo $! > '{}'; wait",
        program.display(),
        pid.display()
    );
    let address = free_address();
    let url = format!("ws://{address}/ask");
    let mut words = vec!["--scenario", scenario.to_str().unwrap(), "--url", &url];
    let files = files(&folder);
    words.extend(files.iter().map(String::as_str));
    words.extend(["--", "sh", "-c", &script]);
    let output = tune(&words, Some(address));
    let kill = format!("kill {}", std::fs::read_to_string(pid).unwrap());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("something still listens at"), "{output:?}");
}

/// `throng serve` reads the file after its configuration file and before the environment.
#[test]
fn a_tuned_file_has_precedence_over_the_configuration_file() {
    let folder = TempFolder::new("tune-precedence");
    let config = folder.write("throng.toml", "shards = 1\nbacklog = 100\npin = \"cores\"\n");
    let tuned = folder.write("throng.tuned.toml", "shards = 2\nbacklog = 200\n");
    let mut command = throng();
    command.args(["config", "show", "--json", "--config"]).arg(&config);
    command.env("THRONG_TUNED", &tuned).env("THRONG_BACKLOG", "300");
    let shown: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let value = |key: &str| {
        let all = shown["settings"].as_array().unwrap();
        all.iter().find(|it| it["key"] == key).unwrap()["value"].clone()
    };
    assert_eq!((value("shards"), value("backlog")), (2.into(), 300.into()));
    assert_eq!(value("pin"), "cores");
}

#[test]
fn a_load_is_recorded_from_the_statistics() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let mut client = Client::connect(served.addresses[0], "/echo");
    let mut command = throng();
    let address = served.addresses[0].to_string();
    command.args(["bench", "--record", &address, "--interval", "3s"]);
    let mut recording = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while recording.try_wait().unwrap().is_none() {
        client.send_text(&"x".repeat(100));
        assert_eq!(client.next(), Got::Text("x".repeat(100)));
        // A client that takes its time.
        hold_up(Duration::from_millis(5));
    }
    let output = recording.wait_with_output().unwrap();
    let recorded = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for line in ["mode = \"echo\"", "connections = 1", "maximize = \"latency\""] {
        assert!(recorded.contains(&format!("\n{line}\n")), "{line}: {recorded}");
    }
    // The bytes of the requests for the statistics also count.
    let size = recorded.lines().find_map(|line| line.strip_prefix("size = ")).unwrap();
    assert!((100..=120).contains(&size.parse::<u32>().unwrap()), "{recorded}");
}
