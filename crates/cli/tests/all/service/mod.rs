//! The programs as a service, as systemd, containers and Kubernetes see them.
#![cfg(target_os = "linux")]

#[cfg(feature = "acme")]
mod units;

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use throng_testkit::TempFolder;

use crate::support::TIMEOUT;

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

/// The socket of a service manager, and its folder, unless another one has it.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _folder: Option<TempFolder>,
}

impl Manager {
    fn new(name: &str) -> Self {
        let folder = TempFolder::new(name);
        let manager = Self::at(folder.join("notify"));
        Self { _folder: Some(folder), ..manager }
    }

    fn start(&self, words: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(words).env("NOTIFY_SOCKET", &self.path).env("WATCHDOG_USEC", "400000");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    /// Creates it at the given path.
    fn at(path: PathBuf) -> Self {
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, path, _folder: None }
    }

    /// The next message that has this line.
    fn message(&self, line: &str) -> String {
        loop {
            let mut buffer = [0; 4096];
            let length = match self.socket.recv(&mut buffer) {
                // A receive with a timeout is interrupted when the process is stopped (signal(7)).
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
        for path in ["/livez", "/readyz"] {
            let probe = format!("httpGet: {{path: {path}, port: admin}}");
            assert!(text.contains(&probe), "{file}: {probe}");
        }
        let needed: u64 = lengths.iter().map(|key| seconds(key)).sum();
        let grace = text.lines().find_map(|line| {
            line.trim().strip_prefix("terminationGracePeriodSeconds: ")?.parse::<u64>().ok()
        });
        assert!(grace.unwrap() >= needed + 5, "{file}: {needed} s are needed");
    }
}

#[test]
fn the_image_has_no_flag_that_beats_a_variable_or_a_file() {
    let image = packaging("container/Containerfile");
    for line in [
        "CMD [\"serve\"]",
        "ENV THRONG_CONFIG=/etc/throng/throng.toml",
        "COPY packaging/container/throng.toml /etc/throng/throng.toml",
    ] {
        assert!(image.lines().any(|found| found == line), "{line}: {image}");
    }
    assert!(image.contains("CMD [\"/throng\", \"health\"]") && !image.contains("THRONG_LISTEN"));
    assert!(image.contains(" /etc/ssl/certs/ca-certificates.crt\n"), "authorities of others");
    let settings =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/container/throng.toml");
    let programs = if cfg!(feature = "balance") { &["serve", "balance"][..] } else { &["serve"] };
    for program in programs {
        let listen = |variable: Option<&str>| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
            command.args(["config", "show", program]).env("THRONG_CONFIG", &settings);
            command.env("THRONG_BACKENDS", "127.0.0.1:1");
            command.envs(variable.map(|value| ("THRONG_LISTEN", value)));
            let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let line = shown.lines().find(|line| line.starts_with("listen = ")).unwrap();
            line.split('#').next().unwrap().trim().to_owned()
        };
        assert_eq!(listen(None), "listen = [\"0.0.0.0:9001\"]");
        assert_eq!(listen(Some("127.0.0.1:7")), "listen = [\"127.0.0.1:7\"]");
    }
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
        ("tokens", cfg!(feature = "tokens")),
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
    let folder = TempFolder::new("config");
    let file = folder.write("serve.toml", "shards = 3\n");
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
    let folder = TempFolder::new("man");
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
}
