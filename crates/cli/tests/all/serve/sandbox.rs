//! Sandboxes and limits that forbid something a server would use.

#[cfg(feature = "balance")]
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[cfg(feature = "balance")]
use super::Running;
use super::{Served, get, refused};

/// Runs a program with a filter of system calls (seccomp) with which prlimit64 fails with EPERM.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const FORBID_PRLIMIT64: &str = r#"
    my ($prctl, $prlimit64) = splice @ARGV, 0, 2;
    my $filter = pack("SCCL" x 4,
        0x20, 0, 0, 0, 0x15, 0, 1, $prlimit64, 0x06, 0, 0, 0x00050001, 0x06, 0, 0, 0x7fff0000);
    my $program = pack("Sx6P", 4, $filter);
    syscall($prctl + 0, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
    syscall($prctl + 0, 22, 2, $program) == 0 or die "seccomp: $!";
    exec @ARGV or die "exec: $!";
"#;

/// The limits do not change, and may not even be read.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn a_sandbox_without_prlimit64_does_not_keep_a_server_from_starting() {
    if Command::new("perl").arg("-v").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: there is no perl to set a filter of system calls");
        return;
    }
    let numbers = if cfg!(target_arch = "x86_64") { ["157", "302"] } else { ["167", "261"] };
    for words in [&["--shards", "1"][..], &["--io", "threads"]] {
        let mut command = Command::new("perl");
        command.args(["-e", FORBID_PRLIMIT64]).args(numbers).arg(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).stdin(Stdio::null());
        let served = Served::run(command, words);
        assert!(get(served.address, "/livez").starts_with("HTTP/1.1 200 "));
    }
    #[cfg(feature = "balance")]
    {
        let mut command = Command::new("perl");
        command.args(["-e", FORBID_PRLIMIT64]).args(numbers).arg(env!("CARGO_BIN_EXE_throng"));
        command.args(["balance", "--listen", "127.0.0.1:0", "--backend", "127.0.0.1:9"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut balancer = Running(command.spawn().unwrap());
        let mut first = [0; 6];
        balancer.0.stdout.take().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(&first, b"throng", "its line says where it listens");
    }
}

/// `listens on` is printed when it is true, and the error names the limit to raise. Root is exempt
/// from RLIMIT_NPROC, so this runs as a user without processes.
#[test]
fn a_limit_on_threads_is_one_line_and_nothing_is_said_before() {
    const UNPRIVILEGED: u32 = 65_534;
    // The user who runs this may have processes that end during the test: one thread is too many.
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let serve: &[&str] = &["serve", "--listen", "127.0.0.1:0", "--shards", "2"];
    let balance: &[&str] = &["balance", "--listen", "127.0.0.1:0", "--backend", "127.0.0.1:9"];
    let programs = if cfg!(feature = "balance") { vec![serve, balance] } else { vec![serve] };
    for words in programs {
        // One thread writes the log; the next one belongs to an event loop.
        for processes in if is_root { 1..=2 } else { 1..=1 } {
            let limit = format!("ulimit -u {processes} 2>&- || ulimit -p {processes}; exec \"$@\"");
            let mut command = Command::new("sh");
            command.args(["-c", &limit, "sh", env!("CARGO_BIN_EXE_throng")]).args(words);
            if is_root {
                command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
            }
            let output = command.stdin(Stdio::null()).output().unwrap();
            let (code, errors) = refused(&output);
            assert!(code == Some(1) || code == Some(2), "{words:?}: {code:?}, {errors}");
            assert!(errors.contains("raise the limit on threads"), "{words:?}: {errors}");
        }
    }
}
