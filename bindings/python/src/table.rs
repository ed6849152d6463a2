//! Tables in a node's memory. `portcullis_memory/structures.py` wraps them as mappings.

use crate::arguments::{self, KeptFor, Seconds, Size};
use crate::buffer::CallerBuffer;
use crate::driven;
use crate::failure::{OrRaise, bad_argument};
use crate::object::ObjectRef;
use crate::session::Session;
use portcullis_foreign::{Driven, ExclusiveCell, StructureAddress, TableAsk, TableDone, When};
use portcullis_structures::table::{self, Access, BlockMemory, Grain, Stored, TableError, TableOptions};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::ops::Deref;

/// Bytes that do not change while the interpreter's lock is released.
pub(crate) enum Given {
    /// The bytes of a `bytes` object, which never change.
    Kept(PyBackedBytes),
    /// A copy of the bytes of any other buffer.
    Copied(Vec<u8>),
}

impl Deref for Given {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Kept(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

impl FromPyObject<'_, '_> for Given {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Self::Kept(bytes.to_owned().into())),
            Err(_) => Ok(Self::Copied(CallerBuffer::source(&object)?.to_vec(object.py()))),
        }
    }
}

/// Converts an argument to the address of a structure: a name, or a reference to its head.
pub(crate) fn address(object: &Bound<'_, PyAny>) -> PyResult<StructureAddress> {
    match object.cast::<ObjectRef>() {
        Ok(head) => Ok(StructureAddress::Object(head.get().0)),
        Err(_) => arguments::name(object.py(), object.extract()?).map(StructureAddress::Name),
    }
}

/// Takes an option out of a dict. Returns its value, if the dict had one.
pub(crate) fn option<'py, T>(options: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let Some(value) = options.get_item(name)? else { return Ok(None) };
    options.del_item(name)?;
    value.extract().map(Some)
}

/// Returns an error if the dict still has an option: there is no option of that name.
pub(crate) fn no_more(options: &Bound<'_, PyDict>, known: &str) -> PyResult<()> {
    match options.keys().iter().next() {
        Some(name) => {
            let text = format!("there is no option {name}: the options are {known}");
            Err(pyo3::exceptions::PyTypeError::new_err(text))
        }
        None => Ok(()),
    }
}

fn options(given: &Bound<'_, PyDict>) -> PyResult<TableOptions> {
    let (py, mut options) = (given.py(), TableOptions::default());
    match option::<String>(given, "grain")?.as_deref() {
        None | Some("extent") => {}
        Some("block") => options.grain = Grain::Block,
        Some(other) => {
            return Err(bad_argument(py, format!("{other:?} is no grain: \"extent\" or \"block\"")));
        }
    }
    match option::<String>(given, "blocks")?.as_deref() {
        None | Some("objects") => {}
        Some("chunks") => options.blocks = BlockMemory::Chunks,
        Some(other) => {
            return Err(bad_argument(py, format!("{other:?} are no blocks: \"objects\" or \"chunks\"")));
        }
    }
    options.lease = option::<Seconds>(given, "lease")?.map_or(options.lease, |lease| lease.0);
    options.groups = option(given, "groups")?.unwrap_or(options.groups);
    options.depth_max = option(given, "depth_max")?.unwrap_or(options.depth_max);
    options.seed = option(given, "seed")?;
    options.keep = option::<KeptFor>(given, "keep")?.map_or(options.keep, |keep| keep.0);
    no_more(given, "lease, groups, depth_max, seed, keep, grain and blocks")?;
    Ok(options)
}

/// A hash table in a node's memory.
#[pyclass(frozen, module = "portcullis_memory._native")]
pub(crate) struct Table {
    table: ExclusiveCell<Driven<table::Table>>,
    head: ObjectRef,
}

impl Table {
    fn new(mut driven: Driven<table::Table>) -> Self {
        let head = ObjectRef(driven.run(async |table| table.head()));
        Self { table: ExclusiveCell::new("the table", driven), head }
    }

    /// Carries out an operation and returns its result. `later`: only begins it, and returns the number under which
    /// poll returns its result.
    fn ask<'py>(&self, py: Python<'py>, ask: TableAsk<Given>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        if later {
            let number = self.table.enter().or_raise(py)?.begin(ask);
            return Ok(number.into_pyobject(py)?.into_any());
        }
        given(py, driven::run(&self.table, py, ask)?)
    }

    fn end(
        &self,
        py: Python<'_>,
        operation: impl AsyncFnOnce(table::Table) -> Result<(), TableError> + Send,
    ) -> PyResult<()> {
        match self.table.close().or_raise(py)? {
            Some(table) => py.detach(|| table.end(operation)).or_raise(py),
            None => Ok(()),
        }
    }
}

#[pymethods]
impl Table {
    #[staticmethod]
    #[pyo3(name = "create", signature = (session, name, given))]
    fn create_in(
        py: Python<'_>,
        session: &Bound<'_, Session>,
        name: Option<&str>,
        given: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let options = options(given)?;
        let name = name.map(|name| arguments::name(py, name)).transpose()?;
        let session = session.get().another(py)?;
        py.detach(|| Driven::<table::Table>::create(session, &options, name)).or_raise(py).map(Self::new)
    }

    #[staticmethod]
    fn open(
        py: Python<'_>,
        session: &Bound<'_, Session>,
        at: &Bound<'_, PyAny>,
        read_only: bool,
    ) -> PyResult<Self> {
        let address = address(at)?;
        let access = if read_only { Access::Read } else { Access::Write };
        let session = session.get().another(py)?;
        py.detach(|| Driven::<table::Table>::open(session, address, access)).or_raise(py).map(Self::new)
    }

    #[getter]
    fn head(&self) -> ObjectRef {
        self.head
    }

    #[getter]
    fn closed(&self) -> bool {
        self.table.is_closed()
    }

    #[pyo3(signature = (key, later = false))]
    fn get<'py>(&self, py: Python<'py>, key: Given, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::Get(key), later)
    }

    #[pyo3(signature = (keys, later = false))]
    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<Given>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::GetMany(keys), later)
    }

    /// Stores a value: "always", if the key is "absent", if the key is "present", or if the key's value "equals"
    /// `expected`. Returns "inserted", "replaced" or "unchanged".
    #[pyo3(signature = (key, value, condition, expected = None, ttl = None, later = false))]
    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    fn store<'py>(
        &self,
        py: Python<'py>,
        key: Given,
        value: Given,
        condition: &str,
        expected: Option<Given>,
        ttl: Option<Seconds>,
        later: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let when = match (condition, expected) {
            ("always", None) => When::Always,
            ("absent", None) => When::Absent,
            ("present", None) => When::Present,
            ("equals", Some(expected)) => When::Equals(expected),
            _ => return Err(bad_argument(py, "there is no such condition")),
        };
        let live = ttl.map(|time| time.0);
        self.ask(py, TableAsk::Store { key, value, when, live }, later)
    }

    #[pyo3(signature = (key, later = false))]
    fn remove<'py>(&self, py: Python<'py>, key: Given, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::Remove(key), later)
    }

    #[pyo3(signature = (key, later = false))]
    fn take<'py>(&self, py: Python<'py>, key: Given, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::Take(key), later)
    }

    #[pyo3(signature = (later = false))]
    fn keys<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::Keys, later)
    }

    #[pyo3(signature = (later = false))]
    fn items<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::Items, later)
    }

    #[pyo3(signature = (later = false))]
    fn length<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::Length, later)
    }

    #[pyo3(signature = (later = false))]
    fn remove_expired<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::RemoveExpired, later)
    }

    #[pyo3(signature = (later = false))]
    fn sweep<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::Sweep, later)
    }

    #[pyo3(signature = (later = false))]
    fn statistics<'py>(&self, py: Python<'py>, later: bool) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, TableAsk::Statistics, later)
    }

    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        driven::poll(&self.table, py, |done| given(py, done))
    }

    fn arm(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        driven::arm(&self.table, py)
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.table.enter().or_raise(py)?.descriptor())
    }

    fn forget(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.table.enter().or_raise(py)?.forget(number);
        Ok(())
    }

    fn under_way(&self, py: Python<'_>) -> PyResult<usize> {
        driven::under_way(&self.table, py)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, async |table| table.close().await)
    }

    #[pyo3(signature = (name = None))]
    fn destroy(&self, py: Python<'_>, name: Option<&str>) -> PyResult<()> {
        let name = name.map(|name| arguments::name(py, name)).transpose()?;
        self.end(py, async move |table| table.destroy(name).await)
    }
}

/// Converts an option that is a size to 32 bits.
pub(crate) fn small(py: Python<'_>, what: &str, size: Size) -> PyResult<u32> {
    u32::try_from(size.0).map_err(|_| bad_argument(py, format!("{what} is too large")))
}

/// Converts the result of an operation to a Python object.
fn given(py: Python<'_>, done: TableDone) -> PyResult<Bound<'_, PyAny>> {
    let bytes = |value: Vec<u8>| PyBytes::new(py, &value);
    Ok(match done {
        TableDone::Value(value) => value.map(bytes).into_pyobject(py)?.into_any(),
        TableDone::Values(values) => {
            PyList::new(py, values.into_iter().map(|value| value.map(bytes)))?.into_any()
        }
        TableDone::Stored(stored) => match stored {
            Stored::Inserted => "inserted",
            Stored::Replaced => "replaced",
            Stored::Unchanged => "unchanged",
        }
        .into_pyobject(py)?
        .into_any(),
        TableDone::WasThere(was_there) => was_there.into_pyobject(py)?.to_owned().into_any(),
        TableDone::Keys(keys) => PyList::new(py, keys.into_iter().map(bytes))?.into_any(),
        TableDone::Items(items) => {
            PyList::new(py, items.into_iter().map(|(key, value)| (bytes(key), bytes(value))))?.into_any()
        }
        TableDone::Count(count) => count.into_pyobject(py)?.into_any(),
        TableDone::Swept(swept) => counts(
            py,
            &[
                ("blocks", swept.blocks),
                ("pending", swept.pending),
                ("subtables", swept.subtables),
                ("unfinished", swept.unfinished),
                ("extents", swept.extents),
                ("splits", swept.splits),
            ],
        )?,
        TableDone::Statistics(statistics) => counts(
            py,
            &[
                ("keys", statistics.keys),
                ("slots", statistics.slots),
                ("subtables", statistics.subtables),
                ("depth", statistics.depth.into()),
                ("extents", statistics.extents),
                ("blocks", statistics.blocks),
                ("unlinked", statistics.unlinked),
                ("dangling", statistics.dangling),
                ("bytes", statistics.bytes),
                ("subtable_bytes", statistics.subtable_bytes),
                ("block_bytes", statistics.block_bytes),
                ("claim_bytes", statistics.claim_bytes),
            ],
        )?,
    })
}

/// Returns a dict of counts.
fn counts<'py>(py: Python<'py>, counts: &[(&str, u64)]) -> PyResult<Bound<'py, PyAny>> {
    let found = PyDict::new(py);
    for (name, count) in counts {
        found.set_item(name, count)?;
    }
    Ok(found.into_any())
}
