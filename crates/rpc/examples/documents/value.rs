//! A JSON value in a heap: a tree of texts and vectors, with native pointers.

use portcullis_rpc::{Boxed, HeapFull, Linked, PointerError, Room, Text, Vector, View};
use serde_json::{Map, Number, Value as Json};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The maximal nesting of values, as in `serde_json`. The client chooses how deep a document is, and walking it takes
/// stack.
const DEPTH_MAX: u32 = 128;

/// A JSON value. It can be read in place, copied with everything in it ([`Linked`]), and be written by C as well.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Linked)]
#[repr(C)]
pub struct Value {
    /// One of the numbers of [`kind`].
    kind: u64,
    /// The value of a number or a boolean.
    number: u64,
    /// The value of a text.
    text: Text,
    /// The contents of an array or an object.
    fields: Vector<Field>,
}

/// A key and its value. In an array the keys are empty.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Linked)]
#[repr(C)]
pub struct Field {
    key: Text,
    value: Value,
}

const _: () = assert!(size_of::<Value>() == 56 && size_of::<Field>() == 72);

mod kind {
    pub const NULL: u64 = 0;
    pub const BOOL: u64 = 1;
    /// A number from `i64::MIN` to `i64::MAX`.
    pub const INTEGER: u64 = 2;
    /// A number greater than `i64::MAX`.
    pub const LARGE: u64 = 3;
    pub const FLOAT: u64 = 4;
    pub const TEXT: u64 = 5;
    pub const ARRAY: u64 = 6;
    pub const OBJECT: u64 = 7;
}

/// Error of a value that is no document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A pointer of the document cannot be followed, or the document has no end.
    Pointer(PointerError),
    /// The document is nested too deep.
    TooDeep,
    /// No JSON value is of this kind.
    Kind(u64),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pointer(error) => error.fmt(f),
            Self::TooDeep => write!(f, "a document is nested deeper than {DEPTH_MAX}"),
            Self::Kind(kind) => write!(f, "no JSON value has the kind {kind}"),
        }
    }
}

impl std::error::Error for Broken {}

impl From<PointerError> for Broken {
    fn from(error: PointerError) -> Self {
        Self::Pointer(error)
    }
}

impl Value {
    const NULL: Self = Self { kind: kind::NULL, number: 0, text: Text::EMPTY, fields: Vector::EMPTY };

    /// Puts a document into a heap or a scope.
    ///
    /// # Errors
    /// There is no room.
    pub fn plant<R: Room>(room: &R, document: &Json) -> Result<Boxed<Self>, HeapFull> {
        let value = Self::new(room, document)?;
        Boxed::new(room, value)
    }

    fn new<R: Room>(room: &R, json: &Json) -> Result<Self, HeapFull> {
        let of = |kind, number| Ok(Self { kind, number, ..Self::NULL });
        match json {
            Json::Null => Ok(Self::NULL),
            Json::Bool(it) => of(kind::BOOL, u64::from(*it)),
            Json::Number(it) => match (it.as_i64(), it.as_u64()) {
                (Some(number), _) => of(kind::INTEGER, number.cast_unsigned()),
                (None, Some(number)) => of(kind::LARGE, number),
                (None, None) => of(kind::FLOAT, it.as_f64().unwrap_or(f64::NAN).to_bits()),
            },
            Json::String(it) => Ok(Self { kind: kind::TEXT, text: Text::new(room, it)?, ..Self::NULL }),
            Json::Array(items) => {
                let field = |item| Ok(Field { key: Text::EMPTY, value: Self::new(room, item)? });
                Self::of_fields(room, kind::ARRAY, items.iter().map(field))
            }
            Json::Object(fields) => {
                let field = |(key, value): (&String, _)| {
                    Ok(Field { key: Text::new(room, key)?, value: Self::new(room, value)? })
                };
                Self::of_fields(room, kind::OBJECT, fields.iter().map(field))
            }
        }
    }

    fn of_fields<R: Room>(
        room: &R,
        kind: u64,
        fields: impl Iterator<Item = Result<Field, HeapFull>>,
    ) -> Result<Self, HeapFull> {
        let fields: Vec<Field> = fields.collect::<Result<_, _>>()?;
        Ok(Self { kind, fields: Vector::new(room, &fields)?, ..Self::NULL })
    }

    /// The value under a key, in place. `None`: this value is no object, or has no such key.
    ///
    /// # Errors
    /// A pointer leads out of the view.
    pub fn field<'a>(&self, view: &View<'a>, key: &str) -> Result<Option<&'a Self>, PointerError> {
        if self.kind != kind::OBJECT {
            return Ok(None);
        }
        for field in self.fields.get(view)? {
            if field.key.len() == key.len() as u64 && field.key.get(view)? == key {
                return Ok(Some(&field.value));
            }
        }
        Ok(None)
    }

    /// The number, if this value is a number that fits.
    pub fn integer(&self) -> Option<i64> {
        (self.kind == kind::INTEGER).then_some(self.number.cast_signed())
    }

    /// The text, in place, if this value is a text.
    ///
    /// # Errors
    /// A pointer leads out of the view, or the text is no UTF-8.
    pub fn text<'a>(&self, view: &View<'a>) -> Result<Option<&'a str>, PointerError> {
        if self.kind == kind::TEXT { self.text.get(view).map(Some) } else { Ok(None) }
    }

    /// Checks that this is a document, whatever its writer intended: every pointer leads to a value, every text is
    /// UTF-8, and the document has an end.
    ///
    /// # Errors
    /// The value is no document.
    pub fn check(&self, view: &View<'_>) -> Result<(), Broken> {
        self.check_at(view, 0)
    }

    fn check_at(&self, view: &View<'_>, depth: u32) -> Result<(), Broken> {
        match self.kind {
            kind::TEXT => {
                self.text.get(view)?;
            }
            kind::ARRAY | kind::OBJECT if depth == DEPTH_MAX => return Err(Broken::TooDeep),
            kind::ARRAY | kind::OBJECT => {
                for field in self.fields.get(view)? {
                    field.key.get(view)?;
                    field.value.check_at(view, depth + 1)?;
                }
            }
            kind::NULL | kind::BOOL | kind::INTEGER | kind::LARGE | kind::FLOAT => {}
            other => return Err(Broken::Kind(other)),
        }
        Ok(())
    }

    /// Converts the document to the program's own value.
    ///
    /// # Errors
    /// The value is no document.
    pub fn to_json(self, view: &View<'_>) -> Result<Json, Broken> {
        self.to_json_at(view, 0)
    }

    fn to_json_at(self, view: &View<'_>, depth: u32) -> Result<Json, Broken> {
        let fields = || if depth == DEPTH_MAX { Err(Broken::TooDeep) } else { Ok(self.fields.get(view)?) };
        Ok(match self.kind {
            kind::NULL => Json::Null,
            kind::BOOL => Json::Bool(self.number != 0),
            kind::INTEGER => Json::from(self.number.cast_signed()),
            kind::LARGE => Json::from(self.number),
            kind::FLOAT => Number::from_f64(f64::from_bits(self.number)).map_or(Json::Null, Json::Number),
            kind::TEXT => Json::String(self.text.get(view)?.to_owned()),
            kind::ARRAY => {
                let items = fields()?.iter().map(|field| field.value.to_json_at(view, depth + 1));
                Json::Array(items.collect::<Result<_, _>>()?)
            }
            kind::OBJECT => {
                let field = |field: &Field| {
                    Ok::<_, Broken>((
                        field.key.get(view)?.to_owned(),
                        field.value.to_json_at(view, depth + 1)?,
                    ))
                };
                Json::Object(fields()?.iter().map(field).collect::<Result<Map<_, _>, _>>()?)
            }
            other => return Err(Broken::Kind(other)),
        })
    }
}
