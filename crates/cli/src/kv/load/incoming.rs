//! The records of all files, read by a separate thread: a slow pipe does not delay operations in flight.

use super::dialect::{Dialect, delimiter_of};
use super::progress::Progress;
use super::rejects::Rejects;
use super::{Format, Item, KvCommandError, KvLoadOptions, Row, Rows, folder, json_lines::Lines};
use crate::files::Input;
use indicatif::ProgressBar;
use portcullis::Lifetime;
use portcullis_structures::Pipeline;
use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Items that are read ahead.
const READ_AHEAD: usize = 64;
/// The time between two polls for the next item while operations are in flight.
const BETWEEN_LOOKS: Lifetime = Lifetime::millis(1);

/// The content of a file, until the first mistake in it.
enum Content {
    /// The files of a folder.
    Files(Box<dyn Iterator<Item = Result<Item, KvCommandError>>>),
    Rows(Box<dyn Iterator<Item = Result<Row, KvCommandError>>>),
}

/// A file that is open.
struct Opened {
    content: Content,
    /// The bytes before its rows.
    preamble: Vec<u8>,
}

/// The items of all files, one after another.
pub struct Incoming {
    items: Receiver<Result<Item, KvCommandError>>,
    /// Records that were taken and are not stored yet.
    under_way: Cell<usize>,
}

impl Incoming {
    /// Begins to read. A missing file is reported before anything is stored.
    pub fn open(options: &KvLoadOptions, progress: &Progress) -> Result<Self, KvCommandError> {
        let standard = options.files.iter().filter(|file| **file == Input::Standard).count();
        if standard > 1 {
            return Err(KvCommandError::Call("standard input, `-`, is named more than once".to_owned()));
        }
        let files =
            options.files.iter().map(|file| format_of(options, file).map(|format| (file.clone(), format)));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let dialect = Dialect::of(options);
        files.iter().try_for_each(|(_, format)| dialect.check(*format))?;
        let reader = Reader { files, dialect, reject: options.reject.clone(), bar: progress.bar() };
        let (opened, wait_until_opened) = sync_channel(1);
        let (send, items) = sync_channel(READ_AHEAD);
        // The thread is never joined: after an error elsewhere it may wait for a pipe that delivers nothing more.
        let thread = std::thread::Builder::new().name("load".to_owned());
        let begun = thread.spawn(move || reader.read(&opened, &send));
        begun
            .map_err(|error| KvCommandError::File { what: "a thread to read the files".to_owned(), error })?;
        wait_until_opened.recv().expect("the thread answers before it ends")?;
        Ok(Self { items, under_way: Cell::new(0) })
    }

    /// The next item. `None` at the end of the last file.
    pub async fn next(&self, pipeline: &Pipeline) -> Option<Result<Item, KvCommandError>> {
        loop {
            match self.items.try_recv() {
                Ok(item) => return Some(item),
                Err(TryRecvError::Disconnected) => return None,
                // If the session is over, a sleep returns at once, so this blocks. Operations in flight fail when the
                // next item does.
                Err(TryRecvError::Empty) if self.under_way.get() == 0 || pipeline.is_over() => {
                    return self.items.recv().ok();
                }
                // If the session ends during the sleep, the loop reaches the arm above.
                Err(TryRecvError::Empty) => {
                    let _ = pipeline.sleep(BETWEEN_LOOKS).await;
                }
            }
        }
    }

    /// Counts a record that is being stored from now on.
    pub fn begun(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// Counts a record that is stored, or never will be.
    pub fn done(&self) {
        self.under_way.set(self.under_way.get() - 1);
    }
}

/// The state of the thread that reads.
struct Reader {
    files: Vec<(Input, Format)>,
    dialect: Dialect,
    reject: Option<PathBuf>,
    bar: ProgressBar,
}

impl Reader {
    /// Opens all files, reports whether that succeeded, and sends their content until the receiver is dropped.
    fn read(
        &self,
        opened: &SyncSender<Result<(), KvCommandError>>,
        send: &SyncSender<Result<Item, KvCommandError>>,
    ) {
        let (files, mut rejects) = match self.open() {
            Ok(open) => open,
            Err(error) => return drop(opened.send(Err(error))),
        };
        if opened.send(Ok(())).is_err() {
            return;
        }
        let _ = files
            .into_iter()
            .try_for_each(|file| items(file.content, rejects.as_mut()).try_for_each(|item| send.send(item)));
    }

    /// Opens all files and the file of rejected rows.
    fn open(&self) -> Result<(Vec<Opened>, Option<Rejects>), KvCommandError> {
        let files = self.files.iter().map(|(file, format)| self.content(file, *format));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let rejects = self.reject.as_ref().map(|path| self.rejects(path, &files)).transpose()?;
        Ok((files, rejects))
    }

    /// Creates the file of rejected rows. All rows must be of one kind, so that the file can be loaded as a whole.
    fn rejects(&self, path: &Path, files: &[Opened]) -> Result<Rejects, KvCommandError> {
        let mut kinds =
            self.files.iter().map(|(_, format)| format).zip(files.iter().map(|file| &file.preamble));
        let (format, preamble) = kinds.next().expect("a call names a file");
        if *format == Format::Folder {
            let why =
                "--reject takes rows, and a folder has none: files that are left out stay where they are";
            return Err(KvCommandError::Call(why.to_owned()));
        }
        if !kinds.all(|other| other == (format, preamble)) {
            let why = "--reject takes rows of one kind: load files of other formats or headers one by one";
            return Err(KvCommandError::Call(why.to_owned()));
        }
        let inputs: Vec<_> = self.files.iter().map(|(file, _)| file.clone()).collect();
        Rejects::create(path, &inputs, preamble.clone())
    }

    fn content(&self, file: &Input, format: Format) -> Result<Opened, KvCommandError> {
        let without = |content| Opened { content, preamble: Vec::new() };
        if let (Format::Folder, Some(path)) = (format, file.path()) {
            return Ok(without(Content::Files(Box::new(folder::items(path, self.bar.clone())?))));
        }
        let (input, name) = (self.input(file)?, file.to_string());
        if format == Format::Jsonl {
            return Ok(without(Content::Rows(Box::new(Lines::open(input, name, &self.dialect)?))));
        }
        let rows = Rows::open(input, name, delimiter_of(file.path()), &self.dialect)?;
        let preamble = rows.preamble().to_vec();
        Ok(Opened { content: Content::Rows(Box::new(rows)), preamble })
    }

    /// The bytes of a file.
    fn input(&self, file: &Input) -> Result<Box<dyn Read>, KvCommandError> {
        let unreadable = |error| KvCommandError::Call(format!("{file} cannot be read: {error}"));
        let Some(path) = file.path() else { return file.open().map_err(unreadable) };
        let opened = File::open(path).map_err(unreadable)?;
        let bytes = opened.metadata().map_or(0, |metadata| metadata.len());
        self.bar.set_length(self.bar.length().unwrap_or(0) + bytes);
        Ok(Box::new(self.bar.wrap_read(opened)))
    }
}

/// The items of a file. A wrong row is written into the file of rejected rows, or is a mistake if there is no such
/// file.
fn items<'r>(
    content: Content,
    mut rejects: Option<&'r mut Rejects>,
) -> Box<dyn Iterator<Item = Result<Item, KvCommandError>> + 'r> {
    match content {
        Content::Files(files) => files,
        Content::Rows(rows) => Box::new(rows.map(move |row| match (row?, rejects.as_deref_mut()) {
            (Row::Record(record), _) => Ok(Item::Record(record)),
            (Row::Wrong { place, why, row }, Some(rejects)) => {
                rejects.write(&row)?;
                Ok(Item::Rejected(format!("{place}: {why}")))
            }
            (Row::Wrong { place, why, .. }, None) => Err(KvCommandError::Input { place, why }),
        })),
    }
}

fn format_of(options: &KvLoadOptions, file: &Input) -> Result<Format, KvCommandError> {
    let format = options.format.or_else(|| file.path().and_then(Format::of)).ok_or_else(|| {
        KvCommandError::Call(format!(
            "the format does not follow from the name of {file}: add --format csv or jsonl"
        ))
    })?;
    match (format == Format::Folder, file.path().is_some_and(Path::is_dir)) {
        (true, false) => {
            Err(KvCommandError::Call(format!("{file} is not a folder: leave --format folder out")))
        }
        (false, true) => Err(KvCommandError::Call(format!("{file} is a folder: leave --format out"))),
        _ => Ok(format),
    }
}
