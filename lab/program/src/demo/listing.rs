//! The files that the demo shows: the files of a folder, up to a limit. The demo reports when the limit is reached.

use std::path::{Path, PathBuf};

/// The most files that are used.
pub const FILES_MAX: usize = 4_000;
/// The most bytes of all files together.
pub const BYTES_MAX: u64 = 64 << 20;
/// The most folder entries that are looked at, so that a demo of `/` ends as well.
const ENTRIES_MAX: usize = 100_000;
/// The most reasons that are listed. The others are counted.
const REASONS_MAX: usize = 8;
/// Folders whose content is skipped.
const SKIPPED: [&str; 2] = [".git", "target"];

/// A file of the folder.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The file's path.
    pub path: PathBuf,
    /// The file's length when it was listed.
    pub bytes: u64,
}

/// The files that were found.
#[derive(Debug, Default)]
pub struct Listing {
    /// The files to use.
    pub files: Vec<Entry>,
    /// The bytes of these files.
    pub bytes: u64,
    /// Files that were left out.
    pub left_out: usize,
    /// The first reasons for which files were left out.
    pub reasons: Vec<String>,
    looked_at: usize,
}

impl Listing {
    /// The regular files below `folder`. Links are not followed.
    ///
    /// # Errors
    /// The folder itself cannot be read.
    pub fn of(folder: &Path) -> std::io::Result<Self> {
        let mut listing = Self::default();
        let mut folders = vec![(folder.to_owned(), std::fs::read_dir(folder)?)];
        while let Some((folder, entries)) = folders.pop() {
            let mut inner = listing.take(&folder, entries);
            // The entry that is pushed last is taken first.
            inner.sort_by(|a, b| b.cmp(a));
            for folder in inner {
                match std::fs::read_dir(&folder) {
                    Ok(entries) => folders.push((folder, entries)),
                    Err(error) => listing.leave_out(&folder, &error.to_string()),
                }
            }
            if listing.is_full() {
                let most = format!("the demo stops at {FILES_MAX} files and {ENTRIES_MAX} entries");
                listing.leave_out(&folder, &format!("here and beyond: {most}"));
                break;
            }
        }
        Ok(listing)
    }

    fn is_full(&self) -> bool {
        self.files.len() >= FILES_MAX || self.looked_at >= ENTRIES_MAX
    }

    /// Takes the files of one folder. Returns its subfolders.
    fn take(&mut self, folder: &Path, entries: std::fs::ReadDir) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        let mut files = Vec::new();
        for entry in entries.take(ENTRIES_MAX) {
            self.looked_at += 1;
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.leave_out(folder, &error.to_string());
                    continue;
                }
            };
            let path = entry.path();
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() && is_skipped(&path) => {}
                Ok(metadata) if metadata.is_dir() => folders.push(path),
                Ok(metadata) if metadata.is_file() => files.push(Entry { path, bytes: metadata.len() }),
                Ok(_) => self.leave_out(&path, "no regular file"),
                Err(error) => self.leave_out(&path, &error.to_string()),
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        for file in files {
            self.take_file(file);
        }
        folders
    }

    fn take_file(&mut self, file: Entry) {
        if file.path.to_str().is_none() {
            self.leave_out(&file.path, "its name is not UTF-8");
        } else if self.files.len() >= FILES_MAX {
            self.leave_out(&file.path, &format!("the demo shows {FILES_MAX} files"));
        } else if file.bytes > BYTES_MAX - self.bytes {
            let limit = BYTES_MAX >> 20;
            let why = format!("{} bytes are beyond what is left of the demo's {limit} MiB", file.bytes);
            self.leave_out(&file.path, &why);
        } else {
            self.bytes += file.bytes;
            self.files.push(file);
        }
    }

    /// Counts an entry that is left out. The first reasons are kept.
    pub fn leave_out(&mut self, path: &Path, why: &str) {
        self.left_out += 1;
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(format!("{}: {why}", path.display()));
        }
    }
}

fn is_skipped(path: &Path) -> bool {
    path.file_name().is_some_and(|name| SKIPPED.iter().any(|&skipped| name == skipped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_are_listed_in_order_without_what_git_and_cargo_keep() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["b/z", "b/a", "a", "target/x", ".git/y", "c/empty"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("one")).expect("a folder");
            fs::write(path, if name == "c/empty" { "" } else { name }).expect("a file");
        }
        let listing = Listing::of(folder.path()).expect("a listing");
        let names: Vec<_> =
            listing.files.iter().map(|it| it.path.strip_prefix(folder.path()).expect("inside")).collect();
        assert_eq!(names, ["a", "b/a", "b/z", "c/empty"].map(Path::new));
        assert_eq!((listing.bytes, listing.left_out), (1 + 3 + 3, 0));
    }

    #[test]
    fn what_does_not_fit_or_is_no_file_is_left_out_aloud() {
        let folder = tempfile::tempdir().expect("a folder");
        let huge = fs::File::create(folder.path().join("huge")).expect("a file");
        huge.set_len(BYTES_MAX + 1).expect("a hole");
        fs::write(folder.path().join("small"), "small").expect("a file");
        std::os::unix::fs::symlink("small", folder.path().join("link")).expect("a link");
        let listing = Listing::of(folder.path()).expect("a listing");
        assert_eq!((listing.files.len(), listing.bytes, listing.left_out), (1, 5, 2));
        assert!(listing.reasons.iter().any(|why| why.contains("64 MiB")), "{:?}", listing.reasons);
        assert!(listing.reasons.iter().any(|why| why.contains("no regular file")), "{:?}", listing.reasons);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        assert!(Listing::of(Path::new("/nowhere/at/all")).is_err());
    }
}
