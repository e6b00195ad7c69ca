//! Checks the range of a file that a client loads.

use crate::Bytes;

/// Says why a file of this length cannot serve a load from the offset on: of `size` bytes, or of all of them. `None` if it
/// can. Daemon and SDKs say the same of one file.
#[must_use]
pub fn file_range_problem(length: Bytes, offset: Bytes, size: Option<Bytes>) -> Option<String> {
    let there = length.saturating_sub(offset);
    match size {
        _ if length.is_zero() => Some("the file is empty".to_owned()),
        _ if there.is_zero() => Some(format!(
            "the offset {} is not within the file, which has {} bytes",
            offset.get(),
            length.get()
        )),
        Some(size) if size > there => Some(format!(
            "{} bytes from offset {} were requested, but the file has {} bytes",
            size.get(),
            offset.get(),
            length.get()
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_the_figure_that_is_wrong() {
        let problem = |length, offset, size: Option<u64>| {
            file_range_problem(Bytes::new(length), Bytes::new(offset), size.map(Bytes::new))
                .unwrap_or_default()
        };
        assert_eq!(problem(3, 2, None), "");
        assert_eq!(problem(3, 2, Some(1)), "");
        assert_eq!(problem(0, 0, None), "the file is empty");
        assert_eq!(problem(3, 4, None), "the offset 4 is not within the file, which has 3 bytes");
        assert_eq!(problem(3, 1, Some(5)), "5 bytes from offset 1 were requested, but the file has 3 bytes");
    }
}
