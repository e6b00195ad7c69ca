//! Finds functions of the C library without `dlsym`: in the symbol table that the loader has mapped.
//!
//! This library exports `dlsym` and `dlvsym`, so both names lead back here. The walk goes by the table that the loader
//! itself uses: buckets of hashes, each with a chain of symbols.

#![allow(unsafe_code, reason = "the loader's tables are read in place")]

use std::ffi::{CStr, c_char, c_int, c_void};

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_FUNC: u8 = 2;

/// `Elf64_Dyn`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// The tables of a loaded object.
struct Tables {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    hashes: *const u32,
}

struct Search<const N: usize> {
    names: [&'static CStr; N],
    found: [Option<*mut c_void>; N],
}

/// Finds functions in the C library, or in its library for loading where that is one of its own.
pub(super) fn find<const N: usize>(names: [&'static CStr; N]) -> [Option<*mut c_void>; N] {
    let mut search = Search { names, found: [None; N] };
    // SAFETY: needed to see the loaded objects. The callback has the type that it asks for, and the search lives on.
    unsafe { libc::dl_iterate_phdr(Some(visit::<N>), (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn visit<const N: usize>(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: needed to read what the loader gives its callback: both are valid during the call, and nothing else has
    // the search.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search<N>>()) };
    if !is_of_c_library(object) {
        return 0;
    }
    let Some(tables) = tables(object) else { return 0 };
    for (name, found) in search.names.iter().zip(&mut search.found) {
        *found = found.or_else(|| tables.find(name));
    }
    c_int::from(search.found.iter().all(Option::is_some))
}

fn is_of_c_library(object: &libc::dl_phdr_info) -> bool {
    if object.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: needed to read the object's path, which the loader keeps.
    let path = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    file.starts_with(b"libc.so.") || file.starts_with(b"libdl.so.")
}

fn tables(object: &libc::dl_phdr_info) -> Option<Tables> {
    let base = usize::try_from(object.dlpi_addr).ok()?;
    // SAFETY: needed to read the program headers, of which the loader says where they are and how many.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    let mut entry =
        std::ptr::with_exposed_provenance::<Dynamic>(base + usize::try_from(dynamic.p_vaddr).ok()?);
    let (mut symbols, mut names, mut hashes) = (None, None, None);
    loop {
        // SAFETY: needed to read the dynamic section, which is mapped and ends with an entry of tag 0.
        let Dynamic { tag, value } = unsafe { *entry };
        // The loader has turned these offsets into addresses, except on some platforms.
        let value = usize::try_from(value).ok()?;
        let address = if value < base { base + value } else { value };
        match tag {
            DT_NULL => break,
            DT_SYMTAB => symbols = Some(address),
            DT_STRTAB => names = Some(address),
            DT_GNU_HASH => hashes = Some(address),
            _ => {}
        }
        entry = entry.wrapping_add(1);
    }
    Some(Tables {
        base,
        symbols: std::ptr::with_exposed_provenance(symbols?),
        names: std::ptr::with_exposed_provenance(names?),
        hashes: std::ptr::with_exposed_provenance(hashes?),
    })
}

impl Tables {
    fn find(&self, name: &CStr) -> Option<*mut c_void> {
        let hash = hash(name.to_bytes());
        let word = |at: usize| {
            // SAFETY: needed to read the table of hashes, which is mapped; its own figures keep `at` inside of it.
            unsafe { *self.hashes.wrapping_add(at) }
        };
        let (buckets, first, blooms) = (word(0), word(1), word(2) as usize);
        // The filter has words of 64 bits.
        let bucket_words = 4 + blooms * 2;
        let mut index = word(bucket_words + (hash % buckets) as usize);
        while index >= first && index != 0 {
            let chained = word(bucket_words + buckets as usize + (index - first) as usize);
            if chained | 1 == hash | 1
                && let Some(found) = self.function(index, name)
            {
                return Some(found);
            }
            if chained & 1 == 1 {
                return None;
            }
            index += 1;
        }
        None
    }

    /// The symbol of that index, if it is a function of that name that the object defines.
    fn function(&self, index: u32, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: needed to read a symbol and its name. The chain of hashes has the index, so the tables have both.
        let (symbol, own) = unsafe {
            let symbol = *self.symbols.wrapping_add(index as usize);
            (symbol, CStr::from_ptr(self.names.wrapping_add(symbol.st_name as usize)))
        };
        let is_function = symbol.st_info & 0xf == STT_FUNC && symbol.st_shndx != 0;
        let address = self.base + usize::try_from(symbol.st_value).ok()?;
        (is_function && own == name).then(|| std::ptr::with_exposed_provenance_mut(address))
    }
}

/// The hash of a name in the GNU table.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_the_c_library_has_and_nothing_else() {
        let [dlsym, dlvsym, none] = find([c"dlsym", c"dlvsym", c"cuMemAlloc_v2"]);
        // The test's own names lead to the C library, since only the shared library replaces them.
        assert_eq!(dlsym, Some(libc::dlsym as *mut c_void));
        assert!(dlvsym.is_some());
        assert_eq!(none, None);
    }
}
