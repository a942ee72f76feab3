//! One message to 50,000 subscribers, in three ways, with and without compression.

use throng_load::report::model::Unit;
use throng_load::units::grouped;
use throng_load::{Error, Limit, descriptors};

use super::row::{Better, PublishedRow};
use super::{Run, Section, words_of};
use crate::broadcast::Broadcast;
use crate::comparison::from_flags;
use crate::figures::{BROADCAST, SCALING, SUBSCRIBERS};
use crate::parts::Variant;

/// Maximum server processes. Each has as many subscribers as its descriptors allow.
const MAX_PROCESSES: usize = 8;

pub(super) fn measure(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    section.articles = vec![SCALING];
    let wanted = run.choose(SUBSCRIBERS, 100);
    let (processes, subscribers) = processes_for(wanted)?;
    section.title = format!("One message of 1 KiB to {} subscribers", grouped(subscribers as u64));
    if subscribers < wanted {
        section.notes.push(format!(
            "{} subscribers instead of {}: so many descriptors have {processes} server processes.",
            grouped(subscribers as u64),
            grouped(wanted as u64)
        ));
    }
    section.notes.push(format!(
        "Median of the rounds, from the call until the last subscriber has the message; \
         {processes} server process{} of one event loop, as many of subscribers. \
         Compressed messages are random letters, which shrink more than most JSON; the article \
         does not say what its message was.",
        if processes == 1 { "" } else { "es" }
    ));
    let rounds = run.choose(10, 2);
    for deflate in ["off", "no-context"] {
        let line = format!(
            "--subscribers {subscribers} --processes {processes} --rounds {rounds} --size 1KiB \
             --deflate {deflate}"
        );
        let report = run.comparison::<Broadcast>(&words_of(&line))?;
        for row in &report.rows {
            let way = match row.variant {
                Variant::Naive => "a loop of sends",
                Variant::Encoded => "one encoded frame",
                Variant::Publish => "a publication",
            };
            let case = match deflate {
                "off" => way.to_owned(),
                _ => format!("{way}, compressed"),
            };
            let limit = row.verdict.limit;
            let time = row.time_us.map(|time| time.median);
            let each = row.server_cpu_us_per_subscriber;
            let mut last = PublishedRow::new(&case, "last has it", Unit::Us).ours(time, limit);
            let stated = BROADCAST.iter().find(|(variant, _)| *variant == row.variant);
            if let Some((_, seconds)) = stated.filter(|_| deflate == "off" && !run.quick) {
                last = last.published(*seconds * 1e6, "sgcWebSockets");
                // A comparison is only fair with as many subscribers.
                if subscribers == SUBSCRIBERS {
                    last = last.compared(Better::Less);
                }
            }
            section.rows.push(last);
            section
                .rows
                .push(PublishedRow::new(&case, "server CPU each", Unit::Us).ours(each, limit));
        }
        section.notes.push(format!("Compression {deflate}: {}.", report.verdict.line));
        if report.verdict.limit == Limit::Invalid {
            section.failure = Some(report.verdict.line);
        }
    }
    Ok(())
}

/// Returns how many processes hold `wanted` subscribers, or as many as the descriptors allow.
fn processes_for(wanted: usize) -> Result<(usize, usize), Error> {
    let hard = descriptors::hard_limit();
    let mut most = wanted;
    for processes in 1..=MAX_PROCESSES {
        let flags = ["--processes".to_owned(), processes.to_string()];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let plan =
            from_flags::<Broadcast>(&flags).map_err(|error| Error::Usage(error.to_string()))?;
        most = plan.possible(hard).unwrap_or(usize::MAX);
        if most >= wanted {
            return Ok((processes, wanted));
        }
    }
    Ok((MAX_PROCESSES, most))
}
