use std::fs;
use std::path::PathBuf;

use throng_config::{LogFormat, LogLevel};
use throng_testkit::TempFolder;

use super::*;

/// A log in its own file, which is removed with it.
pub(crate) struct InFile {
    pub(crate) log: Log,
    path: PathBuf,
    _folder: TempFolder,
}

impl InFile {
    pub(crate) fn open(name: &str, settings: LogSettings) -> Self {
        let folder = TempFolder::new(name);
        let path = folder.join("log");
        let file = Some(path.clone());
        let log = Log::open(&LogSettings { file, format: LogFormat::Json, ..settings }).unwrap();
        Self { log, path, _folder: folder }
    }

    /// All that was written so far.
    pub(crate) fn lines(&self) -> Vec<serde_json::Value> {
        self.log.flush();
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The values of a field, of all lines that have it.
    pub(crate) fn all(&self, field: &str) -> Vec<String> {
        let lines = self.lines();
        let values = lines.iter().filter_map(|line| line.get(field));
        values
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect()
    }
}

#[test]
fn events_below_the_level_are_left_out_and_the_level_can_change() {
    let log = InFile::open("level", LogSettings::default());
    let settings = |level| LogSettings { level, ..LogSettings::default() };
    log.log.event(&events::RELOADED, "one", []);
    log.log.configure(&settings(LogLevel::Warn));
    log.log.event(&events::RELOADED, "two", []);
    log.log.event(&events::RELOAD_FAILED, "", [("reason", "three".into())]);
    assert_eq!(log.all("event"), ["reloaded", "reload.failed"]);
    assert_eq!((log.all("message"), log.all("reason")), (vec!["one".into()], vec!["three".into()]));
}

#[test]
fn a_file_that_was_renamed_is_followed_by_a_new_one() {
    let log = InFile::open("renamed", LogSettings::default());
    log.log.event(&events::RELOADED, "before", []);
    assert_eq!(log.all("message"), ["before"]);
    let renamed = log.path.with_extension("1");
    fs::rename(&log.path, &renamed).unwrap();
    log.log.event(&events::RELOADED, "to the old one", []);
    log.log.reopen();
    log.log.event(&events::RELOADED, "after", []);
    assert_eq!(log.all("message"), ["after"]);
    assert_eq!(fs::read_to_string(&renamed).unwrap().lines().count(), 2);
    fs::remove_file(renamed).unwrap();
}

#[test]
fn a_file_that_cannot_be_opened_again_is_reported_in_the_old_one() {
    let log = InFile::open("not-again", LogSettings::default());
    log.log.event(&events::RELOADED, "before", []);
    log.log.flush();
    let renamed = log.path.with_extension("1");
    fs::rename(&log.path, &renamed).unwrap();
    fs::create_dir(&log.path).unwrap();
    log.log.reopen();
    log.log.event(&events::RELOADED, "after", []);
    log.log.flush();
    fs::remove_dir(&log.path).unwrap();
    fs::rename(&renamed, &log.path).unwrap();
    assert_eq!(log.all("event"), ["reloaded", "log.failed", "reloaded"]);
    let reasons = log.all("reason");
    assert!(reasons[0].contains(log.path.to_str().unwrap()), "{reasons:?}");
}

#[test]
fn clients_cause_no_more_lines_than_the_rate_and_the_rest_is_counted() {
    let settings = LogSettings { max_rate: 10, ..LogSettings::default() };
    let log = InFile::open("rate", settings);
    let at = |second| UNIX_EPOCH + Duration::from_secs(second);
    let admitted = |event, second| (0..25).filter(|_| log.log.admit(event, at(second))).count();
    let refused = |second| admitted(&events::REFUSED, second);
    assert_eq!((refused(100), refused(100), refused(101)), (10, 0, 10));
    assert_eq!(admitted(&events::SESSION_LOST, 101), 10, "another kind has its own");
    log.log.configure(&LogSettings { max_rate: 0, ..LogSettings::default() });
    assert_eq!(refused(101), 25);
    // Lines that clients do not cause are always logged.
    log.log.configure(&LogSettings { max_rate: 1, ..LogSettings::default() });
    for _ in 0..1000 {
        log.log.event(&events::STALL, "", [("shard", 1u64.into())]);
        log.log.event(&events::OPERATOR, "", []);
    }
    let events = log.all("event");
    assert_eq!(events.iter().filter(|event| *event == "operator").count(), 1000);
    let stalls = events.iter().filter(|event| *event == "stall").count() as u64;
    let lost: u64 = log.all("lines").iter().map(|lines| lines.parse::<u64>().unwrap()).sum();
    assert_eq!((stalls + lost, log.log.dropped()), (1000, lost));
}

/// A log into a pipe without an active reader, as of a hanging supervisor: the log, the folder with
/// the pipe `log`, and its other end.
#[cfg(target_os = "linux")]
fn into_hanging_pipe(name: &str) -> (Log, TempFolder, fs::File) {
    let folder = TempFolder::new(name);
    let path = folder.join("log");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    // Also open for reading, so that opening it does not wait; a fifo has room for 64 KiB.
    let hanging = fs::File::options().read(true).write(true).open(&path).unwrap();
    let (file, format) = (Some(path), LogFormat::Json);
    let settings = LogSettings { max_rate: 0, file, format, ..LogSettings::default() };
    (Log::open(&settings).unwrap(), folder, hanging)
}

/// A flood of events that clients cause leaves space in the queue for all other kinds.
#[cfg(target_os = "linux")]
#[test]
fn a_flood_of_one_kind_displaces_no_other() {
    use std::io::{BufRead, BufReader};

    let (log, _folder, hanging) = into_hanging_pipe("flood");
    let refused = |log: &Log, event, times| {
        (0..times).for_each(|_| log.access(event, || vec![("reason", "x".repeat(100).into())]));
    };
    refused(&log, &events::TLS_REFUSED, 4 * QUEUE);
    refused(&log, &events::REFUSED, 4 * QUEUE);
    assert!(log.dropped() > 2 * QUEUE as u64, "{}", log.dropped());
    let before = log.dropped();
    refused(&log, &events::SESSION_LOST, 500);
    (0..500).for_each(|_| log.event(&events::OPERATOR, "", []));
    assert_eq!(log.dropped(), before);
    // All of it is written once the pipe is read.
    let mut seen = [0, 0];
    for line in BufReader::new(hanging).lines() {
        let line = line.unwrap();
        seen[0] += usize::from(line.contains("\"session.lost\""));
        seen[1] += usize::from(line.contains("\"operator\""));
        if seen[1] == 500 {
            break;
        }
    }
    assert_eq!(seen, [500, 500]);
}

/// When the reader continues, the file is opened again, although the queue had no room.
#[cfg(target_os = "linux")]
#[test]
fn a_full_queue_does_not_lose_a_reopen() {
    use std::io::Read;

    let (log, folder, mut hanging) = into_hanging_pipe("reopen");
    let path = folder.join("log");
    (0..4 * QUEUE).for_each(|_| log.event(&events::RELOADED, "x".repeat(100), []));
    assert!(log.dropped() > 0);
    fs::rename(&path, folder.join("log.1")).unwrap();
    log.reopen();
    assert!(!path.exists());
    std::thread::spawn(move || {
        let mut read = [0; 64 << 10];
        while hanging.read(&mut read).is_ok_and(|length| length > 0) {}
    });
    throng_testkit::eventually("it is opened again", || path.exists());
    log.event(&events::RELOADED, "after", []);
    log.flush();
    assert!(fs::read_to_string(&path).unwrap().contains("after"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_line_that_was_written_in_part_does_not_join_the_next() {
    let folder = TempFolder::new("part");
    let path = folder.write("log", "{\"half\":");
    let (file, format) = (Some(path.clone()), LogFormat::Json);
    let log = Log::open(&LogSettings { file, format, ..LogSettings::default() }).unwrap();
    log.event(&events::RELOADED, "after", []);
    log.flush();
    let text = fs::read_to_string(&path).unwrap();
    let last = text.lines().last().unwrap();
    let line: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(line["message"], "after");
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_hangs_blocks_no_writer() {
    let (log, _folder, hanging) = into_hanging_pipe("hangs");
    let lines = 4 * QUEUE as u64;
    for _ in 0..lines {
        log.event(&events::RELOADED, "x".repeat(100), []);
    }
    assert!(log.dropped() >= lines / 4, "{}", log.dropped());
    log.flush();
    drop(log);
    drop(hanging);
}

#[cfg(feature = "balance")]
#[test]
fn one_of_so_many_successes_is_logged_and_every_failure() {
    use throng_balance::{Access, AccessLog};

    let settings =
        LogSettings { access: AccessDetail::All, sample: 4, max_rate: 0, ..LogSettings::default() };
    let log = InFile::open("sample", settings);
    let details: Vec<_> = (0..8).map(|_| log.log.detail()).collect();
    let all = details.iter().filter(|detail| **detail == AccessDetail::All).count();
    assert_eq!((all, details[0]), (2, AccessDetail::All));
    assert!(!details.contains(&AccessDetail::Off));
    let access = Access {
        subject: throng_balance::Subject {
            session: Some(0x1b),
            peer: Some(([127, 0, 0, 1], 5).into()),
            client: Some([192, 0, 2, 1].into()),
        },
        method: Some("GET"),
        path: Some("/a\n{\"level\":\"error\"}"),
        server_name: None,
        is_tunnel: false,
        is_failure: true,
        status: Some(502),
        code: None,
        site: Some("shop"),
        route: Some("/a"),
        pool: Some("default"),
        split: Some(7),
        limit: Some("dial"),
        backend: Some(([127, 0, 0, 1], 9).into()),
        attempts: 2,
        bytes_in: Some(1),
        bytes_out: None,
        duration: Some(Duration::from_millis(1)),
        queued: Some(Duration::from_millis(2)),
        queue_length: Some(7),
        tls: Some("TLS 1.3"),
        host: Some("a.example:80"),
        user_agent: Some("test/1"),
        reason: "the backend refused the connection",
        request_id: Some("abc"),
        traceparent: None,
    };
    log.log.record(&access);
    log.log.record(&Access { is_tunnel: true, is_failure: false, code: Some(1012), ..access });
    let lines = log.lines();
    let fields = |at: usize| {
        let mut line = lines[at].clone();
        line.as_object_mut().unwrap().remove("time");
        line
    };
    assert_eq!(
        fields(0),
        serde_json::json!({
            "level": "warn", "event": "request.failed", "session": "000000000000001b",
            "client": "192.0.2.1", "peer": "127.0.0.1:5", "method": "GET",
            "path": "/a\n{\"level\":\"error\"}", "status": 502, "attempts": 2,
            "site": "shop", "route": "/a", "pool": "default", "split": 7, "limit": "dial",
            "backend": "127.0.0.1:9", "bytes_in": 1, "duration": 0.001, "queued": 0.002,
            "queue_length": 7,
            "tls": "TLS 1.3", "reason": "the backend refused the connection",
            "request_id": "abc", "host": "a.example:80", "user_agent": "test/1",
        })
    );
    assert_eq!(fields(1)["event"], "session");
    assert_eq!((&fields(1)["code"], fields(1).get("status")), (&1012.into(), None));
}
