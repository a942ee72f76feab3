//! `config check` and `balance --check` give the same answers as a start.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use throng_testkit::TempFolder;

use crate::support::{TIMEOUT, throng};

/// Returns a command's answer to a mistake: its exit code and the line. A start that serves is
/// ended.
fn answer(words: &[String]) -> (Option<i32>, String) {
    let mut command = throng();
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let until = Instant::now() + TIMEOUT;
    while process.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            process.kill().unwrap();
            panic!("it runs: {words:?}");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let Output { status, stderr, .. } = process.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stderr).into_owned();
    let first = text.lines().find(|line| line.starts_with("throng: ")).unwrap_or_default();
    (status.code(), first.to_owned())
}

/// Compares check and start of a program with these settings, and returns their common answer.
fn both(program: &str, settings: &[&str]) -> String {
    let backend: &[&str] = if program == "balance" { &["--backend", "127.0.0.1:1"] } else { &[] };
    let sets = settings.iter().flat_map(|pair| ["--set", pair]);
    let flags = ["--listen", "127.0.0.1:0"].into_iter().chain(backend.iter().copied()).chain(sets);
    let flags: Vec<String> = flags.map(str::to_owned).collect();
    let words = |first: &[&str]| -> Vec<String> {
        first.iter().map(|word| (*word).to_owned()).chain(flags.iter().cloned()).collect()
    };
    let start = answer(&words(&[program]));
    let check = answer(&words(&["config", "check", program]));
    assert_eq!(check, start, "{program} {settings:?}");
    if program == "balance" {
        assert_eq!(answer(&words(&["balance", "--check"])), start, "{settings:?}");
    }
    // A missing file may exist at the next start.
    let code = if start.1.to_lowercase().contains("no such file") { 1 } else { 2 };
    assert_eq!(start.0, Some(code), "{program} {settings:?}: {}", start.1);
    start.1
}

/// Everything that keeps a program from starting, except addresses in use and hosts that do not
/// answer, fails its check: with the same words, and the same exit code.
#[test]
fn a_check_says_what_a_start_says() {
    let dir = TempFolder::new("check");
    let file = |name: &str, text: &[u8]| dir.write(name, text).display().to_string();
    let (junk, shown) = (file("junk.pem", b"not PEM\n"), dir.display().to_string());
    let acme = [
        "tls.acme.domains=example.test",
        "tls.acme.agree_tos=true",
        "tls.acme.directory=https://127.0.0.1:1/",
    ];
    let with_acme = |more: &[&'static str]| [&acme[..], more].concat();
    let of = |key: &str, value: &str| format!("{key}={value}");
    let in_junk = [of("tls.acme.dir", &junk)];
    let acme_dir = of("tls.acme.dir", &shown);
    let certificate = [of("tls.cert", &junk), of("tls.key", &junk)];
    let backend = [of("backend_tls.cert", &junk), of("backend_tls.key", &junk)];
    let ca = of("backend_tls.ca", &junk);
    let redis = ["cluster.url=rediss://127.0.0.1:1", &of("cluster.tls_ca", &junk)];
    let cases: &[(&str, Vec<&str>, &str)] = &[
        ("serve", vec!["cluster.url=valkey://127.0.0.1:1"], "cluster.url"),
        ("serve", vec!["cluster.url=redis://:a#b@127.0.0.1:1"], "write it as %23"),
        (
            "serve",
            vec!["cluster.url=rediss://127.0.0.1:1", "cluster.tls_ca=/nonexistent"],
            "cluster.tls_ca: /nonexistent",
        ),
        ("serve", vec![redis[0], redis[1]], "cluster.tls_ca: "),
        ("serve", vec![redis[0], "cluster.tls_name=https://x"], "cluster.tls_name: "),
        (
            "serve",
            vec![redis[0], "cluster.tls_key=/x"],
            "it needs its certificate: write cluster.tls_cert",
        ),
        (
            "serve",
            vec!["cluster.url=redis://127.0.0.1:1", "cluster.tls_ca=/x"],
            "cluster.tls_ca is set",
        ),
        (
            "serve",
            vec!["cluster.url=redis://127.0.0.1:0"],
            "port 0 of 127.0.0.1 cannot be connected to",
        ),
        ("serve", vec!["cluster.url=redis://127.0.0.1:1/-1"], "-1 is not a database"),
        ("serve", vec!["cluster.tls_name=redis.internal"], "it needs a cluster"),
        ("serve", vec!["channels=chat.>=close;chat.a=latest"], "comes after \"chat.>\""),
        ("serve", vec!["max_header_bytes=1"], "write at least \"1KiB\""),
        ("serve", vec!["max_headers=7"], "write at least 8"),
        ("serve", vec!["listen=[::1%lo]:80"], "write \"[::1]:80\""),
        ("balance", vec!["health.check.kind=http", "health.check.host=a:99999"], "check.host"),
        ("balance", vec!["drop_headers=Host"], "no request can do without it"),
        ("balance", vec!["sticky=cookie:__Host-node"], "browsers drop a cookie"),
        ("serve", vec!["shards=100000"], "shards"),
        ("serve", vec!["shards=1000", "pin=cores"], "pin"),
        ("serve", vec!["max_connections=100000000"], "max_connections"),
        ("serve", vec!["log.file=/nonexistent/x.log"], "log.file"),
        #[cfg(target_os = "linux")]
        ("serve", vec!["log.file=/dev/zero"], "it is a device"),
        #[cfg(target_os = "linux")]
        ("balance", vec!["log.file=/proc/self/mem"], "it is a file of the kernel"),
        ("serve", vec!["tls.cert=/nonexistent", "tls.key=/nonexistent"], "no such file"),
        ("serve", vec![&certificate[0], &certificate[1]], "no certificate in PEM"),
        ("serve", vec!["tls.ticket_keys=/nonexistent"], "tls.ticket_keys"),
        ("serve", with_acme(&["tls.acme.dir=/proc/x"]), "/proc/x"),
        ("serve", vec![acme[0], acme[1], acme[2], &in_junk[0]], "junk.pem"),
        (
            "serve",
            vec![acme[0], acme[1], acme[2], &acme_dir, "tls.acme.ca=/nonexistent"],
            "/nonexistent",
        ),
        ("serve", vec!["listen=127.0.0.1:7,127.0.0.1:7"], "give it once"),
        ("serve", vec!["listen=0.0.0.0:7", "admin.listen=127.0.0.1:7"], "admin.listen"),
        ("serve", vec!["dir=/nonexistent"], "/nonexistent"),
        ("balance", vec!["tls.cert=/nonexistent", "tls.key=/nonexistent"], "no such file"),
        ("balance", vec![&certificate[0], &certificate[1]], "no certificate in PEM"),
        ("balance", vec!["backend_tls.ca=/nonexistent"], "backend_tls"),
        ("balance", vec![&ca], "no certificate in PEM"),
        ("balance", vec!["backend_tls.name=https://x"], "backend_tls.name"),
        ("balance", vec![&backend[0], &backend[1]], "no certificate in PEM"),
        ("balance", vec!["log.file=/nonexistent/x"], "log.file"),
        ("balance", vec!["max_connections=100000000"], "max_connections"),
        ("balance", vec!["shards=100000"], "shards"),
        ("balance", with_acme(&["tls.acme.dir=/proc/x"]), "/proc/x"),
        ("balance", vec!["listen=0.0.0.0:7,127.0.0.1:7"], "0.0.0.0:7 has its connections"),
        ("balance", vec!["listen=127.0.0.1:7", "admin.listen=127.0.0.1:7"], "admin.listen"),
    ];
    for (program, settings, words) in cases {
        let said = both(program, settings);
        assert!(said.contains(words), "{program} {settings:?}: {said}");
    }
    // A check leaves nothing behind.
    let log = of("log.file", &format!("{shown}/new.log"));
    let acme_new = of("tls.acme.dir", &format!("{shown}/new/deep"));
    let mut words = vec!["config", "check", "serve", "--listen", "127.0.0.1:0", "--set", &log];
    for pair in acme.iter().copied().chain([acme_new.as_str()]) {
        words.extend(["--set", pair]);
    }
    let output = throng().args(&words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left: Vec<_> = std::fs::read_dir(Path::new(&shown)).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Entries of lists that could never match a client are mistakes. The error names a form that
/// works.
#[test]
fn entries_that_never_match_are_mistakes() {
    let remedy = |program: &str, key: &str, value: &str| {
        let pair = format!("{key}={value}");
        let backend: &[&str] =
            if program == "balance" { &["--backend", "127.0.0.1:1"] } else { &[] };
        let words = ["config", "check", program, "--listen", "127.0.0.1:0", "--set", &pair];
        let register: &[&str] = match key.starts_with("register.") {
            true => &["--admin", "127.0.0.1:0", "--set", "register.token=0123456789abcdef"],
            false => &[],
        };
        let output = throng().args(words).args(backend).args(register).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code() != Some(0)).then_some(text)
    };
    for (program, key, value, words) in [
        ("serve", "allowed_origins", "https://app.example/", "write \"https://app.example\""),
        ("serve", "allowed_origins", "app.example", "write \"https://app.example\""),
        ("serve", "allowed_hosts", "app.example:443", "write \"app.example\""),
        ("serve", "allowed_hosts", ".example.com", "write \"*.example.com\""),
        ("serve", "trusted_proxies", "10.0.0.0/+8", "0 to 32"),
        ("serve", "trusted_proxies", "::ffff:10.0.0.0/8", "at least 96"),
        ("balance", "trusted_proxies", "10.0.0.0/+8", "0 to 32"),
        ("balance", "register.networks", "::ffff:10.0.0.0/8", "at least 96"),
        ("balance", "drop_headers", "X-*", "whole name"),
    ] {
        let said = remedy(program, key, value).unwrap_or_default();
        assert!(said.contains(words) && said.contains(key), "{key}={value}: {said}");
    }
    for (program, key, value) in [
        ("serve", "allowed_origins", "https://*.example.com,null,file://"),
        ("serve", "allowed_hosts", "*.example.com,app.example"),
        ("serve", "trusted_proxies", "::ffff:10.0.0.0/104"),
        ("balance", "trusted_proxies", "::ffff:10.0.0.0/104"),
    ] {
        assert_eq!(remedy(program, key, value), None, "{key}={value}");
    }
}

/// Both programs listen on an IPv4 address in IPv6.
#[test]
fn an_ipv4_address_in_ipv6_is_listened_on() {
    for words in [
        &["serve", "--listen", "[::ffff:127.0.0.1]:0"][..],
        &["balance", "--listen", "[::ffff:127.0.0.1]:0", "--backend", "[::ffff:127.0.0.1]:1"],
    ] {
        let check = throng().args(["config", "check"]).args(words).output().unwrap();
        assert!(check.status.success(), "{words:?}: {check:?}");
        let mut command = throng();
        command.args(words).args(["--shards", "1"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(line.contains("127.0.0.1:") && !line.contains("ffff"), "{words:?}: {line}");
    }
}

/// The start would fail with the system's error for the address.
#[cfg(unix)]
#[test]
fn a_path_that_is_too_long_for_a_socket_is_a_mistake() {
    let listen = format!("unix:/tmp/{}", "x".repeat(200));
    let words = ["config", "check", "serve", "--listen", &listen];
    let output = throng().args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("listen") && said.contains("too long for a socket"), "{said}");
}

/// A pipe cannot be read again, and would block the process forever.
#[cfg(feature = "tls")]
#[test]
fn a_pipe_for_a_file_is_refused_at_once() {
    let dir = TempFolder::new("pipe");
    let pipe = dir.join("pipe").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for flags in [
        ["serve", "--tls-cert", &pipe, "--tls-key", &pipe],
        ["serve", "--config", &pipe, "--listen", "127.0.0.1:0"],
        ["balance", "--config", &pipe, "--listen", "127.0.0.1:0"],
        ["balance", "--admin-token-file", &pipe, "--backend", "127.0.0.1:1"],
    ] {
        let (code, said) = answer(&words(&flags));
        assert_eq!(code, Some(2), "{flags:?}: {said}");
        assert!(said.contains("it is a pipe, and not a regular file"), "{flags:?}: {said}");
    }
    for flags in [
        &["serve", "--log-file", &pipe, "--listen", "127.0.0.1:0"][..],
        &["balance", "--log-file", &pipe, "--backend", "127.0.0.1:1", "--listen", "127.0.0.1:0"],
        &["balance", "--log-file", &pipe, "--backend", "127.0.0.1:1", "--check"],
    ] {
        let (_, said) = answer(&words(flags));
        assert!(said.contains("that no program reads"), "{flags:?}: {said}");
    }
}
