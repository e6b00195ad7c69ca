//! The class and the weight of tenants: they say whose memory and whose requests go first, and whether their advice
//! counts.

use std::{fmt, str::FromStr};

use crate::limits::{TENANT_WEIGHT_DEFAULT, TENANT_WEIGHT_MAX};

/// The service class of a tenant. Memory leaves from the lowest class up, and prefetches begin from the highest down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TenantClass {
    /// No person waits for it, such as a nightly job.
    Background,
    /// A person may look at its progress, such as an evaluation.
    Utility,
    /// A person has started it, and waits for its end.
    #[default]
    Initiated,
    /// A person waits for each answer.
    Interactive,
}

impl TenantClass {
    /// First the lowest.
    pub const ALL: [Self; 4] = [Self::Background, Self::Utility, Self::Initiated, Self::Interactive];

    /// The names of all classes, for messages.
    pub const NAMES: &str = "background, utility, initiated, interactive";

    /// The name in configurations and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Utility => "utility",
            Self::Initiated => "initiated",
            Self::Interactive => "interactive",
        }
    }
}

impl fmt::Display for TenantClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No class has that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownClass;

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no class of tenants has that name; the names are {}", TenantClass::NAMES)
    }
}

impl FromStr for TenantClass {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        Self::ALL.into_iter().find(|class| class.name() == name).ok_or(UnknownClass)
    }
}

/// The share of a tenant among those of its class: twice the weight is twice the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantWeight(u32);

impl TenantWeight {
    /// Returns the weight, unless it is 0 or too large.
    pub const fn new(weight: u32) -> Option<Self> {
        match weight {
            1..=TENANT_WEIGHT_MAX => Some(Self(weight)),
            _ => None,
        }
    }

    pub const fn get(self) -> u32 {
        self.0
    }

    /// An amount divided by the weight, in units that are fine enough for the largest one.
    pub(crate) fn divide(self, amount: u64) -> u128 {
        let fine = u128::from(amount).saturating_mul(u128::from(TENANT_WEIGHT_MAX));
        fine.checked_div(u128::from(self.0)).unwrap_or(u128::MAX)
    }
}

impl Default for TenantWeight {
    fn default() -> Self {
        Self(TENANT_WEIGHT_DEFAULT)
    }
}

impl fmt::Display for TenantWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Whether a tenant may advise which of its parts leave first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdvicePermission {
    #[default]
    Allowed,
    /// New advice is refused, and the advice that stands has no effect until it is allowed again.
    Forbidden,
}

impl AdvicePermission {
    pub const ALL: [Self; 2] = [Self::Allowed, Self::Forbidden];

    /// All names, for messages.
    pub const NAMES: &str = "allowed, forbidden";

    /// The name in configurations and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Forbidden => "forbidden",
        }
    }

    pub const fn is_forbidden(self) -> bool {
        matches!(self, Self::Forbidden)
    }
}

impl fmt::Display for AdvicePermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Advice is neither allowed nor forbidden by that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPermission;

impl fmt::Display for UnknownPermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no permission for advice has that name; the names are {}", AdvicePermission::NAMES)
    }
}

impl FromStr for AdvicePermission {
    type Err = UnknownPermission;

    fn from_str(name: &str) -> Result<Self, UnknownPermission> {
        Self::ALL.into_iter().find(|permission| permission.name() == name).ok_or(UnknownPermission)
    }
}

/// The class and the weight of a tenant, and whether its advice counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub class: TenantClass,
    pub weight: TenantWeight,
    pub advice: AdvicePermission,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_classes() {
        let names = TenantClass::ALL.map(TenantClass::name);
        assert_eq!(names.join(", "), TenantClass::NAMES);
        assert!(TenantClass::ALL.is_sorted());
        for class in TenantClass::ALL {
            assert_eq!(class.name().parse(), Ok(class));
        }
        assert_eq!("Interactive".parse::<TenantClass>(), Err(UnknownClass));
        assert!(UnknownClass.to_string().ends_with(TenantClass::NAMES));
    }

    #[test]
    fn names_lead_back_to_their_permissions() {
        assert_eq!(AdvicePermission::ALL.map(AdvicePermission::name).join(", "), AdvicePermission::NAMES);
        for permission in AdvicePermission::ALL {
            assert_eq!(permission.name().parse(), Ok(permission));
        }
        assert_eq!("ignored".parse::<AdvicePermission>(), Err(UnknownPermission));
        assert!(UnknownPermission.to_string().ends_with(AdvicePermission::NAMES));
        assert!(!Standing::default().advice.is_forbidden());
    }

    #[test]
    fn weight_has_bounds_and_divides_finely() {
        let bounds = [0, 1, TENANT_WEIGHT_MAX, TENANT_WEIGHT_MAX + 1];
        let weights = bounds.map(|weight| TenantWeight::new(weight).map(TenantWeight::get));
        assert_eq!(weights, [None, Some(1), Some(TENANT_WEIGHT_MAX), None]);
        let divided = |weight, amount| TenantWeight::new(weight).unwrap().divide(amount);
        assert_eq!(divided(200, 14), divided(100, 7));
        assert!(
            divided(10_000, 20_000) < divided(9_999, 20_000) && divided(1, u64::MAX) > divided(2, u64::MAX)
        );
    }
}
