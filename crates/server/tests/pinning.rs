//! Event loops that stay on their CPUs.
#![cfg(target_os = "linux")]

mod support;

use support::served::{self, get, start, stop};
use support::{Client, Got, eventually};
use throng::prelude::*;
use throng::server::{CpuAffinity, Shards};
use throng::workers::WorkerSettings;

fn value(status: &str, key: &str) -> Option<String> {
    status.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
}

/// The CPUs that the threads of this name may use, as the kernel reports them.
fn allowed(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    statuses
        .filter(|status| value(status, "Name:").as_deref() == Some(name))
        .filter_map(|status| value(&status, "Cpus_allowed_list:"))
        .collect()
}

/// The CPUs that this thread may use.
fn own() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    value(&status, "Cpus_allowed_list:").unwrap()
}

/// One test only, since threads of other servers in this process would have the same names.
#[test]
fn each_shard_may_use_the_cpu_it_was_given_and_no_other() {
    let of_process = own();
    let cpus = throng_io::affinity::usable_cpus().unwrap();
    let (address, running) = start(Server::new(served::app().get("/", |_| "hello")).shards(1));
    assert_eq!(get(address, "/"), "hello");
    assert_eq!(
        allowed("throng-shard-0"),
        [of_process.as_str()],
        "without pin all CPUs are left to it"
    );
    stop(running);
    eventually("it has ended", || allowed("throng-shard-0").is_empty());

    let pinned = |shards| {
        let handler = Ws::new().on_message(|ws, (), _| {
            let then = |ws: &mut Socket<'_>, (): &mut (), ()| {
                ws.send("done");
            };
            ws.offload(|| (), then);
        });
        let workers = WorkerSettings::default().pool_size(2);
        let shards = Shards::new().count(shards).pin(CpuAffinity::Cores);
        let server = Server::new(served::app().ws("/work", handler)).shards(shards);
        server.workers(workers).bind("127.0.0.1:0")
    };
    let bound = pinned(cpus.len()).unwrap();
    let placement = bound.placement().unwrap().clone();
    assert_eq!(placement.places().len(), cpus.len());
    assert!(placement.nodes() >= 1);
    let running = bound.start().unwrap();
    for (shard, place) in placement.places().iter().enumerate() {
        assert!(cpus.contains(&place.cpu));
        let cpu = place.cpu.to_string();
        eventually("it is pinned", || allowed(&format!("throng-shard-{shard}")) == [cpu.as_str()]);
    }
    assert_eq!(running.placement(), Some(&placement), "nothing was refused");
    let mut client = Client::connect(running.local_addr(), "/work");
    client.send_text("work");
    assert_eq!(client.next(), Got::Text("done".into()));
    drop(client);
    for worker in ["throng-worker-0", "throng-worker-1"] {
        assert_eq!(allowed(worker), [of_process.as_str()], "though a shard gave it its first job");
    }
    assert_eq!(own(), of_process, "no other thread is");
    stop(running);

    let error = pinned(cpus.len() + 1).unwrap_err().to_string();
    assert!(error.contains(&format!("shards is {}", cpus.len() + 1)), "{error}");
    assert!(error.contains(&format!("{} CPU", cpus.len())), "{error}");
}
