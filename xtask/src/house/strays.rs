//! Nothing of one machine in tracked files: no absolute path of somebody's, no host that packages
//! came from.

use std::path::Path;

use super::Source;

/// Hosts of downloads. Pages for people (`docs.rs`, `crates.io/crates/...`, `pypi.org/project/...`)
/// are no strays.
/// In two parts, so that this file names none either.
const HOSTS: [(&str, &str); 7] = [
    ("registry", "npmjs"),
    ("registry", "yarnpkg"),
    ("files", "pythonhosted"),
    ("static", "crates"),
    ("index", "crates"),
    ("proxy", "golang"),
    ("deb", "debian"),
];

/// Folders at the top in which only one person's files lie.
const HOMES: [&str; 4] = ["root", "home", "Users", "work"];

/// Paths of the machine that this runs on.
pub(super) fn this_machine(root: &Path) -> Vec<String> {
    let home = std::env::home_dir();
    let paths = [Some(root), home.as_deref()].into_iter().flatten();
    paths
        .filter(|path| path.components().count() > 2)
        .map(|path| path.display().to_string())
        .collect()
}

/// Every line that has a stray.
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

/// An absolute path begins where no other path goes on: `crates/work/` and `https://host/home/`
/// have none.
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
    fn what_everybody_has_is_left_alone() {
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
