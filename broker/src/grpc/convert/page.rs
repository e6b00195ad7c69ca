//! Divides lists into pages.

use broker_core::Refusal;

const DEFAULT: usize = 100;
const MAX: usize = 1000;

/// The requested page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grpc) struct Page {
    /// The token: where the page before ended.
    pub(in crate::grpc) after: Option<u64>,
    pub(in crate::grpc) size: usize,
}

impl Page {
    pub(in crate::grpc) fn parse(size: Option<u32>, token: &str) -> Result<Self, Refusal> {
        let problem = |problem| Refusal::RequestInvalid { field: "page_size", problem };
        let size = match size.map(usize::try_from) {
            None => DEFAULT,
            Some(Ok(0)) => return Err(problem("is 0. Name 1 to 1000 rows, or leave it out for 100")),
            Some(Ok(size)) if size <= MAX => size,
            Some(_) => return Err(problem("is more than 1000")),
        };
        let after = match token {
            "" => None,
            token if token.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(token.parse().map_err(|_| bad_token())?)
            }
            _ => return Err(bad_token()),
        };
        Ok(Self { after, size })
    }

    /// Cuts this page, by position, out of a list without ids, and returns the token of the next page.
    pub(in crate::grpc) fn cut<T>(&self, rows: Vec<T>) -> (Vec<T>, String) {
        let start = self.after.map_or(0, |after| usize::try_from(after).unwrap_or(usize::MAX));
        let end = start.saturating_add(self.size);
        let next = if end < rows.len() { end.to_string() } else { String::new() };
        (rows.into_iter().skip(start).take(self.size).collect(), next)
    }
}

/// Returns the token of the page after one that ended with `last`; empty after the last page.
pub(in crate::grpc) fn next_token(last: Option<u64>, more: bool) -> String {
    last.filter(|_| more).map_or_else(String::new, |last| last.to_string())
}

fn bad_token() -> Refusal {
    Refusal::RequestInvalid { field: "page_token", problem: "is not a token of this list" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_tokens() {
        assert_eq!(Page::parse(None, ""), Ok(Page { after: None, size: 100 }));
        assert_eq!(
            Page::parse(Some(1000), "1099511627777"),
            Ok(Page { after: Some(1_099_511_627_777), size: 1000 })
        );
        for (size, token) in
            [(0, ""), (1001, ""), (u32::MAX, ""), (1, "x"), (1, "-1"), (1, "+1"), (1, "99999999999999999999")]
        {
            assert!(
                matches!(Page::parse(Some(size), token), Err(Refusal::RequestInvalid { .. })),
                "{size} {token}"
            );
        }
    }

    #[test]
    fn pages_by_position_cover_the_list_once() {
        let rows: Vec<u32> = (0..7).collect();
        let (mut seen, mut token) = (vec![], String::new());
        loop {
            let (page, next) = Page::parse(Some(3), &token).unwrap().cut(rows.clone());
            seen.extend(page);
            token = next;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(seen, rows);
        assert_eq!(Page::parse(Some(3), "18446744073709551615").unwrap().cut(rows), (vec![], String::new()));
    }

    #[test]
    fn the_last_page_has_no_token() {
        assert_eq!(next_token(Some(7), true), "7");
        assert_eq!(next_token(Some(7), false), "");
        assert_eq!(next_token(None, false), "");
    }
}
