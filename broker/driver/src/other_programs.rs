//! How much of the host's memory is left to everybody else, whatever is asked.

use vramd_types::Bytes;

/// Of a machine with so much in all: a tenth, and 2 GiB at least.
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
