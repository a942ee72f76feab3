//! The scripts are valid shell, and one undoes the other.

use std::io::Write;
use std::process::{Command, Stdio};

use throng_doctor::{Question, Role, diagnose, fix_script, undo_script};

use crate::machines;

/// Returns the kernel settings that a script sets.
fn set(script: &str) -> Vec<&str> {
    let keys =
        script.lines().filter_map(|line| line.strip_prefix("sysctl -w '")?.split('=').next());
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[test]
fn the_scripts_are_valid_shell_and_set_the_same_kernel_settings() {
    let mut settings = 0;
    for name in machines::NAMES {
        let facts = machines::read(name);
        let diagnosis = diagnose(&facts, &Question::new(Role::Balance).connections(1_000_000));
        let (fix, undo) = (fix_script(&diagnosis), undo_script(&diagnosis));
        assert_eq!(set(&fix), set(&undo), "{name}");
        settings += set(&fix).len();
        for script in [fix, undo] {
            let mut shell =
                Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().expect("a shell");
            shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            assert!(shell.wait().unwrap().success(), "{name}: {script}");
        }
    }
    assert!(settings > 20, "only {settings} settings");
}

#[test]
fn the_undo_script_has_the_values_of_today() {
    let facts = machines::read("virtual-machine");
    let diagnosis = diagnose(&facts, &Question::new(Role::Serve).connections(250_000));
    let fix = fix_script(&diagnosis);
    assert!(fix.contains("\nsysctl -w 'net.ipv4.tcp_max_syn_backlog=4096'\n"), "{fix}");
    let undo = undo_script(&diagnosis);
    assert!(undo.contains("\nsysctl -w 'net.ipv4.tcp_max_syn_backlog=2048'\n"), "{undo}");
}
