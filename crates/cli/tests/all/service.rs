//! The programs as a service: what systemd, containers and Kubernetes see of them.
#![cfg(target_os = "linux")]

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Served, TIMEOUT};

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("throng-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, path }
    }

    fn start(&self, words: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(words).env("NOTIFY_SOCKET", &self.path).env("WATCHDOG_USEC", "400000");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    /// The next message that has this line.
    fn message(&self, line: &str) -> String {
        loop {
            let mut buffer = [0; 4096];
            let length = match self.socket.recv(&mut buffer) {
                // A receive with a timeout does not outlive a stop of the process (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                received => received.unwrap(),
            };
            let text = str::from_utf8(&buffer[..length]).unwrap();
            if text.lines().any(|found| found == line) {
                return text.to_owned();
            }
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn a_service_manager_learns_of_start_watchdog_reload_and_end() {
    let programs = [
        ("serve", &["serve", "--listen", "127.0.0.1:0"][..]),
        #[cfg(feature = "balance")]
        ("balance", &["balance", "--listen", "127.0.0.1:0", "--backend", "127.0.0.1:1"]),
    ];
    for (name, words) in programs {
        let manager = Manager::new(&format!("notify-{name}"));
        let mut running = manager.start(&[words, &["--shards", "2"]].concat());
        manager.message("READY=1");
        manager.message("WATCHDOG=1");
        running.signal("HUP");
        let reload = manager.message("RELOADING=1");
        assert!(reload.contains("MONOTONIC_USEC="), "{reload}");
        manager.message("READY=1");
        manager.message("WATCHDOG=1");
        running.signal("TERM");
        manager.message("STOPPING=1");
        assert!(running.0.wait().unwrap().success());
    }
}

fn packaging(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    std::fs::read_to_string(root.join(path)).unwrap()
}

#[test]
fn the_command_lines_of_the_units_start_a_service() {
    let units = [
        ("throng.service", "listen = \"127.0.0.1:0\"\n"),
        #[cfg(feature = "balance")]
        ("throng-balance.service", "listen = \"127.0.0.1:0\"\nbackends = [\"127.0.0.1:1\"]\n"),
    ];
    for (unit, settings) in units {
        let text = packaging(&format!("systemd/{unit}"));
        let file = std::env::temp_dir().join(format!("{unit}-{}.toml", std::process::id()));
        std::fs::write(&file, settings).unwrap();
        let file_name = file.to_str().unwrap();
        let words = |key: &str| -> Vec<String> {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            let words = line.strip_prefix("/usr/bin/throng ").unwrap().split(' ');
            let word = |word: &str| match word.starts_with("/etc/throng/") {
                true => file_name.to_owned(),
                false => word.to_owned(),
            };
            words.map(word).collect()
        };
        let mut check = Command::new(env!("CARGO_BIN_EXE_throng"));
        assert!(check.args(words("ExecStartPre=")).output().unwrap().status.success());
        let manager = Manager::new(unit);
        let words = words("ExecStart=");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _running = manager.start(&words);
        manager.message("READY=1");
        std::fs::remove_file(file).unwrap();
    }
}

/// Returns the values of a key in a unit.
fn values<'t>(unit: &'t str, key: &str) -> Vec<&'t str> {
    let values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.collect()
}

#[test]
fn the_socket_unit_listens_where_the_server_does_by_default() {
    let unit = packaging("systemd/throng.socket");
    let default = |name: &str| throng_cli::serve::TABLE.key(name).unwrap().default;
    assert_eq!(values(&unit, "ListenStream"), [default("listen")]);
    assert_eq!(values(&unit, "Backlog"), [default("backlog")]);
    assert_eq!(values(&unit, "WantedBy"), ["sockets.target"]);
}

#[test]
fn systemd_understands_every_line_of_the_units() {
    let analyze = Path::new("/usr/bin/systemd-analyze");
    if !analyze.exists() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("throng-units-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let units =
        ["throng.service", "throng-balance.service", "throng.socket", "throng-balance.socket"];
    let paths = units.map(|unit| {
        let text = packaging(&format!("systemd/{unit}"));
        let path = folder.join(unit);
        // It looks for the programs, too.
        let text = text.replace("/usr/bin/throng", env!("CARGO_BIN_EXE_throng"));
        std::fs::write(&path, text).unwrap();
        path
    });
    let output = Command::new(analyze).args(["verify", "--man=no"]).args(&paths).output().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let complaints = String::from_utf8(output.stderr).unwrap();
    // Where systemd is older than that type, the line before is in force.
    let known = |line: &&str| !line.ends_with("service type, ignoring: notify-reload");
    let of_ours = |line: &&str| units.iter().any(|unit| line.contains(unit));
    assert_eq!(complaints.lines().filter(of_ours).filter(known).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_manifests_have_valid_settings_and_enough_time_to_end() {
    let manifests = [
        ("serve.yaml", "serve", &["drain.delay", "drain.window", "drain.grace"][..]),
        #[cfg(feature = "balance")]
        ("balance.yaml", "balance", &["shutdown.delay", "shutdown.deadline"]),
    ];
    for (file, program, lengths) in manifests {
        let text = packaging(&format!("kubernetes/{file}"));
        let variables = text.lines().filter_map(|line| {
            let (name, rest) = line.trim().strip_prefix("- {name: ")?.split_once(", value: \"")?;
            Some((name, rest.strip_suffix("\"}")?))
        });
        let secret = |line: &str| -> Option<_> {
            let (name, _) = line.trim().strip_prefix("- {name: ")?.split_once(", valueFrom: ")?;
            Some((name.to_owned(), "0123456789abcdef".to_owned()))
        };
        let secrets: Vec<(String, String)> = text.lines().filter_map(secret).collect();
        let secrets = secrets.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let variables: Vec<(&str, &str)> = variables.chain(secrets).collect();
        assert!(variables.len() >= 4, "{file}");
        let throng = |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
            command.args(words).envs(variables.iter().copied());
            command.env("KUBERNETES_SERVICE_HOST", "10.0.0.1").output().unwrap()
        };
        let output = throng(&["config", "check", program]);
        assert!(output.status.success() && output.stderr.is_empty(), "{file}: {output:?}");
        let shown = throng(&["config", "show", "--json", program]).stdout;
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
        let seconds = |key: &str| -> u64 {
            let settings = shown["settings"].as_array().unwrap();
            let setting = settings.iter().find(|setting| setting["key"] == key).unwrap();
            match setting["value"].as_str().unwrap() {
                "auto" => 5,
                text => text.strip_suffix('s').unwrap().parse().unwrap(),
            }
        };
        let port = |key: &str| -> String {
            let settings = shown["settings"].as_array().unwrap();
            let setting = settings.iter().find(|setting| setting["key"] == key).unwrap();
            setting["value"].to_string().rsplit(':').next().unwrap().trim_matches(['"', ']']).into()
        };
        for (name, key) in [("http", "listen"), ("admin", "admin.listen")] {
            let line = format!("- {{name: {name}, containerPort: {}}}", port(key));
            assert!(text.contains(&line), "{file}: {line}");
        }
        let needed: u64 = lengths.iter().map(|key| seconds(key)).sum();
        let grace = text.lines().find_map(|line| {
            line.trim().strip_prefix("terminationGracePeriodSeconds: ")?.parse::<u64>().ok()
        });
        assert!(grace.unwrap() >= needed + 5, "{file}: {needed} s are needed");
    }
}

#[test]
fn health_says_whether_a_server_answers() {
    let health = |address: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        let output = command.args(["health", "--ready", address]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    assert_eq!(health(&served.addresses[0].to_string()), (Some(0), String::new()));
    let (code, error) = health("127.0.0.1:1");
    assert_eq!(code, Some(1));
    assert!(error.contains("127.0.0.1:1 is not healthy"), "{error}");
    assert_eq!(health("127.0.0.1:x").0, Some(2));
}

#[test]
fn the_version_has_the_commit_and_the_target() {
    let version = |flag: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        String::from_utf8(command.arg(flag).output().unwrap().stdout).unwrap()
    };
    let short = version("-V");
    let prefix = format!("throng {} (", env!("CARGO_PKG_VERSION"));
    assert!(short.starts_with(&prefix) && short.ends_with(")\n"), "{short}");
    assert_eq!(short.lines().count(), 1, "{short}");
    let of_a_command = Command::new(env!("CARGO_BIN_EXE_throng")).args(["serve", "-V"]).output();
    assert!(String::from_utf8(of_a_command.unwrap().stdout).unwrap().starts_with("throng"));
    let long = version("--version");
    let features: Vec<_> = [
        ("acme", cfg!(feature = "acme")),
        ("balance", cfg!(feature = "balance")),
        ("redis", cfg!(feature = "redis")),
        ("tls", cfg!(feature = "tls")),
    ]
    .into_iter()
    .filter_map(|(name, is_on)| is_on.then_some(name))
    .collect();
    let features = format!("features: {}\n", features.join(" "));
    for part in ["commit: ", "target: ", "linux", &features] {
        assert!(long.contains(part), "{long}");
    }
}

#[test]
fn the_environment_names_the_file_and_what_it_has_by_mistake_is_a_warning() {
    let file = std::env::temp_dir().join(format!("throng-config-{}", std::process::id()));
    std::fs::write(&file, "shards = 3\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_throng"))
        .args(["config", "show", "serve", "--origin"])
        .env("THRONG_CONFIG", &file)
        .env("THRONG_SHARD", "5")
        .env("THRONG_VERSION", "1.2.3")
        .output()
        .unwrap();
    let [shown, warnings] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{warnings}");
    let shards = shown.lines().find(|line| line.starts_with("shards = 3"));
    let named = file.display().to_string();
    assert!(shards.is_some_and(|line| line.contains(&named)), "{shown}");
    for words in ["did you mean THRONG_SHARDS?", "THRONG_VERSION"] {
        assert!(warnings.contains(words), "{warnings}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn completions_and_manual_pages_have_every_command() {
    let throng = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_throng")).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for shell in ["bash", "zsh", "fish"] {
        let text = throng(&["generate", "completions", shell]);
        assert!(text.contains("serve") && text.contains("log-level"), "{shell}: {text}");
        assert!(text.contains("balance") || !cfg!(feature = "balance"), "{shell}: {text}");
    }
    let folder = std::env::temp_dir().join(format!("throng-man-{}", std::process::id()));
    throng(&["generate", "man", folder.to_str().unwrap()]);
    let pages = [
        "throng.1",
        "throng-serve.1",
        #[cfg(feature = "balance")]
        "throng-balance.1",
        "throng-cluster-status.1",
    ];
    for page in pages {
        let text = std::fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}: {text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
