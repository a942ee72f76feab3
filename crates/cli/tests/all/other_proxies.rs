//! nginx and HAProxy in front of `throng serve`, with the configurations of the manual.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use socket2::{Domain, Socket, Type};
use throng_proto::ws::Opcode;
use throng_testkit::{TempFolder, eventually, poll};

use crate::support::{Client, Got, Served, TIMEOUT, throng};

const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);

const UPGRADE: &[u8] = b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";

/// Returns the blocks of code of a page in a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    blocks.filter(|(tag, _)| *tag == language).map(|(_, code)| code.to_owned()).collect()
}

/// Replaces parts of a text, which must have them all.
fn replaced(text: &str, parts: &[(&str, &str)]) -> String {
    parts.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from} is not in\n{text}");
        text.replace(from, to)
    })
}

/// Returns the path of a program, if it is installed. On CI it has to be.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    let is_ci = std::env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "0" | "false"));
    assert!(found.is_some() || !is_ci, "on CI {name} has to be installed");
    if found.is_none() {
        println!("skipped: {name} is not installed: apt-get install {name}");
    }
    found
}

/// Two servers with the settings of the manual, a folder for their logs and for the proxy, and the
/// address of the proxy.
struct World {
    folder: TempFolder,
    servers: [Served; 2],
    address: SocketAddr,
}

impl World {
    /// `number` differs between the tests of this process.
    fn new(number: u8, settings: &str) -> Self {
        let folder = TempFolder::new("behind");
        let settings = replaced(
            settings,
            &[("10.0.0.11:9001", "127.0.0.1:0"), ("10.0.0.5", "127.0.0.1"), ("= 100000", "= 100")],
        );
        let file = folder.write("serve.toml", settings);
        let servers = ["one", "two"].map(|name| {
            let [file, log] = [file.clone(), folder.join(name)]
                .map(|path| path.into_os_string().into_string().unwrap());
            Served::start(&["--config", &file, "--log-file", &log, "--log-format", "json"])
        });
        // No other process uses it: an unused port would be free for a moment only.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, high | 128, low, number], 8080));
        Self { folder, servers, address }
    }

    /// Returns a configuration of the manual with this world's addresses in place of its own;
    /// `listen` is the line of the proxy's own address, in two parts.
    fn adapted(&self, text: &str, listen: [&str; 2], parts: &[(&str, &str)]) -> String {
        let [one, two] = [0, 1].map(|at| self.servers[at].addresses[0].to_string());
        let address = format!("{}{}", listen[0], self.address);
        let listen = listen.concat();
        let own = [("10.0.0.11:9001", &*one), ("10.0.0.12:9001", &*two), (&*listen, &*address)];
        replaced(text, &[&own[..], parts].concat())
    }

    /// Opens a WebSocket through the proxy, if that is ready.
    fn connect(&self) -> Option<Client> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((CLIENT, 0)).into()).unwrap();
        socket.connect(&self.address.into()).ok()?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(UPGRADE).ok()?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).ok()?;
            head.extend_from_slice(&byte);
        }
        head.starts_with(b"HTTP/1.1 101 ").then(|| Client::opened(stream))
    }

    /// An echo passes, and a server's log has the address of the client.
    fn check(&self, proxy: &mut Proxy) {
        let mut client = poll("the proxy serves", || {
            let ended = proxy.0.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", proxy.errors());
            self.connect()
        });
        client.send_text("hello");
        assert_eq!(client.next(), Got::Text("hello".into()));
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        assert_eq!(client.next().close_code(), Some(1000));
        eventually("a server logs the client", || {
            ["one", "two"].iter().any(|name| {
                let log = std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
                log.lines().any(|line| {
                    let client = format!("\"client\":\"{CLIENT}\"");
                    line.contains("\"event\":\"session\"") && line.contains(&client)
                })
            })
        });
    }
}

/// A running proxy.
struct Proxy(Child);

impl Proxy {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Returns the first lines that it wrote, after it has ended.
    fn errors(&mut self) -> String {
        let lines = self.0.stderr.take().map(|stderr| BufReader::new(stderr).lines());
        lines.into_iter().flatten().map_while(Result::ok).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Not SIGKILL: nginx ends its workers.
        let kill = format!("kill -TERM {}", self.0.id());
        let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

fn settings() -> String {
    blocks("behind-a-proxy.md", "toml").remove(0)
}

#[test]
fn the_configuration_of_nginx_works() {
    let Some(nginx) = program("nginx") else { return };
    let world = World::new(101, &settings());
    let folder = world.folder.display();
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String =
        kinds.iter().map(|kind| format!("{kind}_temp_path {folder}/{kind};\n")).collect();
    let http = format!("http {{\naccess_log off;\n{temporary}");
    let text = &blocks("behind-a-proxy.md", "nginx")[0];
    let text = world.adapted(
        text,
        ["listen ", "80"],
        &[
            ("http {", &http),
            ("worker_processes auto", "worker_processes 1"),
            ("worker_rlimit_nofile 250000;", ""),
            ("worker_connections 100000", "worker_connections 100"),
        ],
    );
    let file = world.folder.join("nginx.conf");
    std::fs::write(&file, text).unwrap();
    let globals = format!("daemon off; pid {folder}/nginx.pid; error_log stderr warn;");
    let mut nginx = Command::new(nginx);
    nginx.arg("-p").arg(&*world.folder).arg("-c").arg(&file).args(["-e", "stderr", "-g", &globals]);
    world.check(&mut Proxy::start(&mut nginx));
}

/// Starts HAProxy with a configuration of the manual, and checks it.
fn check_haproxy(world: &World, text: &str, listen: [&str; 2]) {
    let Some(haproxy) = program("haproxy") else { return };
    let text = world.adapted(text, listen, &[("maxconn 100000", "maxconn 100")]);
    let file = world.folder.join("haproxy.cfg");
    std::fs::write(&file, text).unwrap();
    world.check(&mut Proxy::start(Command::new(haproxy).arg("-f").arg(&file)));
}

#[test]
fn the_configuration_of_haproxy_works() {
    let world = World::new(102, &settings());
    check_haproxy(&world, &blocks("behind-a-proxy.md", "haproxy")[0], ["bind ", ":80"]);
}

#[test]
fn the_configuration_of_haproxy_with_the_proxy_protocol_works() {
    let [settings, more] = &blocks("behind-a-proxy.md", "toml")[..] else { panic!("two blocks") };
    let world = World::new(103, &format!("{more}{settings}"));
    check_haproxy(&world, &blocks("behind-a-proxy.md", "haproxy")[1], ["bind ", ":443"]);
}

#[test]
fn the_settings_of_the_guide_to_scaling_are_valid() {
    let folder = TempFolder::new("scaling");
    for settings in &blocks("scaling.md", "toml") {
        let file = folder.write("serve.toml", settings);
        let checked =
            throng().args(["config", "check", "serve", "--config"]).arg(&file).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}
