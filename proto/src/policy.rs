//! The names of eviction policies, which configurations and programs show.

use crate::v1::EvictionPolicy;

const PREFIX: &str = "EVICTION_POLICY_";

impl EvictionPolicy {
    /// Returns every policy, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..).map_while(|number| Self::try_from(number).ok())
    }

    /// The name in configurations and programs, such as `weighted-lru`.
    pub fn name(self) -> String {
        self.as_str_name().trim_start_matches(PREFIX).to_lowercase().replace('_', "-")
    }

    /// Finds the policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|policy| policy.name() == name)
    }
}
