//! The tests of Windows, and the program's, under Wine.
//!
//! Wine is not Windows: what passes here was tested under Wine, and its speed is not Windows's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::cargo_test;
use super::examples::greeting::{self, Url};
use crate::command::{cargo, run_shown, run_step};
use crate::outcome::{Stop, Tally};
use crate::provision::{self, cached_folder};
use crate::server::Server;
use crate::site::Site;

/// Time limit of a build from nothing on two slow cores, and of a run of tests.
const LIMIT: Duration = Duration::from_secs(2400);
const TARGET: &str = "x86_64-pc-windows-gnu";
const COMPILER: &str = "x86_64-w64-mingw32-gcc";

/// The packages whose tests run.
const TESTED: &[&str] = &[
    "throng-simd",
    "throng-carry",
    "throng-proto",
    "throng-http",
    "throng-engine",
    "throng-sim",
    "throng-io",
    "throng-tls",
];

/// The tests that do not run, with the reason. All others of these packages pass.
const LEFT_OUT: &[(&str, &str)] = &[
    ("iocp::c9_input_before_a_reset_is_delivered_though_sends_fail", RESET),
    ("iocp::c9_the_peer_sees_close_as_an_end_and_abort_as_a_reset", RESET),
    ("iocp::c14_a_reset_while_parked_is_reported_after", RESET),
    ("portable::c3_try_send_on_a_closed_connection_takes_nothing", RESET),
    ("portable::c8_a_paused_connection_reports_a_reset", RESET),
    ("portable::c9_a_reset_that_comes_with_the_end_of_stream_is_reported", RESET),
    ("portable::c9_input_before_a_reset_is_delivered_though_sends_fail", RESET),
    ("portable::c9_reset_is_distinguished_from_end_of_stream", RESET),
    ("portable::c9_the_peer_sees_close_as_an_end_and_abort_as_a_reset", RESET),
    ("portable::c14_a_reset_while_parked_is_reported_after", RESET),
    // With TLS; each name is a part of the names of tests, and the rows above leave out theirs too.
    ("contract::iocp::c3_reset_returns_the_batch_before_closed", RESET),
    ("contract::iocp::c3_try_send_on_a_closed_connection_takes_nothing", RESET),
    ("contract::iocp::c8_a_paused_connection_reports_a_reset", RESET),
    ("contract::iocp::c9_a_reset_that_comes_with_the_end_of_stream_is_reported", RESET),
    ("contract::iocp::c9_reset_is_distinguished_from_end_of_stream", RESET),
    ("contract::portable::c3_reset_returns_the_batch_before_closed", RESET),
    ("contract::iocp::c2_more_than_a_thousand_connections", HANDSHAKES),
    ("contract::portable::c2_more_than_a_thousand_connections", HANDSHAKES),
    ("simulated", "takes minutes under Wine, and uses no system"),
    (
        "a_pending_handshake_takes_little_more_than_what_rustls_needs",
        "counts mio's memory for a socket of Windows as well",
    ),
    ("a_million_memberships_cost", "takes minutes under Wine, and is about memory alone"),
    ("a_thousand_seeds_break_no_rule", "takes minutes under Wine, and uses no system"),
    ("servers_with_tls_break_no_rule", "takes minutes under Wine, and uses no system"),
];

const HANDSHAKES: &str = "a thousand handshakes take two minutes under Wine";

const RESET: &str = "under Wine, a socket that resets its connection ends it without a reset";

/// The library that std takes random numbers from, and that Wine 8 does not have.
const RANDOM: &str = "#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    while (size > 0) {
        ULONG part = size > 0x40000000 ? 0x40000000 : (ULONG)size;
        if (!SystemFunction036(data, part)) return FALSE;
        data += part;
        size -= part;
    }
    return TRUE;
}
";

/// Builds everything, with a target folder of its own: the objects of other checks are empty.
pub(super) fn prepare(site: &Site) -> Result<(), Stop> {
    Wine::find(site)?.build()
}

/// Runs the tests, then the program.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let wine = Wine::find(site)?;
    wine.build()?;
    for (test, why) in LEFT_OUT {
        println!("not run: {test}: {why}");
    }
    let mut tally = wine.tests()?;
    tally.record("throng.exe serves echoes on three shards, and drains at Ctrl-C", wine.serve());
    Ok(tally)
}

/// Wine, with a folder that takes the place of a Windows installation.
pub(crate) struct Wine<'a> {
    site: &'a Site,
    program: PathBuf,
    prefix: PathBuf,
}

impl<'a> Wine<'a> {
    /// Finds Wine and the compilers, or installs them.
    pub(crate) fn find(site: &'a Site) -> Result<Self, Stop> {
        provision::target(site, TARGET)?;
        let compiler = provision::program(&[COMPILER], &["gcc-mingw-w64-x86-64"])?;
        // Debian's package has no link to it on PATH.
        let program = PathBuf::from("/usr/lib/wine/wine64");
        if !program.is_file() {
            provision::debian(&["wine64"])
                .map_err(|why| Stop::Missing(format!("no wine64: {why}")))?;
        }
        let prefix = cached_folder(site, "wine", RANDOM, |prefix| {
            println!("preparing Wine (once)");
            let mut boot = Command::new(&program);
            boot.args(["wineboot", "-i"]).env("WINEPREFIX", prefix).env("WINEDEBUG", "-all");
            run_step(&mut boot, LIMIT)?;
            let source = prefix.join("random.c");
            std::fs::write(&source, RANDOM).map_err(|error| error.to_string())?;
            let mut compile = Command::new(&compiler);
            compile.args(["-O2", "-shared", "-o"]);
            compile.arg(prefix.join("drive_c/windows/system32/bcryptprimitives.dll"));
            Ok(run_step(compile.arg(&source).arg("-ladvapi32"), LIMIT)?)
        })?;
        Ok(Self { site, program, prefix })
    }

    /// Runs a program in `folder` until its end, and returns its output.
    pub(crate) fn output(
        &self,
        program: &Path,
        words: &[&str],
        folder: &Path,
    ) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.arg(program).args(words).current_dir(folder);
        self.set_variables(&mut command);
        let output = command.output().map_err(|error| format!("cannot run Wine: {error}"))?;
        let text = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn build(&self) -> Result<(), Stop> {
        run_step(self.test().arg("--no-run"), LIMIT)?;
        Ok(run_step(self.cargo("build").args(["--package", "throng-cli"]), LIMIT)?)
    }

    fn tests(&self) -> Result<Tally, Stop> {
        let mut test = self.test();
        test.arg("--");
        for (name, _) in LEFT_OUT {
            test.args(["--skip", name]);
        }
        cargo_test::tally(run_shown(&mut test, LIMIT)?)
    }

    /// Returns the command that builds and runs the tests.
    fn test(&self) -> Command {
        let mut test = self.cargo("test");
        test.args(["--no-fail-fast", "--all-features", "--lib", "--tests"]);
        for package in TESTED {
            test.args(["--package", package]);
        }
        test
    }

    fn cargo(&self, command: &str) -> Command {
        let mut cargo = cargo(self.site);
        cargo.args([command, "--target", TARGET]).env("CARGO_TARGET_DIR", self.folder());
        cargo.env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", &self.program);
        // Else aws-lc needs an assembler for Windows.
        cargo.env("AWS_LC_SYS_PREBUILT_NASM", "1");
        self.set_variables(&mut cargo);
        cargo
    }

    fn folder(&self) -> PathBuf {
        self.site.target.join("wine")
    }

    fn set_variables(&self, command: &mut Command) {
        command.env("WINEPREFIX", &self.prefix).env("WINEDEBUG", "-all");
        // The layer `cargo` prepares programs for tests that Wine does not run.
        command.env_remove("TEST_PEERS");
    }

    /// Starts the server, echoes texts from this system on several connections at a time, which
    /// its shards share, and ends it as Ctrl-C does.
    fn serve(&self) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.arg(self.folder().join(TARGET).join("debug/throng.exe"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--io", "iocp", "--shards", "3"]);
        self.set_variables(&mut command);
        let server = Server::spawn(command, "throng.exe serve").map_err(|stop| match stop {
            Stop::Failed(why) | Stop::Missing(why) => why,
        })?;
        let url = Url::of_websocket(server.address, "/echo");
        let text = |error: std::io::Error| error.to_string();
        let streams = (0..9).map(|_| greeting::connect(&url)).collect::<Result<Vec<_>, _>>();
        for stream in streams.map_err(text)? {
            let answer = greeting::exchange(stream, &url, "hello").map_err(text)?;
            if answer != "hello" {
                return Err(format!("it answered `{answer}`"));
            }
        }
        // Wine makes it the event of Ctrl-C.
        server.stop_by("INT")
    }
}
