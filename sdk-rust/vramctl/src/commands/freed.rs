//! The result of freeing an allocation, as `alloc free` and `mine free` show it.

use serde_json::{Value, json};
use vramd_client::AllocationId;

use crate::output::{Output, failure::Failure, text::size};

/// A freed allocation and what is still charged for it.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) id: AllocationId,
    pub(crate) still_charged_bytes: u64,
    /// The event that ends the charge, as a clause; `None` if no session maps the allocation any longer.
    pub(crate) until: Option<String>,
}

impl Freed {
    /// Shows the result. `mappers` is the field that says who maps the allocation still, with its name.
    pub(crate) fn show(self, (name, mappers): (&str, Value), output: &Output) -> Result<(), Failure> {
        let mut fields = json!({
            "allocation_id": self.id.to_string(),
            "still_charged_bytes": self.still_charged_bytes,
        });
        fields[name] = mappers;
        output.show(|| self.text(), fields)
    }

    fn text(&self) -> String {
        let Self { id, still_charged_bytes, until } = self;
        let until = until.as_deref().unwrap_or("the driver returns them");
        match still_charged_bytes {
            0 => format!("{id} is freed"),
            bytes => format!("{id} is freed; {} stay charged until {until}", size(*bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_what_the_charge_waits_for() {
        let text = |still_charged_bytes, until: Option<&str>| {
            let until = until.map(str::to_owned);
            Freed { id: AllocationId::from_raw(7), still_charged_bytes, until }.text()
        };
        assert_eq!(text(0, None), "a-7 is freed");
        assert_eq!(text(4 << 20, None), "a-7 is freed; 4 MiB stay charged until the driver returns them");
        assert_eq!(
            text(4 << 20, Some("2 sessions unmap it")),
            "a-7 is freed; 4 MiB stay charged until 2 sessions unmap it"
        );
    }
}
