//! The program itself: its size, and the time from its start to its first answer.

use std::time::{Duration, Instant};

use throng_http::blocking_client::exchange;
use throng_load::report::model::Unit;
use throng_load::sampler::Processes;
use throng_load::{Error, Limit};

use super::echo::Serve;
use super::row::{Better, PublishedRow};
use super::{Run, Section};
use crate::figures::{HTTP, NODE_BYTES, PROGRAM_BYTES, STARTED_S};
use crate::spread::Spread;

pub(super) fn measure(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    section.title = "The program: size, start, memory at rest".to_owned();
    section.articles = vec![HTTP];
    let program = run.program.display().to_string();
    let bytes =
        std::fs::metadata(run.program).map_err(|error| Error::io("read the program", error))?;
    let bytes = bytes.len() as f64;
    let file = |published, by| {
        PublishedRow::new("throng, all modes", "program file", Unit::Bytes)
            .published(published, by)
            .ours(bytes, Limit::Neither)
            .compared(Better::Less)
    };
    let rounds = run.choose(9, 2);
    let (mut started, mut memory) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let name = format!("start {} of {rounds}", round + 1);
        let (s, bytes) =
            run.cell(&name, (round, rounds), Duration::from_millis(50), |_| start(&program))?;
        started.push(s);
        memory.extend(bytes);
    }
    let median = |values: Vec<f64>| Spread::of(values).map(|spread| spread.median);
    let start = PublishedRow::new("throng serve", "start to first answer", Unit::Us)
        .published(STARTED_S * 1e6, "all (allowed)")
        .ours(median(started).map(|s| s * 1e6), Limit::Neither);
    let memory = PublishedRow::new("throng serve", "memory at rest (RSS)", Unit::Bytes)
        .ours(median(memory), Limit::Neither);
    section.rows = vec![
        file(PROGRAM_BYTES.0, "the smallest server"),
        file(PROGRAM_BYTES.1, "the largest server"),
        file(NODE_BYTES, "Node.js, to install"),
        start,
        memory,
    ];
    section.notes = vec![
        "Ours has server, balancer, demo and load generator in one file; the published programs \
         are servers for one benchmark. The article gives no measured start: it waited 6 to 8 s \
         after it, which is no figure to compare with."
            .to_owned(),
    ];
    Ok(())
}

/// Returns the seconds from the start of a server to its first answer, and its memory at that time.
fn start(program: &str) -> Result<(f64, Option<f64>), Error> {
    let begun = Instant::now();
    let server = Serve::start(program, 1_000)?;
    let request =
        format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
    exchange(server.address, request.as_bytes(), Duration::from_secs(5)).map_err(Error::Child)?;
    let took = begun.elapsed().as_secs_f64();
    let memory = Processes::new(server.process.pids()).memory();
    Ok((took, memory.map(|memory| memory.rss_bytes as f64)))
}
