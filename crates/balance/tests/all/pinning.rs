//! Event loops on CPUs of their own.

use std::time::Duration;

use throng_balance::{Balancer, Config};
use throng_testkit::eventually;

fn config(more: &str) -> Config {
    let text = format!("listen = \"127.0.0.1:0\"\nbackends = [\"127.0.0.1:9\"]\n{more}");
    Config::parse(&text, "b.toml").unwrap()
}

/// Returns whether a thread with this name may use this CPU alone.
fn is_pinned(name: &str, cpu: usize) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    tasks.filter_map(status).any(|status| {
        let value =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        value("Name:") == Some(name) && value("Cpus_allowed_list:") == Some(&cpu.to_string())
    })
}

#[test]
fn each_event_loop_has_the_cpu_it_was_given() {
    let cpus = throng_io::affinity::usable_cpus().unwrap();
    let text = format!("pin = \"cores\"\nshards = {}", cpus.len());
    let balancer = Balancer::start(config(&text)).unwrap();
    let placement = balancer.placement().unwrap().clone();
    assert_eq!((placement.places().len(), placement.refusals().len()), (cpus.len(), 0));
    for (shard, place) in placement.places().iter().enumerate() {
        let name = format!("balance-{shard}");
        eventually("it is pinned", || is_pinned(&name, place.cpu));
    }
    let changes = balancer.apply(config("shards = 1")).unwrap();
    assert_eq!(changes.needs_restart, ["pin", "shards"]);
    balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
}

#[test]
fn more_event_loops_than_cpus_are_an_error_unless_their_number_is_free() {
    let more = throng_io::affinity::usable_cpus().unwrap().len() + 1;
    let text = format!("pin = \"cores\"\nshards = {more}");
    for error in [
        Balancer::check_start(config(&text)).unwrap_err(),
        Balancer::start(config(&text)).unwrap_err(),
    ] {
        let expected = format!(
            "b.toml:3:7: pin is \"cores\": shards is {more}, but pin is cores and the process may \
             use"
        );
        assert!(error.to_string().contains(&expected), "{error}");
    }
    assert!(Balancer::check_start(config("pin = \"cores\"")).is_ok());
}
