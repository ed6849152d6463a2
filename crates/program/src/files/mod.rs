//! Files that the command line names.
//!
//! `-` is a standard stream in every command: standard input if the command reads, standard output if it writes.
//! If neither makes sense, `-` is refused: a file of that name is usually a mistake, and a backup written to it is
//! lost. `./-` names such a file nevertheless.

mod destination;
mod text;

pub use destination::Destination;
pub use text::text;

use clap::builder::{PathBufValueParser, TypedValueParser};
use portcullis::host::log_file;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The name of a standard stream.
const STANDARD: &str = "-";

/// Source of a command's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Standard input.
    Standard,
    /// The file at this path.
    File(PathBuf),
}

/// Destination of a command's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Standard,
    /// The file at this path.
    File(PathBuf),
}

/// Parses a file to read; `-` is standard input.
pub fn input() -> impl TypedValueParser<Value = Input> {
    PathBufValueParser::new().map(|path| if is_standard(&path) { Input::Standard } else { Input::File(path) })
}

/// Parses a file to write; `-` is standard output.
pub fn output() -> impl TypedValueParser<Value = Output> {
    PathBufValueParser::new()
        .map(|path| if is_standard(&path) { Output::Standard } else { Output::File(path) })
}

/// Parses a path that cannot be a standard stream.
pub fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match is_standard(&path) {
        true => Err("no standard stream can be used here: name a path, and ./- for one of that name"),
        false => Ok(path),
    })
}

fn is_standard(path: &Path) -> bool {
    path == Path::new(STANDARD)
}

impl Input {
    /// The path, if the input is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Standard => None,
            Self::File(path) => Some(path),
        }
    }

    /// Opens the file, or takes standard input. Opening a pipe blocks until it has a writer: only commands that a
    /// signal ends in the default way may use this.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open(&self) -> io::Result<Box<dyn Read>> {
        match self {
            Self::Standard => Ok(Box::new(io::stdin())),
            Self::File(path) => Ok(Box::new(File::open(path)?)),
        }
    }

    /// Reads everything, as UTF-8 text of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// Errors of the operating system, or a text that explains why the content is rejected.
    pub fn read_text(&self, bytes_max: u64) -> io::Result<String> {
        let mut content = Vec::new();
        text(self.open()?)?.take(bytes_max + 1).read_to_end(&mut content)?;
        if content.len() as u64 > bytes_max {
            return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
        }
        String::from_utf8(content).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            io::Error::other(format!("line {} is not UTF-8", line_at(valid)))
        })
    }
}

/// The number of the line that follows this text, counted from one.
pub fn line_at(before: &[u8]) -> usize {
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

impl Output {
    /// The path, if the output is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Standard => None,
            Self::File(path) => Some(path),
        }
    }

    /// Begins to write the file, or standard output.
    ///
    /// # Errors
    /// The errors of [`Destination::file`].
    pub fn create(&self) -> io::Result<Destination> {
        match self {
            Self::Standard => Ok(Destination::standard()),
            Self::File(path) => Destination::file(path),
        }
    }

    /// Writes all bytes. It is no error if the reader leaves.
    ///
    /// # Errors
    /// Errors of the operating system, a full disk included.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let written = self.create().and_then(|mut to| {
            to.write_all(bytes)?;
            to.finish()
        });
        orderly(written)
    }
}

/// Turns the error of a reader that has left into success.
pub fn orderly(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a service's report to the path in place of the previous content, under the rules of a service's logs: see
/// [`log_file`].
///
/// # Errors
/// The errors of [`log_file::open`] and of writing.
pub fn write_report(path: &Path, text: &str) -> io::Result<()> {
    let mut file = log_file::open(path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard => f.write_str("standard input"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard => f.write_str("standard output"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    fn parsed<T: Clone + Send + Sync + 'static>(
        parser: impl TypedValueParser<Value = T>,
        word: &str,
    ) -> Result<T, clap::Error> {
        let file = Arg::new("file").long("file").value_parser(parser);
        let matches =
            Command::new("x").no_binary_name(true).arg(file).try_get_matches_from(["--file", word])?;
        Ok(matches.get_one::<T>("file").cloned().expect("it is given"))
    }

    #[test]
    fn a_dash_is_a_stream_or_refused_and_a_file_of_that_name_can_be_named() {
        assert_eq!(parsed(input(), "-").expect("a stream"), Input::Standard);
        assert_eq!(parsed(output(), "-").expect("a stream"), Output::Standard);
        assert_eq!(parsed(input(), "./-").expect("a file"), Input::File("./-".into()));
        assert_eq!(parsed(output(), "./-").expect("a file"), Output::File("./-".into()));
        assert_eq!(parsed(path(), "./-").expect("a path"), Path::new("./-"));
        let refused = parsed(path(), "-").expect_err("no stream").to_string();
        assert!(refused.contains("./-") && refused.contains("--file"), "{refused}");
    }

    #[test]
    fn text_has_a_limit_and_what_is_none_is_named_with_its_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |content: &[u8]| {
            let path = folder.path().join("file");
            std::fs::write(&path, content).expect("a file");
            Input::File(path).read_text(8).map_err(|error| error.to_string())
        };
        assert_eq!(read(b"\xef\xbb\xbf12345678"), Ok("12345678".to_owned()));
        assert!(read(b"123456789").is_err_and(|why| why.contains("more than 8 bytes")));
        assert!(read(b"a\nb\n\xff").is_err_and(|why| why.contains("line 3")));
        assert!(Input::File("/dev/zero".into()).read_text(8).is_err());
    }

    #[test]
    fn a_report_replaces_what_was_there_and_follows_no_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (report, link) = (folder.path().join("report"), folder.path().join("link"));
        for text in ["longer than the next\n", "short\n"] {
            write_report(&report, text).expect("written");
            assert_eq!(std::fs::read_to_string(&report).expect("text"), text);
        }
        std::os::unix::fs::symlink(&report, &link).expect("a link");
        assert!(write_report(&link, "x").is_err());
        assert_eq!(std::fs::read_to_string(&report).expect("text"), "short\n");
    }
}
