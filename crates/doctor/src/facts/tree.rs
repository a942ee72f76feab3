//! A tree of files: of this machine, or recorded.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::parse;

/// The largest part of a file that is read. The tables of many devices are smaller.
const MOST: u64 = 4 << 20;

/// Maximum names of a folder.
const MAX_NAMES: usize = 100_000;

/// A tree of files.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns whether the files are this machine's own.
    pub(super) fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the name of the folder that a link leads to.
    pub(super) fn target(&self, link: &str) -> Option<String> {
        let target = fs::canonicalize(self.root.join(link)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Reads a file.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let file = fs::File::open(self.root.join(path)).ok()?;
        file.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the names in a folder, in order.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
        let mut names: Vec<String> = entries.take(MAX_NAMES).filter_map(name).collect();
        names.sort();
        names
    }

    /// Returns a variable of the environment with which the process began.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        let all = self.text("proc/self/environ")?;
        let value = |pair: &str| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        all.split('\0').find_map(value)
    }

    /// Reads a limit.
    pub(super) fn limit(&self, path: &str) -> Option<u64> {
        parse::limit(&self.text(path)?)
    }

    /// Returns whether there is a file or a folder.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Returns the lowest value that `parse` finds in the files of a cgroup and of the cgroups
    /// above. In a container the path is the host's and does not exist; the root is the
    /// container's own.
    pub(super) fn lowest(
        &self,
        groups: &str,
        file: &str,
        version_1: Option<(&str, &str)>,
        parse: impl Fn(&str) -> Option<u64>,
    ) -> Option<u64> {
        let values = self.folders(groups, file, version_1).into_iter();
        values.filter_map(|path| parse(&self.text(&path)?)).min()
    }

    /// Returns the files of a cgroup and of the cgroups above, the process's own first.
    pub(super) fn folders(
        &self,
        groups: &str,
        file: &str,
        version_1: Option<(&str, &str)>,
    ) -> Vec<String> {
        let mut paths = Vec::new();
        for line in groups.lines() {
            let Some((controllers, path)) =
                line.split_once(':').and_then(|it| it.1.split_once(':'))
            else {
                continue;
            };
            let (root, file) = match version_1 {
                _ if controllers.is_empty() => ("sys/fs/cgroup".to_owned(), file),
                Some((controller, file)) if controllers.split(',').any(|it| it == controller) => {
                    (format!("sys/fs/cgroup/{controller}"), file)
                }
                _ => continue,
            };
            let own = Path::new(path.trim_start_matches('/'));
            let each = own.ancestors().map(|at| Path::new(&root).join(at).join(file));
            paths.extend(each.filter_map(|path| path.to_str().map(str::to_owned)));
        }
        paths
    }
}
