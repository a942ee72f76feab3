//! The tests of Windows, and the program's, under Wine.
//!
//! Wine is not Windows: what passes here was tested under Wine, and its speed is not Windows's.

mod left_out;
mod service;

use std::ffi::OsStr;
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
use left_out::{LEFT_OUT, NOT_BUILT};

/// Time limit of a build from nothing on two slow cores, and of a run of tests, beside others.
const LIMIT: Duration = Duration::from_secs(7200);
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
    "throng",
    "throng-cluster",
    "throng-balance",
    "throng-cli",
];

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
    for (test, why) in LEFT_OUT.iter().chain(NOT_BUILT) {
        println!("not run: {test}: {why}");
    }
    let mut tally = wine.tests()?;
    tally.record("throng.exe serves echoes on three shards, and drains at Ctrl-C", wine.serve());
    tally.record(
        "throng.exe is a service of Wine's manager, and drains when stopped",
        service::run(&wine),
    );
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
        let mut command = self.start(program.as_ref());
        command.args(words).current_dir(folder);
        let output = command.output().map_err(|error| format!("cannot run Wine: {error}"))?;
        let text = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Builds the tests, and the program, which some of them start.
    fn build(&self) -> Result<(), Stop> {
        Ok(run_step(self.test().args(["--lib", "--bins", "--tests", "--no-run"]), LIMIT)?)
    }

    fn tests(&self) -> Result<Tally, Stop> {
        let mut test = self.test();
        test.args(["--lib", "--bins", "--tests", "--"]);
        for (name, _) in LEFT_OUT {
            test.args(["--skip", name]);
        }
        cargo_test::tally(run_shown(&mut test, LIMIT)?)
    }

    /// Returns the command that builds and runs tests. It has all packages: their features
    /// are united, and others would compile everything again.
    fn test(&self) -> Command {
        let mut test = self.cargo("test");
        test.args(["--no-fail-fast", "--all-features"]);
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

    /// Returns the command that starts a program: its path, or the name of one of Windows.
    fn start(&self, program: &OsStr) -> Command {
        let mut command = Command::new(&self.program);
        self.set_variables(command.arg(program));
        command
    }

    fn throng(&self) -> PathBuf {
        self.folder().join(TARGET).join("debug/throng.exe")
    }

    fn folder(&self) -> PathBuf {
        self.site.target.join("wine")
    }

    fn set_variables(&self, command: &mut Command) {
        command.env("WINEPREFIX", &self.prefix).env("WINEDEBUG", "-all");
        // The layer `cargo` prepares programs for tests that Wine does not run.
        command.env_remove("TEST_PEERS");
    }

    /// Builds `throng.exe`, and starts it as a server on a free loopback port with these flags.
    pub(super) fn start_server(&self, flags: &[&str]) -> Result<Server, Stop> {
        run_step(self.test().args(["--bins", "--no-run"]), LIMIT)?;
        let mut command = self.start(self.throng().as_ref());
        command.args(["serve", "--listen", "127.0.0.1:0", "--io", "iocp", "--shards", "3"]);
        command.args(flags);
        Server::spawn(command, "throng.exe serve")
    }

    /// Starts the server, echoes texts from this system on several connections at a time, which
    /// its shards share, and ends it as Ctrl-C does.
    fn serve(&self) -> Result<(), String> {
        let server = self.start_server(&[]).map_err(|stop| match stop {
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
