//! `throng health`: a program that runs with some settings is healthy for a check with these
//! settings.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

#[cfg(feature = "balance")]
use throng_testkit::eventually;
use throng_testkit::{TempFolder, poll};

use crate::support::{may_unshare, throng};

/// A server or balancer that ends with the test.
struct Started(Child);

impl Started {
    /// Starts a command, and waits until it listens.
    fn new(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let started = Self(child);
        let listens = |line: std::io::Result<String>| line.is_ok_and(|line| line.contains(" on "));
        assert!(lines.any(listens), "{command:?}");
        // Its admin API comes after that.
        let is_last = |line: &str| line.starts_with("metrics: ") || line.starts_with("admin: ");
        std::thread::spawn(move || lines.map_while(Result::ok).find(|line| is_last(line)));
        started
    }

    fn terminate(&self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A loopback address that no other test has, and a folder.
struct Place {
    address: Ipv4Addr,
    folder: TempFolder,
}

impl Place {
    fn new() -> Self {
        static PLACES: AtomicU8 = AtomicU8::new(1);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let number = PLACES.fetch_add(1, Relaxed);
        let address = Ipv4Addr::new(127, high | 192, low, number);
        Self { address, folder: TempFolder::new("health") }
    }

    /// Fills in the place: `@` is its address, `%` its folder, `#` a port for all addresses.
    fn fill(&self, text: &str) -> String {
        let port = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
        let folder = self.folder.display().to_string();
        let text = text.replace('@', &self.address.to_string());
        text.replace('%', &folder).replace('#', &port.to_string())
    }
}

/// The time for an answer on a machine that is busy.
const TIMEOUT: [&str; 2] = ["--timeout", "60s"];

/// Runs `throng health` with further variables. Returns its exit code and output.
fn run(words: &[&str], variables: &[(String, String)]) -> (Option<i32>, String) {
    let mut command = throng();
    let (health, words) = words.split_first().unwrap();
    command
        .arg(health)
        .args(TIMEOUT)
        .args(words)
        .envs(variables.iter().map(|(name, value)| (name, value)));
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Starts a program with variables such as `LISTEN=@:9001 TLS_PLAIN=redirect`.
fn start(program: &str, variables: &str, place: &Place) -> (Started, Vec<(String, String)>) {
    let variable = |text: &str| {
        let (name, value) = text.split_once('=').unwrap();
        (format!("THRONG_{name}"), place.fill(value))
    };
    let variables: Vec<_> = variables.split_whitespace().map(variable).collect();
    let mut command = throng();
    command.args([program, "--shards", "1"]);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    (Started::new(command), variables)
}

/// Whether a program with these settings is healthy, and the message.
fn check(program: &str, variables: &str, ready: &[&str], place: &Place) -> (Option<i32>, String) {
    let (_started, variables) = start(program, variables, place);
    run(&[&["health"], ready, &[program]].concat(), &variables)
}

#[test]
fn a_server_is_asked_where_and_how_its_settings_say() {
    let alive = "healthy: alive\n";
    let mut table = vec![
        ("LISTEN=@:9001", alive),
        ("LISTEN=@:9001,unix:%/s", alive),
        ("LISTEN=unix:%/s", alive),
        ("LISTEN=unix:%/s,@:9001", alive),
        ("LISTEN=0.0.0.0:#", alive),
        ("LISTEN=localhost:#", alive),
        ("LISTEN=@:9001 ALLOWED_HOSTS=a.example", alive),
        ("LISTEN=@:9001 PROXY_PROTOCOL=true TRUSTED_PROXIES=127.0.0.0/8", alive),
        ("LISTEN=unix:%/s PROXY_PROTOCOL=true TRUSTED_PROXIES=unix:", alive),
        // It ends the connection, since no trusted proxy connects.
        ("LISTEN=@:9001 PROXY_PROTOCOL=true TRUSTED_PROXIES=10.0.0.0/8", "healthy: it answers\n"),
        ("LISTEN=127.0.0.1:0 ADMIN_LISTEN=@:9101", alive),
        (
            "LISTEN=@:9001 ADMIN_LISTEN=@:9101 ADMIN_TOKEN=0123456789abcdef PROXY_PROTOCOL=true \
             TRUSTED_PROXIES=10.0.0.0/8",
            alive,
        ),
    ];
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        table.extend([("LISTEN=[::]:#", alive), ("LISTEN=[::1]:#", alive)]);
    }
    if cfg!(feature = "tls") {
        table.extend([
            ("LISTEN=@:9001 TLS_CERT=%/c TLS_KEY=%/k", alive),
            ("LISTEN=unix:%/s TLS_CERT=%/c TLS_KEY=%/k", alive),
            ("LISTEN=@:9001 TLS_CERT=%/c TLS_KEY=%/k TLS_PLAIN=redirect", alive),
            ("LISTEN=@:9001 TLS_CERT=%/c TLS_KEY=%/k TLS_PLAIN=serve", alive),
            (
                "LISTEN=@:9001 TLS_CERT=%/c TLS_KEY=%/k PROXY_PROTOCOL=true \
                 TRUSTED_PROXIES=127.0.0.0/8",
                alive,
            ),
            (
                "LISTEN=@:9001 TLS_CERT=%/c TLS_KEY=%/k TLS_CLIENT_CA=%/c TLS_CLIENT_AUTH=optional",
                alive,
            ),
            // It ends the handshake, or the connection after it.
            ("LISTEN=@:9001 TLS_CERT=%/c TLS_KEY=%/k TLS_CLIENT_CA=%/c", "healthy: it answers\n"),
        ]);
    }
    if cfg!(feature = "acme") {
        table.push((
            "LISTEN=@:9001 TLS_ACME_DOMAINS=a.example TLS_ACME_DIR=%/a TLS_ACME_CA=%/c \
             TLS_ACME_DIRECTORY=https://@:9/dir TLS_ACME_AGREE_TOS=true",
            "healthy: it answers\n",
        ));
    }
    for (variables, expected) in table {
        let place = Place::new();
        #[cfg(feature = "tls")]
        {
            let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
            std::fs::write(place.folder.join("c"), made.cert.pem()).unwrap();
            std::fs::write(place.folder.join("k"), made.signing_key.serialize_pem()).unwrap();
        }
        let (code, said) = check("serve", variables, &[], &place);
        assert_eq!((code, said.as_str()), (Some(0), expected), "{variables}");
        // `--ready` gets an answer, or an error with the remedy.
        let (code, said) = check("serve", variables, &["--ready"], &place);
        match expected == alive {
            true => assert_eq!((code, said.as_str()), (Some(0), "healthy: ready\n"), "{variables}"),
            false => assert!(code == Some(1) && said.contains("set admin.listen"), "{said}"),
        }
    }
}

/// Without its settings, only the alert of TLS shows that the server requires a certificate.
#[cfg(feature = "tls")]
#[test]
fn a_server_that_requires_a_certificate_answers_when_it_is_asked_by_address() {
    let place = Place::new();
    let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
    std::fs::write(place.folder.join("c"), made.cert.pem()).unwrap();
    std::fs::write(place.folder.join("k"), made.signing_key.serialize_pem()).unwrap();
    let variables = "LISTEN=@:9001 TLS_CERT=%/c TLS_KEY=%/k TLS_CLIENT_CA=%/c";
    let (_started, _) = start("serve", variables, &place);
    let address = place.fill("https://@:9001");
    let (code, said) = run(&["health", &address], &[]);
    assert_eq!((code, said.as_str()), (Some(0), "healthy: it answers\n"));
    let (code, said) = run(&["health", "--ready", &address], &[]);
    assert!(code == Some(1) && said.contains("set admin.listen"), "{said}");
    // A server without TLS does not answer.
    let other = Place::new();
    let (_plain, _) = start("serve", "LISTEN=@:9001", &other);
    let (code, said) = run(&["health", &other.fill("https://@:9001")], &[]);
    assert!(code == Some(1) && said.contains("is not healthy"), "{said}");
}

#[cfg(feature = "balance")]
#[test]
fn a_balancer_is_healthy_with_and_without_an_admin_api() {
    let answers = "healthy: it answers\n";
    for (variables, expected) in [
        ("LISTEN=@:8080", answers),
        ("LISTEN=0.0.0.0:#", answers),
        ("LISTEN=@:8080 ACCEPT_PROXY=true TRUSTED_PROXIES=127.0.0.0/8", answers),
        ("LISTEN=@:8080 ACCEPT_PROXY=true TRUSTED_PROXIES=10.0.0.0/8", answers),
        ("LISTEN=@:8080 TLS_CERT=%/c TLS_KEY=%/k", answers),
        ("LISTEN=@:8080 TLS_CERT=%/c TLS_KEY=%/k TLS_PLAIN=redirect", answers),
        ("LISTEN=@:8080 TLS_LISTEN=@:8443 TLS_CERT=%/c TLS_KEY=%/k", answers),
        ("LISTEN=127.0.0.1:0 ADMIN_LISTEN=@:8081", "healthy: alive\n"),
    ] {
        let place = Place::new();
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        std::fs::write(place.folder.join("c"), made.cert.pem()).unwrap();
        std::fs::write(place.folder.join("k"), made.signing_key.serialize_pem()).unwrap();
        let variables = format!("BACKENDS=127.0.0.1:1 {variables}");
        let (code, said) = check("balance", &variables, &[], &place);
        assert_eq!((code, said.as_str()), (Some(0), expected), "{variables}");
        if expected == answers {
            let (code, said) = check("balance", &variables, &["--ready"], &place);
            assert!(code == Some(2) && said.contains("set admin.listen"), "{said}");
        }
    }
}

#[test]
fn a_server_that_is_not_ready_says_why() {
    let place = Place::new();
    let variables = "LISTEN=@:9001 DRAIN_DELAY=60s";
    let (server, variables) = start("serve", variables, &place);
    server.terminate();
    let why = poll("it drains", || {
        let (code, said) = run(&["health", "--ready"], &variables);
        (code != Some(0)).then_some((code, said))
    });
    assert!(why.0 == Some(1) && why.1.contains("is not healthy: 503 "), "{why:?}");
    assert!(why.1.contains("shutting down") || why.1.contains("drain"), "{why:?}");
    // It still answers.
    assert_eq!(run(&["health"], &variables), (Some(0), "healthy: alive\n".to_owned()));

    #[cfg(feature = "balance")]
    {
        let variables = "LISTEN=127.0.0.1:0 ADMIN_LISTEN=@:8081 REGISTER_TOKEN=0123456789abcdef";
        let place = Place::new();
        let (_balancer, variables) = start("balance", variables, &place);
        eventually("its admin API listens", || {
            run(&["health", "balance"], &variables).0 == Some(0)
        });
        let (code, said) = run(&["health", "--ready", "balance"], &variables);
        let why = "is not healthy: 503 Service Unavailable: no backend is up\n";
        assert!(code == Some(1) && said.ends_with(why), "{said}");
    }
}

#[test]
fn settings_that_name_no_address_are_an_error_with_the_remedy() {
    for (words, part) in [
        (&["health", "--listen", "127.0.0.1:0"][..], "ask by address"),
        (&["health", "--listen", "systemd"], "set admin.listen"),
        (&["health", "--listen", "127.0.0.1:1", "127.0.0.1:1"], "leave them, or it, out"),
        (&["health", "--set", "shards=many"], "shards is \"many\""),
    ] {
        let (code, said) = run(words, &[]);
        assert!(code == Some(2) && said.contains(part), "{words:?}: {said}");
    }
    let (code, said) = run(&["health", "--listen", "127.0.0.1:1"], &[]);
    assert!(
        code == Some(1) && said.contains("127.0.0.1:1 is not healthy: cannot connect"),
        "{said}"
    );
}

/// The process of a container has flags that its health check is not given.
#[test]
fn in_a_container_the_flags_of_its_process_count() {
    let namespaces = ["--pid", "--fork", "--mount-proc"];
    if !may_unshare(&namespaces) {
        return;
    }
    let programs = [
        ("serve --listen @:9001 --set drain.delay=1s", "healthy: alive\n"),
        #[cfg(feature = "balance")]
        ("balance --listen @:8080 --backend 127.0.0.1:1", "healthy: it answers\n"),
    ];
    for (words, expected) in programs {
        // The first process of the container, or a child of an init.
        for init in ["exec \"$0\" \"$@\"", "\"$0\" \"$@\" & wait"] {
            let place = Place::new();
            let words = place.fill(words);
            let mut command = Command::new("unshare");
            command.args(namespaces).args(["sh", "-c", init]);
            command.arg(throng().get_program()).args(throng().get_args()).args(words.split(' '));
            let mut started = Started::new(command);
            let children = format!("/proc/{0}/task/{0}/children", started.0.id());
            let first = std::fs::read_to_string(children).unwrap();
            let mut health = Command::new("nsenter");
            health.args(["--target", first.trim(), "--pid", "--mount"]);
            let output =
                health.arg(throng().get_program()).arg("health").args(TIMEOUT).output().unwrap();
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            // Ending the first process ends the namespace.
            assert!(Command::new("kill").args(["-KILL", first.trim()]).status().unwrap().success());
            started.0.wait().unwrap();
            assert_eq!((output.status.code(), said.as_str()), (Some(0), expected), "{words}");
        }
    }
}
