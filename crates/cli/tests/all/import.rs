//! `throng config import nginx`: each sample runs in nginx, and its translation here, and
//! both must answer alike. A translation in part must not let through what nginx refuses.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use throng_testkit::{TempFolder, poll};

use crate::support::RequestHead;

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn throng(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(words).stdin(Stdio::null());
    command
}

/// The text of a translation, what is left, and the exit code.
fn import(file: &Path) -> (String, String, Option<i32>) {
    let Output { status, stdout, stderr } =
        throng(&["config", "import", "nginx"]).arg(file).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(stdout), text(stderr), status.code())
}

/// A backend that answers with its name, and with all that it was sent.
fn backend(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer_all(name, stream));
        }
    });
    address
}

fn answer_all(name: &str, mut stream: TcpStream) -> Option<()> {
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let head = RequestHead::read(&mut reader)?;
        let mut body = vec![0; head.field("content-length").map_or(0, |it| it.parse().unwrap())];
        reader.read_exact(&mut body).ok()?;
        let names = ["host", "x-query", "x-own"];
        let fields = names.map(|name| head.field(name).unwrap_or("-"));
        let body = format!("{name} {} {fields:?}", head.request());
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nX-Backend: {name}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .ok()?;
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let kill = format!("kill -TERM {}", self.0.id());
        let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

/// Returns the path of nginx, if it is installed. On CI it has to be.
fn nginx() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = folders.map(|folder| folder.join("nginx")).find(|file| file.is_file());
    let is_ci = std::env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "0" | "false"));
    assert!(found.is_some() || !is_ci, "on CI nginx has to be installed");
    if found.is_none() {
        println!("skipped: nginx is not installed: apt-get install nginx");
    }
    found
}

/// A request, and the parts of its answer that must be equal.
fn ask(socket: &Path, request: &str) -> (u16, String, Vec<(String, String)>) {
    let mut stream = poll("the proxy serves", || UnixStream::connect(socket).ok());
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A server that refuses a body may reset the connection behind its answer.
    let _ = stream.read_to_end(&mut answer);
    // nginx forwards $host in lower case and without a port, and Throng the Host as it is.
    let answer = String::from_utf8(answer).unwrap();
    let answer = answer.replace("APP.test:80", "app.test").replace("APP.test", "app.test");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
    let compared = ["location", "x-frame-options", "x-own", "x-backend"];
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut fields: Vec<(String, String)> = fields
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .filter(|(name, _)| compared.contains(&name.as_str()))
        .collect();
    fields.sort();
    // A page of an error has the words of its server.
    let body = if status == 200 { body.to_owned() } else { String::new() };
    (status, body, fields)
}

fn requests() -> Vec<String> {
    let hosts = [
        "app.test",
        "APP.test:80",
        "www.app.test",
        "x.app.test",
        "deep.x.app.test",
        "two.test",
        "a.two.test",
        "nowhere.test",
    ];
    let paths = [
        "/",
        "/ws",
        "/ws/x",
        "/api/",
        "/api/x?q=1",
        "/api/admin/x",
        "/static/a",
        "/old",
        "/moved?a=b",
        "/found",
        "/text",
        "/none",
        "/busy",
        "/closed",
        "/inside/x",
        "/open/x",
        "/own/x",
        "/host?q=2",
        "/a/x",
        "/a/b/x",
        "/a/c",
        "/same/x",
        "/one",
        "/b/x",
        "/large",
        "/basic",
        "/order",
        "/if?key=k",
        "/if",
        "/internal",
        "/x.secret",
    ];
    let mut requests = Vec::new();
    for host in hosts {
        for path in paths {
            requests.push(format!(
                "GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: id=7\r\nConnection: close\r\n\r\n"
            ));
        }
    }
    for path in ["/", "/large"] {
        for length in [10, 2000] {
            let body = "x".repeat(length);
            requests.push(format!(
                "POST {path} HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            ));
        }
    }
    for key in ["a", "a", "a", "a", "a", "b"] {
        requests.push(format!(
            "GET /limited HTTP/1.1\r\nHost: app.test\r\nX-Key: {key}\r\nConnection: close\r\n\r\n"
        ));
    }
    requests
}

/// Files whose translation is not whole.
const IN_PART: [&str; 3] = ["regex.conf", "auth.conf", "files.conf"];

#[test]
fn a_translation_answers_as_nginx() {
    let Some(nginx) = nginx() else { return };
    let (a, b) = (backend("a").to_string(), backend("b").to_string());
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import");
    let mut files: Vec<PathBuf> =
        samples.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 15);
    let compare = |file: &Path| -> Vec<String> {
        let mut different = Vec::new();
        let name = file.file_name().unwrap().to_str().unwrap();
        let folder = TempFolder::new("import");
        let text = std::fs::read_to_string(file).unwrap().replace("@A@", &a).replace("@B@", &b);
        let socket = |of: &str| folder.join(of);
        let with = |of: &str| text.replace("@LISTEN@", &format!("unix:{}", socket(of).display()));
        let temporary = folder.display();
        let theirs = folder.write(
            "nginx.conf",
            format!(
                "daemon off; worker_processes 1; pid {temporary}/pid; error_log stderr crit;\n\
                 events {{}}\nhttp {{\naccess_log off; default_type text/plain;\n\
                 client_body_temp_path {temporary}/1; proxy_temp_path {temporary}/2;\n\
                 fastcgi_temp_path {temporary}/3; uwsgi_temp_path {temporary}/4;\n\
                 scgi_temp_path {temporary}/5;\n{}}}\n",
                with("theirs")
            ),
        );
        let imported = folder.write("ours.conf", with("ours"));
        let (toml, left, code) = import(&imported);
        let is_whole = !IN_PART.contains(&name);
        assert_eq!(code, Some(if is_whole { 0 } else { 3 }), "{name}: {left}\n{toml}");
        let config = folder.write("ours.toml", format!("shards = 1\n{toml}"));
        let config = config.display().to_string();
        let check = throng(&["config", "check", "balance", "--config", &config]).output().unwrap();
        assert!(check.status.success(), "{name}: {check:?}\n{toml}");
        let mut command = Command::new(&nginx);
        command.arg("-p").arg(&*folder).arg("-c").arg(&theirs).args(["-e", "stderr"]);
        let _nginx = Running(command.stdin(Stdio::null()).spawn().unwrap());
        let mut command = throng(&["balance", "--config", &config]);
        let _ours = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        for request in requests() {
            let (theirs, ours) = (ask(&socket("theirs"), &request), ask(&socket("ours"), &request));
            let line = request.lines().take(2).collect::<Vec<_>>().join(", ");
            let is_alike = match is_whole {
                true => ours == theirs,
                // Closed is well; open where nginx is closed is not.
                false => [503, 404, theirs.0].contains(&ours.0),
            };
            if !is_alike {
                different.push(format!("{name}: {line}: {ours:?} where nginx has {theirs:?}"));
            }
        }
        different
    };
    let different: Vec<String> = std::thread::scope(|scope| {
        let compared: Vec<_> = files.iter().map(|file| scope.spawn(|| compare(file))).collect();
        compared.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(different.is_empty(), "{different:#?}");
}

#[test]
fn a_file_outside_the_folder_is_not_opened() {
    let folder = TempFolder::new("import");
    let outside = TempFolder::new("import-outside");
    let secret = outside.write("secret.conf", "server { listen 80; return 200 secret; }");
    std::fs::create_dir(folder.join("conf.d")).unwrap();
    folder.write("conf.d/a.conf", "server { listen 127.0.0.1:80; server_name a; return 200 a; }");
    std::os::unix::fs::symlink(&secret, folder.join("conf.d/b.conf")).unwrap();
    let file = folder.write(
        "nginx.conf",
        format!(
            "events {{}} http {{ include mime.types; include {}; include ../*/secret.conf; \
             include conf.d/*.conf; include conf.d/a.conf; }}",
            secret.display()
        ),
    );
    let (toml, left, code) = import(&file);
    assert_eq!(code, Some(3), "{left}");
    assert!(!toml.contains("secret"), "{toml}");
    assert_eq!(left.matches("include").count(), 3, "{left}");
    // What is not read may restrict all.
    assert!(toml.contains("respond.status = 503") && !toml.contains("\"a\"\nredirect"), "{toml}");
}

#[test]
fn a_file_that_is_not_parsed_is_one_line_with_its_place() {
    let folder = TempFolder::new("import");
    for (text, part) in [
        ("http { server {", "a block has no end"),
        ("http {\n}\n}", "line 3: a directive is missing"),
        ("server { listen 80 }", "line 1: a semicolon is missing"),
        ("server { return 200 \"a; }", "line 1: the text has no end"),
        (&"a {".repeat(100), "nested too deep"),
    ] {
        let file = folder.write("nginx.conf", text);
        let (toml, errors, code) = import(&file);
        assert_eq!((toml.as_str(), code), ("", Some(2)), "{text}: {errors}");
        assert!(errors.contains(part) && errors.lines().count() == 1, "{text}: {errors}");
    }
    let (_, errors, code) = import(&folder.join("missing.conf"));
    assert!(code == Some(2) && errors.contains("missing.conf"), "{errors}");
}
