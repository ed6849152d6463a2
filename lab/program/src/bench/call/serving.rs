//! The server of the calls, in a separate process.

use super::super::own_process::{OwnProcess, wait_for_the_end};
use super::super::{BenchError, processors};
use super::failed;
use super::rows::{COPIED, ONE_SHOT, PAGE_STEP, SANDBOXED, TRUSTED};
use crate::output::say;
use portcullis_rpc::channel::{
    Channel, Copied, Failure, OneShot, Reply, Sandboxed, ServerOptions, Trusted, serve,
};
use portcullis_rpc::{Source, View};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Result of a method that may have arguments: the word, plus the value at the beginning of the first page if there is
/// one.
fn sum(word: u64, view: &View<'_>, first: impl FnOnce() -> Result<u64, Failure>) -> Result<u64, Failure> {
    if view.bytes().is_empty() { Ok(word) } else { Ok(word.wrapping_add(first()?)) }
}

/// Returns the sum of the call's word and of the words at the beginning of the pages.
fn sum_of_pages(page: &Trusted<'_, u64>, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let mut sum = page.word();
    let from = page.root().address();
    for at in (0..page.scope().length).step_by(PAGE_STEP) {
        sum = sum.wrapping_add(page.heap().value::<u64>(from.saturating_add(at))?);
    }
    reply.set_word(sum);
    Ok(())
}

/// A channel with all methods.
pub fn channel(path: &Path) -> Channel {
    serve(path)
        .with(ServerOptions { arguments_max: 16 << 20, ..ServerOptions::default() })
        .copied(COPIED, |page: Copied<'_, u64>, reply| {
            reply.set_word(sum(page.word(), page.view(), || Ok(*page.get()?))?);
            Ok(())
        })
        .sandboxed(SANDBOXED, |page: Sandboxed<'_, u64>, reply| {
            reply.set_word(sum(page.word(), page.view(), || Ok(*page.get()?))?);
            Ok(())
        })
        .one_shot(ONE_SHOT, |page: OneShot<'_, u64>, reply| {
            reply.set_word(sum(page.word(), page.view(), || Ok(*page.get()?))?);
            Ok(())
        })
        .trusted(TRUSTED, |page: Trusted<'_, u64>, reply| sum_of_pages(&page, reply))
}

/// Serves until its standard input ends.
pub fn be_server(path: &Path) -> Result<(), BenchError> {
    let serving = channel(path).on_processors(processors::pair().map(|(server, _)| server)).start();
    let _server = serving.map_err(failed)?;
    say("serving");
    std::io::stdout().flush()?;
    wait_for_the_end()
}

/// The server's process. Dropping it ends the process.
pub struct ServerProcess {
    pub path: PathBuf,
    _process: OwnProcess,
    _folder: tempfile::TempDir,
}

impl ServerProcess {
    pub fn start() -> Result<Self, BenchError> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("calls.sock");
        processors::unpin();
        let arguments = [OsStr::new("bench"), OsStr::new("call"), OsStr::new("--serve"), path.as_os_str()];
        let process = OwnProcess::start("the server", arguments)?;
        processors::pin_client();
        Ok(Self { path, _process: process, _folder: folder })
    }
}
