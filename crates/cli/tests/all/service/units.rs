//! The units, as systemd starts them: in a mount namespace with their folders, with their user and
//! privileges, under a stand-in for the manager. `docs/operations.md` lists the checks that need
//! systemd itself.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use throng_testkit::{TempFolder, eventually, read_head};

use super::{Manager, Running, packaging};
use crate::support::{dial, may_unshare};

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
        assert!(std::env::var_os("TEST_PEERS").is_none(), "install systemd for systemd-analyze");
        println!("skipped: there is no systemd-analyze (Debian's package systemd)");
        return;
    }
    let folder = TempFolder::new("units");
    let units =
        ["throng.service", "throng-balance.service", "throng.socket", "throng-balance.socket"];
    let paths = units.map(|unit| {
        let text = packaging(&format!("systemd/{unit}"));
        // The unit also looks for the programs.
        let text = text.replace("/usr/bin/throng", env!("CARGO_BIN_EXE_throng"));
        folder.write(unit, text)
    });
    let output = Command::new(analyze).args(["verify", "--man=no"]).args(&paths).output().unwrap();
    let complaints = String::from_utf8(output.stderr).unwrap();
    // If systemd is older than that type, the line before it applies.
    let known = |line: &&str| !line.ends_with("service type, ignoring: notify-reload");
    let of_ours = |line: &&str| units.iter().any(|unit| line.contains(unit));
    assert_eq!(complaints.lines().filter(of_ours).filter(known).collect::<Vec<_>>(), [""; 0]);
}

/// A user without an account on this machine.
const USER: u32 = 64_321;

/// A unit in its sandbox.
struct Sandbox {
    unit: &'static str,
    text: String,
    folder: TempFolder,
    manager: Manager,
}

impl Sandbox {
    /// Returns the sandbox of a unit, whose settings are in a file of this name; or `None` if this
    /// process may not create one.
    fn new(unit: &'static str, name: &str, settings: &str) -> Option<Self> {
        if !may_unshare(&["--mount"]) {
            return None;
        }
        let folder = TempFolder::new(name);
        std::fs::create_dir(folder.join("settings")).unwrap();
        let manager = Manager::at(folder.join("notify"));
        std::fs::set_permissions(&manager.path, PermissionsExt::from_mode(0o777)).unwrap();
        let sandbox = Self { unit, text: packaging(&format!("systemd/{unit}")), folder, manager };
        let command = sandbox.exec_start();
        let file = command.iter().find_map(|word| word.strip_prefix("/etc/throng/")).unwrap();
        sandbox.write(&format!("settings/{file}"), settings);
        Some(sandbox)
    }

    /// Writes a file into its folder, for its owner alone.
    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        if name.starts_with("settings/") {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        }
    }

    fn exec_start(&self) -> Vec<String> {
        let [line] = values(&self.text, "ExecStart")[..] else { panic!("one ExecStart=") };
        line.replace("/usr/bin/throng", "/usr/local/bin/throng")
            .split(' ')
            .map(String::from)
            .collect()
    }

    /// A folder of the unit, with its mode.
    fn folders(&self, kind: &str, above: &str) -> String {
        let mode = values(&self.text, &format!("{kind}DirectoryMode"));
        let mode = mode.first().copied().unwrap_or("0755");
        let names = values(&self.text, &format!("{kind}Directory"));
        let names = names.iter().flat_map(|names| names.split(' '));
        names.map(|name| format!("{mode}:{above}/{name} ")).collect()
    }

    /// A command in the sandbox.
    fn command(&self, words: &[String]) -> Command {
        // The stand-in does these for every unit.
        for line in ["ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes"] {
            assert!(self.text.lines().any(|found| found == line), "{line}");
        }
        let capability = |text: &&str| text.strip_prefix("CAP_").map(str::to_lowercase);
        let capabilities = values(&self.text, "AmbientCapabilities");
        let capabilities: Vec<_> = capabilities.iter().filter_map(capability).collect();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        // The socket of the socket unit is passed on in place of standard input.
        let script = include_str!("sandbox.sh");
        command.arg(script.replace("\"$@\"\n", "\"$@\" 3<&0 </dev/null\n")).arg("sh").args(words);
        command
            .env("PROGRAM", env!("CARGO_BIN_EXE_throng"))
            .env("UNIT", self.unit)
            .env("WORK", &*self.folder)
            .env("USER_ID", USER.to_string())
            .env("UMASK", values(&self.text, "UMask")[0])
            .env(
                "CAPABILITIES",
                capabilities.iter().map(|it| format!(",+{it}")).collect::<String>(),
            )
            .env("STATE", self.folders("State", "/var/lib"))
            .env("LOGS", self.folders("Logs", "/var/log"))
            .env("RUNTIME", self.folders("Runtime", "/run"))
            .env("NOTIFY_SOCKET", "/run/systemd/notify")
            .env("WATCHDOG_USEC", "400000");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Runs a command of the program in the sandbox. Returns its exit code and output.
    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        let words: Vec<_> = words.iter().copied().map(String::from).collect();
        let output = self.command(&words).stdout(Stdio::piped()).output().unwrap();
        // A second sandbox has its own copy of /etc.
        std::fs::remove_dir_all(self.folder.join("etc")).unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    /// Starts the unit's command, with a socket of its socket unit if there is one.
    fn start(&self, socket: Option<TcpListener>) -> Started<'_> {
        let log = std::fs::File::create(self.folder.join("log")).unwrap();
        let mut command = self.command(&self.exec_start());
        if let Some(socket) = socket {
            command.stdin(Stdio::from(OwnedFd::from(socket))).env("LISTEN_FDS", "1");
        }
        Started { process: Running(command.stderr(log).spawn().unwrap()), sandbox: self }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }
}

/// The main process of a unit.
struct Started<'a> {
    process: Running,
    sandbox: &'a Sandbox,
}

impl Started<'_> {
    /// Waits until it is ready and feeds its watchdog, reloads it as the unit specifies, and stops
    /// it.
    fn live(mut self, during: impl FnOnce(&Self)) {
        let Sandbox { manager, text, .. } = self.sandbox;
        self.ready();
        manager.message("WATCHDOG=1");
        during(&self);
        let reload = values(text, "ExecReload")[0].replace("$MAINPID", &self.pid());
        assert!(Command::new("sh").args(["-c", &reload]).status().unwrap().success());
        let reload = manager.message("RELOADING=1");
        assert!(reload.contains("MONOTONIC_USEC="), "{reload}");
        manager.message("READY=1");
        self.process.signal("TERM");
        manager.message("STOPPING=1");
        assert_eq!(self.process.0.wait().unwrap().code(), Some(0), "{}", self.sandbox.log());
        // Standard error has only its first lines: no path was refused.
        let log = self.sandbox.log();
        assert!(!log.contains("cannot be written") && !log.contains("os error 30"), "{log}");
    }

    fn ready(&mut self) {
        // A process that ends sends nothing to the manager.
        let ended = self.process.0.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", self.sandbox.log());
        self.sandbox.manager.message("READY=1");
    }

    fn pid(&self) -> String {
        self.process.0.id().to_string()
    }

    /// A file as the process sees it.
    fn file(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.pid()).join("root").join(path.trim_start_matches('/'))
    }
}

/// A loopback address of the test.
fn own_address(number: u8) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high | 128, low, number)
}

/// Returns the block of code in a document that has this text.
fn block(document: &str, text: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let document = std::fs::read_to_string(root.join(document)).unwrap();
    let block = document.split("```").skip(1).step_by(2).find(|block| block.contains(text));
    block.unwrap_or_else(|| panic!("{text}")).split_once('\n').unwrap().1.to_owned()
}

/// The settings that `docs/tls.md` recommends for an authority, at an address of the test and with
/// an unreachable directory.
fn with_acme(address: Ipv4Addr) -> String {
    let text = block("tls.md", "dir = \"/var/lib/throng/acme\"");
    let text = text.replace("0.0.0.0", &address.to_string());
    let text: String = text.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect();
    // This machine may lack the system's authorities.
    format!("{text}ca = \"/etc/throng/ca.pem\"\ndirectory = \"https://{address}:9/dir\"\n")
}

#[test]
fn a_unit_has_a_certificate_of_an_authority_in_its_sandbox() {
    let settings = with_acme(own_address(1));
    let serve = format!(
        "{}\n[admin]\nlisten = \"127.0.0.1:0\"\n[log]\nfile = \"/var/log/throng/serve.log\"\n",
        settings.replace("listen = [", "listen = [\"unix:/run/throng/throng.sock\", ")
    );
    let balance = with_acme(own_address(2));
    let balance = format!(
        "backends = [\"127.0.0.1:1\"]\n{balance}[log]\nfile = \"/var/log/throng/balance.log\"\n"
    );
    let units = [
        ("throng.service", "serve", serve),
        #[cfg(feature = "balance")]
        ("throng-balance.service", "balance", balance),
    ];
    for (unit, program, settings) in units {
        let Some(sandbox) = Sandbox::new(unit, &format!("acme-unit-{program}"), &settings) else {
            return;
        };
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        sandbox.write("settings/ca.pem", made.cert.pem());
        let file = format!("/etc/throng/{program}.toml");
        let check = ["/usr/local/bin/throng", "config", "check", program, "--config", &file];
        let (code, printed) = sandbox.run(&check);
        assert_eq!(code, Some(0), "{unit}: {printed}");
        sandbox.start(None).live(|started| {
            let log = started.file(&format!("/var/log/throng/{program}.log"));
            // It has tried the write, so only the unreachable authority is left.
            eventually("it asks the authority", || {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                let mut lines = log.lines().filter(|line| line.contains("certificate.not_issued"));
                lines.next().is_some_and(|line| line.contains("refused"))
            });
            let folder = started.file("/var/lib/throng/acme");
            let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            let home = std::fs::metadata(started.file("/var/lib/throng")).unwrap();
            assert_eq!(home.permissions().mode() & 0o777, 0o700, "the home has keys");
            if program == "serve" {
                let socket = std::fs::metadata(started.file("/run/throng/throng.sock")).unwrap();
                assert_eq!(socket.permissions().mode() & 0o777, 0o660);
            }
        });

        // Both the check and the start find that a unit without the folder cannot work.
        let mut sandbox = Sandbox::new(unit, &format!("acme-none-{program}"), &settings).unwrap();
        sandbox.write("settings/ca.pem", made.cert.pem());
        sandbox.text = sandbox.text.replace("\nStateDirectory=throng\n", "\n");
        let start = sandbox.exec_start();
        let start: Vec<&str> = start.iter().map(String::as_str).collect();
        for words in [&check[..], &start[..]] {
            let (code, printed) = sandbox.run(words);
            assert_eq!(code, Some(2), "{unit}: {printed}");
            let is_named =
                printed.contains("/var/lib/throng/acme") && printed.contains("StateDirectory=");
            assert!(is_named, "{unit}: {printed}");
        }
    }
}

#[test]
fn a_unit_accepts_on_the_socket_of_its_socket_unit() {
    let settings = "listen = \"systemd\"\n";
    let Some(sandbox) = Sandbox::new("throng.service", "socket-unit", settings) else { return };
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    sandbox.start(Some(socket)).live(|_| {
        let mut stream = dial(address);
        let request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
        std::io::Write::write_all(&mut stream, request).unwrap();
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_unit_reads_certificates_of_the_hook_and_credentials_of_systemd() {
    let address = SocketAddr::from((own_address(3), 443));
    let drop_in = block("operations.md", "LoadCredential=");
    let admin =
        block("operations.md", "/run/credentials/").replace("127.0.0.1:9101", "127.0.0.1:0");
    let certificate = block("tls.md", "cert = \"/etc/throng/tls/fullchain.pem\"");
    let settings = format!("listen = \"{address}\"\n{admin}{certificate}");
    let Some(sandbox) = Sandbox::new("throng.service", "hook-unit", &settings) else { return };
    let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
    // As certbot stores them, for root alone.
    sandbox.write("lineage/fullchain.pem", made.cert.pem());
    sandbox.write("lineage/privkey.pem", made.signing_key.serialize_pem());
    sandbox.write("hook", block("tls.md", "\"$RENEWED_LINEAGE/privkey.pem\""));
    for credential in values(&drop_in, "LoadCredential") {
        let (name, _) = credential.split_once(':').unwrap();
        sandbox.write(&format!("credentials/{name}"), "0123456789abcdef0123456789abcdef\n");
    }
    sandbox.start(None).live(|_| assert!(std::net::TcpStream::connect(address).is_ok()));
}
