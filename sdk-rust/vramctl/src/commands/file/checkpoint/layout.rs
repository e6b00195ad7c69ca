//! Which tensors a header or an index describes, checked against the bytes that there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    marker::PhantomData,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};

use super::LENGTH_BYTES;

/// Most tensors of one file.
const TENSORS_MAX: usize = 100_000;

pub(crate) type Tensors = BTreeMap<String, Tensor>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Tensor {
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (&self.dtype, &self.shape) == (&other.dtype, &other.shape)
    }

    /// Whether the range of bytes is that of its type and shape.
    fn is_sized(&self) -> bool {
        let bits = bits_of(&self.dtype)
            .and_then(|bits| self.shape.iter().try_fold(bits, |bits, count| bits.checked_mul(*count)));
        let length = self.end.checked_sub(self.start).and_then(|length| length.checked_mul(8));
        bits.is_some_and(|bits| bits > 0) && bits == length
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}

/// The bits of an element. `None` for an unknown type.
fn bits_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// A JSON object that has no key twice.
struct Unique<T>(BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for UniqueVisitor<T> {
    type Value = Unique<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut found = BTreeMap::new();
        while let Some(key) = access.next_key::<String>()? {
            if found.contains_key(&key) {
                return Err(A::Error::custom(format!("it has the key {key:?} twice")));
            }
            found.insert(key, access.next_value()?);
        }
        Ok(Unique(found))
    }
}

/// A value of a header.
#[derive(Deserialize)]
#[serde(untagged)]
enum Described {
    Tensor(Facts),
    Metadata(#[expect(dead_code, reason = "only its form is checked")] BTreeMap<String, String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Facts {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Deserialize)]
struct Index {
    tensors: Unique<(String, Vec<u64>, u64, u64)>,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: Unique<String>,
}

/// The tensors of a file of this size, by the bytes of its header.
pub(super) fn parse_header(header: &[u8], size: u64) -> Result<Tensors, String> {
    let described: Unique<Described> =
        serde_json::from_slice(header).map_err(|error| format!("its header: {error}"))?;
    let first = LENGTH_BYTES + header.len() as u64;
    let mut tensors = Tensors::new();
    for (name, described) in described.0 {
        match (described, name == "__metadata__") {
            (Described::Metadata(_), true) => {}
            (Described::Tensor(Facts { dtype, shape, data_offsets: (start, end) }), false) => {
                let moved = |offset: u64| offset.checked_add(first).filter(|offset| *offset <= size);
                let (Some(start), Some(end)) = (moved(start), moved(end)) else {
                    return Err(format!("tensor {name:?} ends beyond the file"));
                };
                tensors.insert(name, Tensor { dtype, shape, start, end });
            }
            _ => return Err(format!("its header describes {name:?} in an unknown form")),
        }
    }
    check_sizes(&tensors)?;
    check_coverage(&tensors, first, size)?;
    Ok(tensors)
}

/// The tensors of an allocation whose index begins at this byte.
pub(super) fn parse_index(index: &[u8], end: u64) -> Result<Tensors, String> {
    let index: Index = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let tensor = |(dtype, shape, start, end)| Tensor { dtype, shape, start, end };
    let tensors: Tensors = index.tensors.0.into_iter().map(|(name, facts)| (name, tensor(facts))).collect();
    check_sizes(&tensors)?;
    match tensors.iter().find(|(_, tensor)| tensor.end > end) {
        Some((name, _)) => Err(format!("tensor {name:?} ends beyond the allocation")),
        None => Ok(tensors),
    }
}

/// The files that an index of shards names, all of them beside it.
pub(super) fn file_names(index: &[u8]) -> Result<BTreeSet<String>, String> {
    let index: ShardIndex =
        serde_json::from_slice(index).map_err(|error| format!("it is no index: {error}"))?;
    for (name, file) in &index.weight_map.0 {
        if file.contains('/') || matches!(file.as_str(), "" | "." | "..") {
            return Err(format!("tensor {name:?} is in {file:?}, which is no file beside the index"));
        }
    }
    let names: BTreeSet<_> = index.weight_map.0.into_values().collect();
    if names.is_empty() { Err("its `weight_map` is empty".to_owned()) } else { Ok(names) }
}

fn check_sizes(tensors: &Tensors) -> Result<(), String> {
    if tensors.len() > TENSORS_MAX {
        return Err(format!("it has {} tensors, more than {TENSORS_MAX}", tensors.len()));
    }
    match tensors.iter().find(|(_, tensor)| !tensor.is_sized()) {
        Some((name, tensor)) => Err(format!(
            "tensor {name:?} has bytes {} to {}, which are not those of {tensor}",
            tensor.start, tensor.end
        )),
        None => Ok(()),
    }
}

/// Every byte after the header belongs to exactly one tensor.
fn check_coverage(tensors: &Tensors, first: u64, size: u64) -> Result<(), String> {
    let mut at = first;
    for (name, tensor) in super::in_order(tensors) {
        if tensor.start != at {
            let fault = if tensor.start < at { "overlaps another" } else { "leaves a gap before it" };
            return Err(format!("tensor {name:?} {fault}"));
        }
        at = tensor.end;
    }
    if at == size { Ok(()) } else { Err(format!("its tensors end at byte {at}, and the file at {size}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str, data: u64) -> Result<Tensors, String> {
        parse_header(text.as_bytes(), LENGTH_BYTES + text.len() as u64 + data)
    }

    const A: &str = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;

    #[test]
    fn a_header_gives_tensors_where_they_lie() {
        let text = format!(
            r#"{{"__metadata__":{{"format":"pt"}},{A},"b":{{"dtype":"F4","shape":[4],"data_offsets":[8,10]}}}}"#
        );
        let tensors = header(&text, 10).unwrap();
        let first = LENGTH_BYTES + text.len() as u64;
        assert_eq!((tensors["a"].start, tensors["b"].end), (first, first + 10));
        assert_eq!(tensors["a"].to_string(), "F32 [2]");
    }

    #[test]
    fn hostile_headers_are_refused() {
        let with = |b: &str| format!("{{{A},{b}}}");
        let tensor = |shape: &str, offsets: &str| {
            with(&format!(r#""b":{{"dtype":"U8","shape":{shape},"data_offsets":{offsets}}}"#))
        };
        let huge = "18446744073709551615";
        for (text, problem) in [
            ("[]".to_owned(), "its header"),
            (format!("{{{A},{A}}}"), "twice"),
            (with(r#""__metadata__":{"n":1}"#), "its header"),
            (with(r#""b":{"dtype":"U8","shape":[2],"data_offsets":[8,10],"more":1}"#), "its header"),
            (with(r#""b":{"dtype":"X","shape":[2],"data_offsets":[8,10]}"#), "not those of X"),
            (tensor("[3]", "[8,10]"), "not those of"),
            (tensor("[-2]", "[8,10]"), "its header"),
            (tensor("[2]", "[9,11]"), "ends beyond"),
            (tensor("[1]", "[9,10]"), "leaves a gap"),
            (tensor("[2]", "[7,9]"), "overlaps"),
            (tensor("[2]", "[10,8]"), "not those of"),
            (tensor("[0]", "[8,8]"), "not those of"),
            (tensor(&format!("[{huge},{huge}]"), "[8,10]"), "not those of"),
            (tensor("[2]", &format!("[8,{huge}]")), "ends beyond"),
            (tensor("[1]", "[8,9]"), "end at byte"),
            ("[".repeat(10_000), "its header"),
        ] {
            let said = header(&text, 10).unwrap_err();
            assert!(said.contains(problem), "{text:.80}: {said}");
        }
    }

    #[test]
    fn an_index_stays_inside_of_its_allocation() {
        let index =
            |end: u64| format!(r#"{{"tensors":{{"a":["F32",[2],256,{end}]}},"metadata":{{}},"sources":[]}}"#);
        assert_eq!(parse_index(index(264).as_bytes(), 264).unwrap()["a"].start, 256);
        assert!(parse_index(index(264).as_bytes(), 263).unwrap_err().contains("ends beyond"));
        assert!(parse_index(index(265).as_bytes(), 300).unwrap_err().contains("not those of"));
        assert!(parse_index(b"{}", 300).unwrap_err().contains("tensors"));
    }

    #[test]
    fn shards_lie_beside_their_index() {
        let index = |file: &str| format!(r#"{{"weight_map":{{"a":{file:?},"b":"one"}}}}"#);
        assert_eq!(file_names(index("two").as_bytes()).unwrap().len(), 2);
        for file in ["", ".", "..", "../one", "/etc/passwd"] {
            assert!(file_names(index(file).as_bytes()).unwrap_err().contains("no file beside"), "{file}");
        }
        assert!(file_names(br#"{"weight_map":{}}"#).unwrap_err().contains("empty"));
        assert!(file_names(br#"{"weight_map":{"a":"x","a":"y"}}"#).unwrap_err().contains("twice"));
    }
}
