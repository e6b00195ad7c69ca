//! The element types of tensors, with the name of each in every protocol.

use std::ffi::CStr;

use pyo3::{exceptions::PyTypeError, prelude::*};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DType {
    pub(crate) name: &'static str,
    /// DLPack's type code.
    pub(crate) code: u8,
    pub(crate) bits: u8,
    /// NumPy's name, if it has one.
    pub(crate) typestr: Option<&'static str>,
    /// The format of the module `struct`, if it has one.
    pub(crate) format: Option<&'static CStr>,
}

impl DType {
    pub(crate) const U8: Self = Self::plain("uint8", 1, 8, "|u1", c"B");

    const ALL: [Self; 17] = [
        Self::U8,
        Self::plain("bool", 6, 8, "|b1", c"?"),
        Self::plain("int8", 0, 8, "|i1", c"b"),
        Self::plain("int16", 0, 16, "<i2", c"h"),
        Self::plain("int32", 0, 32, "<i4", c"i"),
        Self::plain("int64", 0, 64, "<i8", c"q"),
        Self::plain("uint16", 1, 16, "<u2", c"H"),
        Self::plain("uint32", 1, 32, "<u4", c"I"),
        Self::plain("uint64", 1, 64, "<u8", c"Q"),
        Self::plain("float16", 2, 16, "<f2", c"e"),
        Self::plain("float32", 2, 32, "<f4", c"f"),
        Self::plain("float64", 2, 64, "<f8", c"d"),
        Self::plain("complex64", 5, 64, "<c8", c"Zf"),
        Self::plain("complex128", 5, 128, "<c16", c"Zd"),
        Self::of_dlpack("bfloat16", 4, 16),
        Self::of_dlpack("float8_e4m3fn", 10, 8),
        Self::of_dlpack("float8_e5m2", 12, 8),
    ];

    const fn plain(
        name: &'static str,
        code: u8,
        bits: u8,
        typestr: &'static str,
        format: &'static CStr,
    ) -> Self {
        Self { name, code, bits, typestr: Some(typestr), format: Some(format) }
    }

    /// A type that NumPy does not know.
    const fn of_dlpack(name: &'static str, code: u8, bits: u8) -> Self {
        Self { name, code, bits, typestr: None, format: None }
    }

    pub(crate) fn size(self) -> usize {
        usize::from(self.bits / 8)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name == name)
    }
}

/// A name, `numpy.dtype("float32")`, `numpy.float32` or `torch.float32`.
impl<'py> FromPyObject<'_, 'py> for DType {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let as_text = || object.str().map(|text| text.to_string());
        let text = match object.extract::<String>() {
            Ok(text) => text,
            Err(_) => ["name", "__name__"]
                .iter()
                .find_map(|key| object.getattr(*key).ok()?.extract().ok())
                .map_or_else(as_text, Ok)?,
        };
        let name = text.strip_prefix("torch.").unwrap_or(&text);
        Self::named(name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|dtype| dtype.name).collect();
            PyTypeError::new_err(format!("no dtype `{name}`: there are {}", known.join(", ")))
        })
    }
}
