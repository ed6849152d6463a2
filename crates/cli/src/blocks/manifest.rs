//! The list of files and their blocks, which `put` writes and `get` and `verify` read.

use super::command_error::BlocksCommandError;
use portcullis_blocks::spread_store::Key;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

/// The version of the format.
const VERSION: u32 = 1;

/// The bytes that a block may have.
pub const BLOCK_BYTES: RangeInclusive<u64> = 1_024..=1 << 30;

/// Most bytes of a list that is read.
const BYTES_MAX: u64 = 1 << 30;

/// Files and their blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    portcullis_blocks: u32,
    /// Bytes of each block of a file but its last.
    pub block_bytes: u64,
    pub files: Vec<FileBlocks>,
}

/// A file and its blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileBlocks {
    /// The path below the folder.
    pub path: String,
    pub bytes: u64,
    /// The SHA-256 of each block, in hexadecimal.
    pub blocks: Vec<String>,
}

/// A block that a list names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBlock {
    pub key: Key,
    pub length: usize,
}

/// Returns the key of a block with these bytes.
pub fn key_of(bytes: &[u8]) -> Key {
    Sha256::digest(bytes).to_vec().into()
}

/// Returns a key in hexadecimal.
pub fn in_hexadecimal(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Manifest {
    pub fn new(block_bytes: u64, files: Vec<FileBlocks>) -> Self {
        Self { portcullis_blocks: VERSION, block_bytes, files }
    }

    /// Reads a list from a file, and checks it.
    pub fn read(path: &Path) -> Result<Self, BlocksCommandError> {
        let wrong = |why: String| BlocksCommandError::Input { place: path.display().to_string(), why };
        let length = std::fs::metadata(path).map_err(BlocksCommandError::of_file("read", path))?.len();
        if length > BYTES_MAX {
            return Err(wrong(format!("a list of blocks has at most {BYTES_MAX} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(BlocksCommandError::of_file("read", path))?;
        let list: Self = serde_json::from_str(&text).map_err(|error| {
            wrong(format!("it is no list that `portcullis blocks put` has written: {error}"))
        })?;
        if list.portcullis_blocks != VERSION {
            return Err(wrong("it is a list of another version".to_owned()));
        }
        if !BLOCK_BYTES.contains(&list.block_bytes) {
            return Err(wrong(format!("a block does not have {} bytes", list.block_bytes)));
        }
        for file in &list.files {
            file.check(list.block_bytes).map_err(|why| wrong(format!("{}: {why}", file.path)))?;
        }
        Ok(list)
    }

    /// Returns the blocks of a file, in their order.
    pub fn blocks_of<'m>(&'m self, file: &'m FileBlocks) -> impl Iterator<Item = ListedBlock> + 'm {
        let lengths = (0..file.bytes)
            .step_by(usize::try_from(self.block_bytes).unwrap_or(usize::MAX))
            .map(move |at| self.block_bytes.min(file.bytes - at));
        file.blocks.iter().zip(lengths).map(|(text, length)| ListedBlock {
            key: key_in(text).expect("the list was checked"),
            length: usize::try_from(length).expect("it is a block of this machine"),
        })
    }

    /// Number of bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

impl FileBlocks {
    fn check(&self, block_bytes: u64) -> Result<(), String> {
        self.place()?;
        if self.bytes.div_ceil(block_bytes) != self.blocks.len() as u64 {
            return Err(format!("{} blocks do not make {} bytes", self.blocks.len(), self.bytes));
        }
        match self.blocks.iter().find(|text| key_in(text).is_none()) {
            Some(text) => Err(format!("{text:?} is no SHA-256")),
            None => Ok(()),
        }
    }

    /// Returns the path below a folder. It leads to no other place.
    pub fn place(&self) -> Result<PathBuf, String> {
        let path = Path::new(&self.path);
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        if is_below && path.components().next().is_some() {
            Ok(path.to_owned())
        } else {
            Err("the path leads out of the folder".to_owned())
        }
    }
}

/// Reads a key in hexadecimal.
fn key_in(text: &str) -> Option<Key> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).ok();
    (0..64).step_by(2).map(byte).collect::<Option<Vec<_>>>().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, bytes: u64, blocks: usize) -> FileBlocks {
        let block = in_hexadecimal(&key_of(b"a block"));
        FileBlocks { path: path.to_owned(), bytes, blocks: vec![block; blocks] }
    }

    #[test]
    fn a_path_of_a_list_leads_to_no_place_outside_of_the_folder() {
        for wrong in ["/etc/passwd", "../a", "a/../../b", "", ".", "./a"] {
            assert!(file(wrong, 0, 0).place().is_err(), "{wrong}");
        }
        assert_eq!(file("a/b", 0, 0).place(), Ok(PathBuf::from("a/b")));
    }

    #[test]
    fn a_list_has_as_many_blocks_as_its_files_need() {
        for (bytes, blocks, is_right) in
            [(0, 0, true), (1, 1, true), (10, 1, true), (11, 1, false), (10, 2, false)]
        {
            assert_eq!(file("a", bytes, blocks).check(10).is_ok(), is_right, "{bytes} in {blocks}");
        }
        let mut wrong = file("a", 10, 1);
        wrong.blocks[0].replace_range(0..1, "x");
        assert!(wrong.check(10).is_err_and(|why| why.contains("is no SHA-256")));
        let list = Manifest::new(10, vec![file("a", 25, 3)]);
        let lengths: Vec<_> = list.blocks_of(&list.files[0]).map(|block| block.length).collect();
        assert_eq!(lengths, [10, 10, 5]);
    }
}
