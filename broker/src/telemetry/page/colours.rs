//! Colours of tenants: the largest tenants of each device have one, the same on all devices and at each rendering if
//! possible.

use std::{collections::BTreeMap, sync::Arc};

use broker_core::DeviceView;

use super::history::{History, NAMED_MAX, Window};

/// A colour of the style sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour(usize);

impl Colour {
    /// The colour of all tenants without one of their own.
    pub(super) const OTHERS: Self = Self(NAMED_MAX);

    pub(super) const fn class(self) -> &'static str {
        match self.0 {
            0 => "c0",
            1 => "c1",
            2 => "c2",
            3 => "c3",
            4 => "c4",
            5 => "c5",
            6 => "c6",
            7 => "c7",
            _ => "others",
        }
    }
}

/// The colours of tenants at the last rendering.
pub(super) type Known = BTreeMap<Arc<str>, Colour>;

/// The tenants of one device that have a colour, the largest first.
pub(super) type Named = Vec<(Arc<str>, Colour)>;

/// Chooses the named tenants of each device: those with the largest charges in the window, in all tiers.
///
/// Afterwards `known` has these tenants alone, so that it stays as small as the charts.
pub(super) fn named_tenants(
    history: &History,
    window: Window,
    devices: &[DeviceView],
    known: &mut Known,
) -> Vec<Named> {
    let mut of_devices: Vec<Named> = Vec::new();
    for device in devices {
        let mut sums: BTreeMap<&Arc<str>, u128> = BTreeMap::new();
        for place in history.samples(window).iter().flat_map(|sample| sample.of_device(device.index)) {
            for (name, charge) in &place.tenants {
                let sum = sums.entry(name).or_default();
                *sum = sum.saturating_add(charge.get().into());
            }
        }
        let mut largest: Vec<_> = sums.into_iter().collect();
        largest.sort_by(|(a, sum_a), (b, sum_b)| sum_b.cmp(sum_a).then(a.cmp(b)));
        largest.truncate(NAMED_MAX);
        of_devices.push(assign(largest.into_iter().map(|(name, _)| Arc::clone(name)).collect(), known));
    }
    known.retain(|name, _| of_devices.iter().flatten().any(|(named, _)| named == name));
    of_devices
}

/// Gives each tenant its known colour, unless another one here has that, and else the first free one.
fn assign(tenants: Vec<Arc<str>>, known: &mut Known) -> Named {
    let mut used = [false; NAMED_MAX];
    let mut take = |colour: Colour| {
        let place = used.get_mut(colour.0).filter(|used| !**used)?;
        *place = true;
        Some(colour)
    };
    let kept: Vec<_> = tenants.iter().map(|name| known.get(name).copied().and_then(&mut take)).collect();
    let mut named = Named::new();
    for (name, kept) in tenants.into_iter().zip(kept) {
        let free = || (0..NAMED_MAX).map(Colour).find_map(&mut take);
        let colour = kept.or_else(free).unwrap_or(Colour::OTHERS);
        known.entry(Arc::clone(&name)).or_insert(colour);
        named.push((name, colour));
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_keeps_its_colour_unless_it_is_taken() {
        let mut known = Known::new();
        let of = |names: &[&str], known: &mut _| -> Vec<usize> {
            let named = assign(names.iter().map(|&name| name.into()).collect(), known);
            named.into_iter().map(|(_, colour)| colour.0).collect()
        };
        assert_eq!(of(&["a", "b"], &mut known), [0, 1]);
        assert_eq!(of(&["c", "b"], &mut known), [0, 1], "the first device has both colours, of others");
        assert_eq!(of(&["c", "a", "b"], &mut known), [0, 2, 1], "only one of them can have it here");
    }
}
