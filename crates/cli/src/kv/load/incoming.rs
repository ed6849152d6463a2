//! The records of all files, read by a thread of its own: a slow pipe keeps no operation waiting that is under way.

use super::progress::Progress;
use super::{Format, Item, Options, Trouble, folder, json_lines, rows};
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
/// The time between two looks for the next item while operations are under way.
const BETWEEN_LOOKS: Lifetime = Lifetime::millis(1);
/// The file that is standard input.
const STANDARD_INPUT: &str = "-";

/// All that a file has, until the first mistake in it.
type Items = Box<dyn Iterator<Item = Result<Item, Trouble>>>;

/// The items of all files, one after another.
pub struct Incoming {
    items: Receiver<Result<Item, Trouble>>,
    /// Records that were taken and are not stored yet.
    under_way: Cell<usize>,
}

impl Incoming {
    /// Begins to read. A file that is not there is noticed before anything is stored.
    pub fn open(options: &Options, progress: &Progress) -> Result<Self, Trouble> {
        let standard = options.files.iter().filter(|path| is_standard_input(path)).count();
        if standard > 1 {
            return Err(Trouble::Call("standard input, `-`, is named more than once".to_owned()));
        }
        let files =
            options.files.iter().map(|path| format_of(options, path).map(|format| (path.clone(), format)));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let reader = Reader { key: options.key.clone(), value: options.value.clone(), bar: progress.bar() };
        let (opened, wait_until_opened) = sync_channel(1);
        let (send, items) = sync_channel(READ_AHEAD);
        // Nobody joins the thread: after an error elsewhere it may wait for a pipe from which nothing comes any more.
        let thread = std::thread::Builder::new().name("load".to_owned());
        let begun = thread.spawn(move || reader.read(&files, &opened, &send));
        begun.map_err(|error| Trouble::File { what: "a thread to read the files".to_owned(), error })?;
        wait_until_opened.recv().expect("the thread answers before it ends")?;
        Ok(Self { items, under_way: Cell::new(0) })
    }

    /// The next item. `None` at the end of the last file.
    pub async fn next(&self, pipeline: &Pipeline) -> Option<Result<Item, Trouble>> {
        loop {
            match self.items.try_recv() {
                Ok(item) => return Some(item),
                Err(TryRecvError::Disconnected) => return None,
                // Where the session is over, no sleep lasts, and what is under way fails when the next item does.
                Err(TryRecvError::Empty) if self.under_way.get() == 0 || pipeline.is_over() => {
                    return self.items.recv().ok();
                }
                // Where the session is over the loop comes to the arm above.
                Err(TryRecvError::Empty) => {
                    let _ = pipeline.sleep(BETWEEN_LOOKS).await;
                }
            }
        }
    }

    /// A record is being stored from now on.
    pub fn begun(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// A record is stored, or never will be.
    pub fn done(&self) {
        self.under_way.set(self.under_way.get() - 1);
    }
}

/// What the thread reads with.
struct Reader {
    key: String,
    value: Option<String>,
    bar: ProgressBar,
}

impl Reader {
    /// Opens all files, says whether that went well, and sends what is in them until nobody wants it.
    fn read(
        &self,
        files: &[(PathBuf, Format)],
        opened: &SyncSender<Result<(), Trouble>>,
        send: &SyncSender<Result<Item, Trouble>>,
    ) {
        let all = files.iter().map(|(path, format)| self.items(path, *format)).collect::<Result<Vec<_>, _>>();
        let all = match all {
            Ok(all) => all,
            Err(trouble) => return drop(opened.send(Err(trouble))),
        };
        if opened.send(Ok(())).is_ok() {
            let _ = all.into_iter().flatten().try_for_each(|item| send.send(item));
        }
    }

    fn items(&self, path: &Path, format: Format) -> Result<Items, Trouble> {
        let (key, value) = (&self.key, self.value.as_deref());
        if format == Format::Folder {
            return Ok(Box::new(folder::items(path, self.bar.clone())?));
        }
        let (input, name) = self.input(path)?;
        match format {
            Format::Csv => Ok(Box::new(rows::items(input, name, key, value)?)),
            _ => Ok(Box::new(json_lines::items(input, name, key, value))),
        }
    }

    /// The bytes of a file, and how errors call it.
    fn input(&self, path: &Path) -> Result<(Box<dyn Read>, String), Trouble> {
        if is_standard_input(path) {
            return Ok((Box::new(std::io::stdin()), "standard input".to_owned()));
        }
        let name = path.display().to_string();
        let file =
            File::open(path).map_err(|error| Trouble::Call(format!("{name} cannot be read: {error}")))?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        self.bar.set_length(self.bar.length().unwrap_or(0) + bytes);
        Ok((Box::new(self.bar.wrap_read(file)), name))
    }
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

fn format_of(options: &Options, path: &Path) -> Result<Format, Trouble> {
    let at = path.display();
    let format = options.format.or_else(|| Format::of(path)).ok_or_else(|| {
        Trouble::Call(format!("the name of {at} does not tell its format: say --format csv or jsonl"))
    })?;
    match (format == Format::Folder, path.is_dir()) {
        (true, false) => Err(Trouble::Call(format!("{at} is no folder: leave --format folder out"))),
        (false, true) => Err(Trouble::Call(format!("{at} is a folder: leave --format out"))),
        _ => Ok(format),
    }
}
