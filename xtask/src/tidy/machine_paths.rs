//! Checks that tracked files contain no data of one machine: no absolute path of a user, and no
//! download host.

use std::path::Path;

use super::Source;

/// Hosts of downloads. Web pages (`docs.rs`, `crates.io/crates/...`, `pypi.org/project/...`) are
/// allowed. In two parts, so that this file does not name them.
const HOSTS: [(&str, &str); 7] = [
    ("registry", "npmjs"),
    ("registry", "yarnpkg"),
    ("files", "pythonhosted"),
    ("static", "crates"),
    ("index", "crates"),
    ("proxy", "golang"),
    ("deb", "debian"),
];

/// Top-level folders that contain one user's files.
const HOMES: [&str; 4] = ["root", "home", "Users", "work"];

/// Returns the paths of the machine that this runs on.
pub(super) fn this_machine(root: &Path) -> Vec<String> {
    let home = std::env::home_dir();
    let paths = [Some(root), home.as_deref()].into_iter().flatten();
    paths
        .filter(|path| path.components().count() > 2)
        .map(|path| path.display().to_string())
        .collect()
}

/// Returns every line that names a path or host of one machine.
pub(super) fn problems(files: &[Source], machine: &[String]) -> Vec<String> {
    let homes = HOMES.map(|home| format!("/{home}/"));
    let hosts = HOSTS.map(|(first, second)| format!("{first}.{second}."));
    let mut problems = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let path = homes.iter().chain(machine).find(|path| has_path(line, path));
            let host = hosts.iter().find(|host| line.contains(host.as_str()));
            for stray in path.into_iter().chain(host) {
                problems.push(format!("{}:{}: {stray}", file.path, index + 1));
            }
        }
    }
    problems
}

/// Returns whether the line has an absolute path that is not a part of another path: `crates/work/`
/// and `https://host/home/` do not count.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|c: char| {
            c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '_' | '~' | '}' | '$')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(line: &str) -> usize {
        let file = Source { path: "README.md".into(), text: line.into() };
        problems(&[file], &["/srv/ci/checkout".into()]).len()
    }

    #[test]
    fn paths_and_hosts_of_one_machine_are_found() {
        let (home, host) =
            (format!("/{}/ann", HOMES[1]), format!("{}.{}.org", HOSTS[0].0, HOSTS[0].1));
        for line in [
            format!("see {home}/throng"),
            format!("\"{home}/.cargo\""),
            format!("\"resolved\": \"https://{host}/ws/-/ws-8.tgz\""),
            "built in /srv/ci/checkout/target".to_owned(),
        ] {
            assert_eq!(complaints(&line), 1, "{line}");
        }
    }

    #[test]
    fn general_paths_are_allowed() {
        for line in [
            "crates/work/src",
            "GET /echo",
            "/tmp/x",
            "/usr/bin/python3",
            "https://example.org/home/page",
            "$HOME/root/x",
        ] {
            assert_eq!(complaints(line), 0, "{line}");
        }
    }
}
