//! Arguments in the forms in which Python programs write them.

use crate::failure::{OrRaise, bad_argument, lasting};
use portcullis::{DirectoryName, Error, Keep, Lifetime, Rights, TenantName};
use portcullis_foreign::{CudaDriver, WantedCuda};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use std::path::PathBuf;
use std::time::Duration;

/// A number of bytes: an integer, or a text such as `"64MiB"`.
pub(crate) struct Size(pub u64);

impl FromPyObject<'_, '_> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if let Ok(text) = object.cast::<PyString>() {
            let bytes = portcullis::size::parse(&text.to_string_lossy());
            return bytes.map(Self).map_err(|wrong| bad_argument(py, wrong));
        }
        match object.extract::<u64>() {
            Ok(bytes) => Ok(Self(bytes)),
            Err(error) if is_out_of_range(py, &error) => Err(bad_argument(
                py,
                format!("{} is no number of bytes: it is 0 or more, and less than 2**64", *object),
            )),
            Err(error) => Err(error),
        }
    }
}

/// Whether the arena is to be registered with CUDA: a bool, "auto", or the path of the driver's library, which means
/// True.
pub(crate) struct Cuda {
    pub wanted: WantedCuda,
    pub library: PathBuf,
}

impl Cuda {
    pub(crate) fn no() -> Self {
        Self::of(WantedCuda::No)
    }

    fn of(wanted: WantedCuda) -> Self {
        Self { wanted, library: PathBuf::from(CudaDriver::LIBRARY) }
    }
}

impl FromPyObject<'_, '_> for Cuda {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(wanted) = object.cast::<PyBool>() {
            return Ok(Self::of(if wanted.is_true() { WantedCuda::Required } else { WantedCuda::No }));
        }
        if let Ok(text) = object.cast::<PyString>()
            && text.to_string_lossy() == "auto"
        {
            return Ok(Self::of(WantedCuda::IfPossible));
        }
        let library: PathBuf = object.extract()?;
        if library.parent().is_none_or(|folder| folder.as_os_str().is_empty()) {
            let text = format!(
                "cuda is True, False, \"auto\", or the path of {}, and not {}",
                CudaDriver::LIBRARY,
                *object
            );
            return Err(bad_argument(object.py(), text));
        }
        Ok(Self { wanted: WantedCuda::Required, library })
    }
}

/// A word of an atomic operation: 0 to 2**64 - 1.
pub(crate) struct Word(pub u64);

impl FromPyObject<'_, '_> for Word {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        match object.extract::<u64>() {
            Ok(word) => Ok(Self(word)),
            Err(error) if is_out_of_range(py, &error) => Err(bad_argument(
                py,
                format!("{} is no word of 8 bytes: it is 0 or more, and less than 2**64", *object),
            )),
            Err(error) => Err(error),
        }
    }
}

fn is_out_of_range(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<pyo3::exceptions::PyOverflowError>(py)
}

/// A time in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub Lifetime);

impl Seconds {
    /// Default lifetime of permissions, and default waiting time of requests.
    pub(crate) const ONE: Self = Self(Lifetime::seconds(1));
}

impl FromPyObject<'_, '_> for Seconds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let seconds: f64 = object.extract()?;
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) => Ok(Self(time.into())),
            Err(_) => Err(bad_argument(
                object.py(),
                format!(
                    "{seconds} is no time: give seconds, 0 or more and finite, for example 0.05 for 50 ms"
                ),
            )),
        }
    }
}

/// Time for which an object is kept: `False`, `True`, seconds, or `math.inf`.
pub(crate) struct KeptFor(pub Keep);

impl KeptFor {
    pub(crate) const NO: Self = Self(Keep::No);
    pub(crate) const ATTACHED: Self = Self(Keep::Attached);
}

impl FromPyObject<'_, '_> for KeptFor {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(keeps) = object.cast::<PyBool>() {
            return Ok(Self(if keeps.is_true() { Keep::Attached } else { Keep::No }));
        }
        if object.extract::<f64>()? == f64::INFINITY {
            return Ok(Self(Keep::Pinned));
        }
        object.extract::<Seconds>().map(|time| Self(Keep::For(time.0)))
    }
}

/// Rights as letters: `"r"`, `"rw"`, `"rwa"`.
pub(crate) struct Letters(pub Rights);

impl Letters {
    pub(crate) const READ: Self = Self(Rights::READ);
    pub(crate) const READ_WRITE: Self = Self(Rights::READ.union(Rights::WRITE));
}

impl FromPyObject<'_, '_> for Letters {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let text = object.cast::<PyString>()?.to_string_lossy().into_owned();
        text.parse().map(Self).map_err(|wrong| lasting(object.py(), &wrong))
    }
}

/// Parses the name of an object.
pub(crate) fn name(py: Python<'_>, text: &str) -> PyResult<DirectoryName> {
    DirectoryName::new(text).map_err(Error::from).or_raise(py)
}

/// Parses the name of a tenant.
pub(crate) fn tenant(py: Python<'_>, text: &str) -> PyResult<TenantName> {
    TenantName::new(text).map_err(Error::from).or_raise(py)
}
