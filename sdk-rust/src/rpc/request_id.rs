//! Request ids, by which the daemon recognises a repeated mutation.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};

/// 16 bytes, unique within a session and method. Repeating a mutation with the same id and content returns the first
/// result, even if its caller's deadline had passed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId([u8; 16]);

impl RequestId {
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub fn random() -> Self {
        let mut bytes = [0; 16];
        loop {
            match getrandom(&mut bytes, GetRandomFlags::empty()) {
                Ok(_) => return Self(bytes),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    panic!("getrandom is older than memfd_create, which this needs, and yet failed: {error}")
                }
            }
        }
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        self.0.to_vec()
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
