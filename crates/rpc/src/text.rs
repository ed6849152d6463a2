//! Text in a heap.

use crate::map::Key;
use crate::plain::room_align_of;
use crate::{Copying, GrowError, HeapFull, Linked, PointerError, Pointers, Room, Source, View};
use std::hash::Hasher;
use twox_hash::XxHash64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// UTF-8 text. In C: `struct { const char *bytes; uint64_t length; }`, without a zero at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Text {
    address: u64,
    length: u64,
}

const _: () = assert!(size_of::<Text>() == 16 && std::mem::offset_of!(Text, length) == 8);

impl Text {
    /// A text without bytes.
    pub const EMPTY: Self = Self { address: 0, length: 0 };

    /// Puts text into a heap or a scope.
    ///
    /// # Errors
    /// There is no room.
    pub fn new<R: Room>(room: &R, text: &str) -> Result<Self, HeapFull> {
        let length = text.len() as u64;
        if length == 0 {
            return Ok(Self::EMPTY);
        }
        let address = room.reserve(length, room_align_of::<u8>())?;
        room.put(address, text.as_bytes());
        Ok(Self { address, length })
    }

    /// Length of the text in bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.length
    }

    /// Whether the text has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// The text, in place.
    ///
    /// # Errors
    /// It leads out of the view, or is no UTF-8.
    pub fn get<'a>(self, view: &View<'a>) -> Result<&'a str, PointerError> {
        let bytes = view.get_slice::<u8>(self.address, self.length)?;
        std::str::from_utf8(bytes).map_err(|_| PointerError::NotText(self.address))
    }

    /// A copy of the text.
    ///
    /// # Errors
    /// It leads out of the source, or is no UTF-8.
    pub fn read<S: Source>(self, source: &S) -> Result<String, PointerError> {
        String::from_utf8(self.read_bytes(source)?).map_err(|_| PointerError::NotText(self.address))
    }

    fn read_bytes<S: Source>(self, source: &S) -> Result<Vec<u8>, PointerError> {
        source.step()?;
        if self.length == 0 {
            return Ok(Vec::new());
        }
        source.values(self.address, self.length)
    }
}

impl Linked for Text {
    fn copy<S: Source, R: Room>(self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
        if self.is_empty() {
            return Ok(Self::EMPTY);
        }
        let address = copying.place::<u8>(self.address, self.length)?;
        Ok(Self { address, ..self })
    }

    fn pointers(self, at: u64, found: &mut Pointers<'_, '_>) -> Result<(), PointerError> {
        if self.is_empty() { Ok(()) } else { found.name::<u8>(at, self.address, self.length) }
    }
}

impl Key for Text {
    type Sought = str;

    fn hash(sought: &str) -> u64 {
        let mut hasher = XxHash64::with_seed(0);
        hasher.write(sought.as_bytes());
        hasher.finish()
    }

    fn is<S: Source>(self, sought: &str, source: &S) -> Result<bool, PointerError> {
        Ok(self.length == sought.len() as u64 && self.read_bytes(source)? == sought.as_bytes())
    }
}
