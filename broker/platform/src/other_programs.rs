//! The reserve of host memory for other programs, which the driver never pins.

use vramd_types::Bytes;

/// The reserve on a machine with so much memory: a tenth, and at least 2 GiB.
pub fn left_to_other_programs(total: Bytes) -> Bytes {
    Bytes::gib(2).max(Bytes::new(total.get() / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_keeps_more_than_its_tenth() {
        assert_eq!(left_to_other_programs(Bytes::gib(8)), Bytes::gib(2));
        assert_eq!(left_to_other_programs(Bytes::gib(20)), Bytes::gib(2));
        assert_eq!(left_to_other_programs(Bytes::gib(500)), Bytes::gib(50));
    }
}
