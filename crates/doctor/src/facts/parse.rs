//! Texts of the kernel as numbers. A text of another form gives nothing.

use super::CpuTimes;

/// Reads the numbers of a line, such as a kernel setting.
#[must_use]
pub fn numbers(text: &str) -> Option<Vec<u64>> {
    let number = |word: &str| match word.parse::<i64>() {
        // -1 and the like mean no limit.
        Ok(negative) if negative < 0 => Ok(u64::MAX),
        _ => word.parse::<u64>(),
    };
    let all: Result<Vec<u64>, _> = text.split_whitespace().map(number).collect();
    all.ok().filter(|all| !all.is_empty())
}

/// Reads a limit, where `max` and `unlimited` stand for none.
#[must_use]
pub fn limit(text: &str) -> Option<u64> {
    match text.trim() {
        "max" | "unlimited" | "infinity" => Some(u64::MAX),
        text => text.parse().ok(),
    }
}

/// Reads the soft and the hard limit of a row of `/proc/self/limits`.
#[must_use]
pub fn process_limit(text: &str, name: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = line.split_whitespace();
    Some((limit(words.next()?)?, limit(words.next()?)?))
}

/// Reads a value after `name:`; a unit of kB multiplies it.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<u64> {
    let line = line_of(text, name)?;
    let mut words = line.split_whitespace();
    let value: u64 = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => value.checked_mul(1024),
        _ => Some(value),
    }
}

/// Returns the text after `name:`.
#[must_use]
pub fn line_of<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let rest = |line: &'t str| line.trim_start().strip_prefix(name)?.strip_prefix(':');
    text.lines().find_map(rest).map(str::trim)
}

/// Reads a bit mask in hexadecimal.
#[must_use]
pub fn mask(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim(), 16).ok()
}

/// Reads ranges such as `0-3,8`.
#[must_use]
pub fn ranges(text: &str) -> Option<Vec<(u64, u64)>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last).then_some((first, last))
    };
    text.trim().split(',').filter(|part| !part.is_empty()).map(range).collect()
}

/// Returns the number of members of ranges.
#[must_use]
pub fn members(ranges: &[(u64, u64)]) -> u64 {
    let size = |(first, last): &(u64, u64)| last.saturating_sub(*first).saturating_add(1);
    ranges.iter().map(size).fold(0, u64::saturating_add)
}

/// Reads the sum of a column of `/proc/net/softnet_stat`, which is hexadecimal.
#[must_use]
pub fn softnet(text: &str, column: usize) -> Option<u64> {
    let value = |line: &str| mask(line.split_whitespace().nth(column)?);
    let values: Option<Vec<u64>> = text.lines().map(value).collect();
    values.filter(|all| !all.is_empty()).map(|all| all.into_iter().fold(0, u64::saturating_add))
}

/// Reads the times of each CPU from `/proc/stat`.
#[must_use]
pub fn cpu_times(text: &str) -> Vec<CpuTimes> {
    let times = |line: &str| {
        let rest = line.strip_prefix("cpu").filter(|rest| !rest.starts_with(' '))?;
        let mut words = rest.split_whitespace();
        words.next()?.parse::<u64>().ok()?;
        let times: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let at = |index: usize| times.get(index).copied().unwrap_or(0);
        // user, nice, system, idle, iowait, irq, softirq, steal; what follows is a part of user.
        let all = times.iter().take(8).copied().fold(0, u64::saturating_add);
        Some(CpuTimes { all, soft_interrupts: at(6), stolen: at(7) })
    };
    text.lines().filter_map(times).collect()
}

/// Reads the interrupts of devices whose row has one of `names`, by CPU, from `/proc/interrupts`.
#[must_use]
pub fn interrupts(text: &str, names: &[String]) -> Vec<u64> {
    let mut lines = text.lines();
    let cpus = lines.next().map_or(0, |head| head.split_whitespace().count());
    let mut sums = vec![0u64; cpus.min(MAX_CPUS)];
    let is_one = |line: &&str| names.iter().any(|name| has_name(line, name));
    for line in lines.filter(is_one) {
        let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
    }
    sums
}

/// Returns whether a row names a device: not as a part of another name.
fn has_name(row: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric();
    !name.is_empty()
        && row.match_indices(name).any(|(at, _)| {
            let (before, after) = (&row[..at], &row[at + name.len()..]);
            !before.ends_with(is_part) && !after.starts_with(is_part)
        })
}

/// Maximum CPUs of a kernel.
const MAX_CPUS: usize = 8192;

/// Returns the word in brackets: `always [madvise] never`.
#[must_use]
pub fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// Reads the quota of a cgroup in thousandths of a CPU: `cpu.max` of version 2.
#[must_use]
pub fn cpu_quota(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    thousandths(quota.parse().ok()?, period.trim().parse().ok()?)
}

/// Returns a quota of microseconds a period in thousandths of a CPU.
#[must_use]
pub fn thousandths(quota: u64, period: u64) -> Option<u64> {
    quota.checked_mul(1_000)?.checked_div(period)
}

/// Returns whether a kernel's version, such as `6.18.44-fc`, is at least `wanted`.
#[must_use]
pub fn is_at_least(version: &str, wanted: (u64, u64)) -> Option<bool> {
    let mut parts = version.trim().split(|c: char| !c.is_ascii_digit());
    let major = parts.next()?.parse::<u64>().ok()?;
    let minor = parts.next()?.parse::<u64>().ok()?;
    Some((major, minor) >= wanted)
}

/// Reads a span of time as systemd has it, such as `1min 30s` or `90`, in seconds.
#[must_use]
pub fn seconds(text: &str) -> Option<u64> {
    if text.trim() == "infinity" {
        return Some(u64::MAX);
    }
    let mut sum = 0u64;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let value: u64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let each = match &rest[..letters] {
            "" | "s" | "sec" | "second" | "seconds" => value,
            "ms" | "msec" => value.div_ceil(1_000),
            "us" | "usec" => value.div_ceil(1_000_000),
            "m" | "min" | "minute" | "minutes" => value.checked_mul(60)?,
            "h" | "hr" | "hour" | "hours" => value.checked_mul(3600)?,
            "d" | "day" | "days" => value.checked_mul(24 * 3600)?,
            _ => return None,
        };
        sum = sum.checked_add(each)?;
        rest = rest[letters..].trim_start();
    }
    Some(sum)
}

/// Reads the settings of a file of sysctl.d: names with dots, and values.
#[must_use]
pub fn sysctl_settings(text: &str) -> Vec<(String, String)> {
    let pair = |line: &str| {
        let line = line.trim().trim_start_matches('-');
        if line.starts_with(['#', ';']) {
            return None;
        }
        let (key, value) = line.split_once('=')?;
        Some((key.trim().replace('/', "."), value.trim().to_owned()))
    };
    text.lines().filter_map(pair).collect()
}

/// Returns the last value of a key in a section of a unit of systemd; an empty value resets it.
#[must_use]
pub fn unit_value<'t>(text: &'t str, section: &str, key: &str) -> Option<&'t str> {
    let mut is_inside = false;
    let mut found = None;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            is_inside = name.strip_suffix(']') == Some(section);
        } else if let Some((name, value)) = line.split_once('=')
            && is_inside
            && name.trim() == key
        {
            found = Some(value.trim());
        }
    }
    found
}
