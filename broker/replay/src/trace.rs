//! A trace in memory: what happened to which part, in order of time.

use std::collections::BTreeMap;

use broker_core::Cause;

/// Maximum records of a trace. In memory they take half a gigabyte.
pub const RECORDS_MAX: usize = 10_000_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub names: Names,
    /// In order of time. A part is allocated before anything else happens to it, and nothing happens to it after it was
    /// freed.
    pub records: Vec<Record>,
}

/// An event with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Microseconds since the trace began.
    pub at: u64,
    pub what: What,
}

/// A part of an allocation, by the number of the allocation that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartKey {
    pub allocation: u64,
    pub part: u32,
}

/// An event of a trace. The variants from `Fetch` on are what the daemon did. A replay reports them, and repeats none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A device holds up to this many bytes.
    Device {
        device: u32,
        bytes: u64,
    },
    /// A part comes to be.
    Allocate {
        part: PartKey,
        bytes: u64,
        tenant: u32,
        device: u32,
        start: Start,
    },
    /// All parts of an allocation end.
    Free {
        allocation: u64,
    },
    /// A session pins a part. It should be on its device within the deadline, in microseconds.
    Use {
        part: PartKey,
        deadline: Option<u64>,
    },
    /// A session has written the part.
    Write {
        part: PartKey,
    },
    /// A session keeps the part pinned until `Release`.
    Hold {
        part: PartKey,
    },
    Release {
        part: PartKey,
    },
    /// The part came to its device.
    Fetch {
        part: PartKey,
        bytes: u64,
    },
    /// The part left its device, with a copy or without.
    Evict {
        part: PartKey,
        bytes: u64,
        cause: Cause,
        copied: bool,
    },
    /// The part was copied to its backing and stayed.
    WriteBack {
        part: PartKey,
        bytes: u64,
    },
    /// A pin call of the tenant waited this long for a part that was not on its device.
    Wait {
        tenant: u32,
        micros: u64,
    },
}

/// Where a part is when it comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Device,
    /// Below its device.
    Below,
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// An operator stopped it.
    Stopped,
    /// It had its maximum of records.
    Full,
}

/// The names of tenants and devices. Records have their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    tenants: NameTable,
    devices: NameTable,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NameTable {
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
}

impl Names {
    /// Returns the number of a tenant, a new one if the name is new.
    pub fn tenant(&mut self, name: &str) -> u32 {
        self.tenants.number(name)
    }

    /// Returns the number of a device, a new one if the name is new.
    pub fn device(&mut self, name: &str) -> u32 {
        self.devices.number(name)
    }

    pub fn tenant_name(&self, number: u32) -> &str {
        self.tenants.name(number)
    }

    pub fn device_name(&self, number: u32) -> &str {
        self.devices.name(number)
    }

    pub(crate) fn tenants(&self) -> &[String] {
        &self.tenants.names
    }

    pub(crate) fn devices(&self) -> &[String] {
        &self.devices.names
    }
}

impl NameTable {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn name(&self, number: u32) -> &str {
        self.names.get(index(number)).map_or("", String::as_str)
    }
}

pub(crate) fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
