//! Checks the names of tenants, and of allocations inside a tenant.

/// Maximum bytes of the name of a tenant or an allocation.
pub const NAME_BYTES_MAX: usize = 128;

/// Whether a tenant or an allocation may have this name: 1 to 128 ASCII letters, digits, `.`, `_` and `-`, beginning
/// with a letter or digit. So a name needs no quoting in a shell, a path or a metric.
pub fn is_valid(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Splits a name as a client of `own_tenant` writes it, `name` or `tenant/name`, into tenant and name. Both are
/// checked.
pub fn resolve<'a>(text: &'a str, own_tenant: &'a str) -> Option<(&'a str, &'a str)> {
    let (tenant, name) = text.split_once('/').unwrap_or((own_tenant, text));
    (is_valid(tenant) && is_valid(name)).then_some((tenant, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names() {
        for good in ["llama", "llama-3.1_8b", "0", &"x".repeat(128)] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", ".", "-x", "a/b", "a b", "ä", "a\n", "*", &"x".repeat(129)] {
            assert!(!is_valid(bad), "{bad}");
        }
    }

    #[test]
    fn a_slash_names_the_tenant() {
        assert_eq!(resolve("llama", "me"), Some(("me", "llama")));
        assert_eq!(resolve("team-a/llama", "me"), Some(("team-a", "llama")));
        for bad in ["", "/", "/x", "x/", "a/b/c"] {
            assert_eq!(resolve(bad, "me"), None, "{bad}");
        }
    }
}
