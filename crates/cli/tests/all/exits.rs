//! Exit codes of starts that fail: 1 if another start may work, so that a service manager starts
//! again, and 2 for mistakes that an operator must fix.
#![cfg(target_os = "linux")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use crate::support::throng;

/// Runs a command that fails, as a user without privileges if necessary. The time limit is for a
/// start that works by mistake.
fn run(words: &[String], is_unprivileged: bool) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60");
    if is_unprivileged && fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.args(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.args(["--inh-caps=-all", "--bounding-set=-all"]);
    }
    let inner = throng();
    command.arg(inner.get_program()).args(inner.get_args()).args(words).output().unwrap()
}

#[test]
fn a_start_that_fails_says_whether_another_may_work() {
    let folder = throng_testkit::TempFolder::new("exits");
    fs::create_dir_all(folder.join("closed")).unwrap();
    fs::write(folder.join("text"), "no certificate\n").unwrap();
    fs::write(folder.join("closed/file"), "out of reach\n").unwrap();
    fs::set_permissions(folder.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let low = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let has_low_ports = low.trim().parse::<u16>().unwrap() > 80;
    let serve = "serve --listen 127.0.0.1:0";
    let balance = "balance --listen 127.0.0.1:0 --backend 127.0.0.1:1";
    let acme = "--set tls.acme.domains=a.example --set tls.acme.agree_tos=true \
                --set tls.acme.dir=%/closed/acme";
    let admin = "--admin 127.0.0.1:0 --set admin.token_file=%/none";
    // `config check` also detects the marked mistakes, with the same code.
    let mut table = vec![
        (format!("{serve} --set shard=1"), 2, true),
        (format!("{serve} --config %/none.toml"), 1, true),
        (format!("{serve} --config %/text"), 2, true),
        (format!("{serve} --tls-cert %/none --tls-key %/none"), 1, true),
        (format!("{serve} --tls-cert %/text --tls-key %/text"), 2, true),
        (format!("{serve} {admin}"), 1, true),
        // A mistake is permanent, even beside a temporary failure.
        (format!("{serve} {admin} --set drain.window=soon"), 2, true),
        (format!("{serve} --dir %/none"), 1, true),
        (format!("{serve} --dir %/text"), 2, true),
        (format!("{serve} --log-file %/none/log"), 1, false),
        (format!("{serve} --log-file %"), 2, false),
        (format!("serve --listen {taken}"), 1, false),
        // A documentation address, which no machine has.
        ("serve --listen 192.0.2.1:9001".to_owned(), 1, false),
        (format!("{serve} --register http://127.0.0.1:1 --register-token-file %/none"), 1, true),
    ];
    let mut unprivileged = vec![
        (format!("{serve} --tls-cert %/closed/file --tls-key %/closed/file"), 2, true),
        (format!("{serve} --config %/closed/file"), 2, true),
        (format!("{serve} {acme}"), 2, true),
    ];
    if has_low_ports {
        unprivileged.push(("serve --listen 127.0.0.1:80".to_owned(), 2, false));
    }
    if cfg!(feature = "balance") {
        table.extend([
            (format!("{balance} --set shard=1"), 2, true),
            (format!("{balance} --config %/none.toml"), 1, true),
            (format!("{balance} --source 192.0.2.1"), 1, true),
            (format!("{balance} --tls-cert %/none --tls-key %/none"), 1, false),
            (format!("{balance} --tls-cert %/text --tls-key %/text"), 2, false),
            (format!("balance --listen {taken} --backend 127.0.0.1:1"), 1, false),
            (format!("{balance} --admin {taken}"), 1, false),
        ]);
        unprivileged.push((format!("{balance} {acme}"), 2, false));
    }
    if !can_be_run_by_all() {
        println!("skipped in part: other users cannot run the program");
        unprivileged.clear();
    }
    let rows = table.iter().map(|row| (row, false));
    for ((line, code, is_checked), is_unprivileged) in
        rows.chain(unprivileged.iter().map(|row| (row, true)))
    {
        let line = line.replace('%', folder.to_str().unwrap());
        let check = Some(format!("config check {line}")).filter(|_| *is_checked);
        for line in [Some(line), check].into_iter().flatten() {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let output = run(&words, is_unprivileged);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(*code), "{line}: {said}");
        }
    }
    drop(listener);
}

/// Whether a user without privileges can run the program.
fn can_be_run_by_all() -> bool {
    let program = throng().get_program().to_owned();
    Path::new(&program).ancestors().all(|path| {
        path.as_os_str().is_empty()
            || fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o001 != 0)
    })
}
