//! Tables. `portcullis_memory/structures.py` makes mappings of them.

use crate::arguments::{self, KeptFor, Seconds, Size};
use crate::buffer::CallerBuffer;
use crate::driven;
use crate::failure::{OrRaise, bad_argument};
use crate::object::ObjectRef;
use crate::session::Session;
use portcullis_foreign::{Door, Driven, Place};
use portcullis_structures::table::{
    self, Access, BlockMemory, Condition, Grain, Stored, TableError, TableOptions,
};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::ops::Deref;

/// Bytes that stay as they are without the interpreter's lock.
pub(crate) enum Given {
    /// Of a `bytes` object, which never change.
    Kept(PyBackedBytes),
    /// Of any other buffer.
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

/// Where a structure is: a name, or a reference.
pub(crate) fn place(object: &Bound<'_, PyAny>) -> PyResult<Place> {
    match object.cast::<ObjectRef>() {
        Ok(head) => Ok(Place::Object(head.get().0)),
        Err(_) => arguments::name(object.py(), object.extract()?).map(Place::Name),
    }
}

/// An option out of a dict, which loses it.
pub(crate) fn option<'py, T>(options: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let Some(value) = options.get_item(name)? else { return Ok(None) };
    options.del_item(name)?;
    value.extract().map(Some)
}

/// Complains of options that there are not.
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
    table: Door<Driven<table::Table>>,
    head: ObjectRef,
}

impl Table {
    fn new(mut driven: Driven<table::Table>) -> Self {
        let head = ObjectRef(driven.run(async |table| table.head()));
        Self { table: Door::new("the table", driven), head }
    }

    /// Carries an operation out without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl AsyncFnOnce(&table::Table) -> Result<T, TableError> + Send,
    ) -> PyResult<T> {
        driven::run(&self.table, py, operation)
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
        let place = place(at)?;
        let access = if read_only { Access::Read } else { Access::Write };
        let session = session.get().another(py)?;
        py.detach(|| Driven::<table::Table>::open(session, place, access)).or_raise(py).map(Self::new)
    }

    #[getter]
    fn head(&self) -> ObjectRef {
        self.head
    }

    #[getter]
    fn closed(&self) -> bool {
        self.table.is_closed()
    }

    fn get<'py>(&self, py: Python<'py>, key: Given) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.run(py, async |table| table.get(&key).await)?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<Given>) -> PyResult<Bound<'py, PyList>> {
        let values = self.run(py, async |table| {
            let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            table.get_many(&keys).await
        })?;
        PyList::new(py, values.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))))
    }

    /// Stores a value: "always", if the key is "absent", if it is "present", or if it has the value `expected`. Returns
    /// "inserted", "replaced" or "unchanged".
    #[pyo3(signature = (key, value, condition, expected = None, ttl = None))]
    fn store(
        &self,
        py: Python<'_>,
        key: Given,
        value: Given,
        condition: &str,
        expected: Option<Given>,
        ttl: Option<Seconds>,
    ) -> PyResult<&'static str> {
        let condition = match (condition, &expected) {
            ("always", None) => Condition::Always,
            ("absent", None) => Condition::Absent,
            ("present", None) => Condition::Present,
            ("equals", Some(expected)) => Condition::Equals(expected),
            _ => return Err(bad_argument(py, "there is no such condition")),
        };
        let live = ttl.map(|time| time.0);
        let stored = self.run(py, async |table| table.store(&key, &value, condition, live).await)?;
        Ok(match stored {
            Stored::Inserted => "inserted",
            Stored::Replaced => "replaced",
            Stored::Unchanged => "unchanged",
        })
    }

    fn remove(&self, py: Python<'_>, key: Given) -> PyResult<bool> {
        self.run(py, async |table| table.remove(&key).await)
    }

    fn take<'py>(&self, py: Python<'py>, key: Given) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let taken = self.run(py, async |table| table.take(&key).await)?;
        Ok(taken.map(|value| PyBytes::new(py, &value)))
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys = self.run(py, async |table| {
            let mut keys = Vec::new();
            table.for_each(|key, _| keys.push(key.to_vec())).await?;
            Ok(keys)
        })?;
        PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)))
    }

    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let items = self.run(py, async |table| {
            let mut items = Vec::new();
            table.for_each(|key, value| items.push((key.to_vec(), value.to_vec()))).await?;
            Ok(items)
        })?;
        PyList::new(py, items.iter().map(|(key, value)| (PyBytes::new(py, key), PyBytes::new(py, value))))
    }

    fn length(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, async |table| table.length().await)
    }

    fn remove_expired(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, async |table| table.remove_expired(|_| ()).await)
    }

    fn sweep<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let swept = self.run(py, async |table| table.sweep().await)?;
        let found = PyDict::new(py);
        found.set_item("blocks", swept.blocks)?;
        found.set_item("pending", swept.pending)?;
        found.set_item("subtables", swept.subtables)?;
        found.set_item("unfinished", swept.unfinished)?;
        found.set_item("extents", swept.extents)?;
        found.set_item("splits", swept.splits)?;
        Ok(found)
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.run(py, async |table| table.statistics().await)?;
        let found = PyDict::new(py);
        let counts = [
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
        ];
        for (name, count) in counts {
            found.set_item(name, count)?;
        }
        Ok(found)
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

/// How large an option is that may be written as a text.
pub(crate) fn small(py: Python<'_>, what: &str, size: Size) -> PyResult<u32> {
    u32::try_from(size.0).map_err(|_| bad_argument(py, format!("{what} is too large")))
}
