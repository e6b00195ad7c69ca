//! Pin sets: all parts or none, so that two programs that each hold half do not wait for each other.

use std::{ops::Range, time::Instant};

use vramd_types::Reason;
use vramd_words::Access;

use super::{Anchor, Pinned, wait::check_count};
use crate::{
    error::{Error, Result},
    handles::handle::Handle,
    process::fork::ProcessBound,
};

/// A handle that can be part of a set: [`crate::Allocation`] and [`crate::Sealed`].
pub trait Pinnable: private::Sealed {}

pub(crate) mod private {
    /// Keeps other crates from implementing it.
    pub trait Sealed {
        fn handle(&self) -> Handle<'_>;
    }

    /// Opaque to other crates.
    #[derive(Clone, Copy, Debug)]
    pub struct Handle<'a>(pub(crate) &'a crate::handles::handle::Handle);
}

/// Guards of several allocations, pinned together. Dropping the set ends all of them; each can be taken out.
#[must_use = "dropped, it pins nothing"]
#[derive(Debug)]
pub struct PinnedSet(Vec<Pinned>);

impl PinnedSet {
    /// The guards, in the order in which they were named.
    pub fn guards(&self) -> &[Pinned] {
        &self.0
    }

    pub fn guards_mut(&mut self) -> &mut [Pinned] {
        &mut self.0
    }

    /// Returns the guards, each of which ends on its own.
    pub fn into_guards(self) -> Vec<Pinned> {
        self.0
    }
}

struct Member<'a> {
    anchor: &'a ProcessBound<Anchor>,
    parts: Range<u32>,
    access: Access,
}

pub(crate) fn pin_set(
    set: &[(&dyn Pinnable, Access)],
    is_ours: impl Fn(&Handle) -> bool,
    deadline: impl FnOnce() -> Instant,
) -> Result<PinnedSet> {
    let invalid =
        |problem: String| Error::refused(Reason::RequestInvalid, &[("field", &"set"), ("problem", &problem)]);
    let mut members: Vec<Member<'_>> = Vec::with_capacity(set.len());
    for (pinnable, access) in set {
        let private::Handle(handle) = pinnable.handle();
        handle.check_pin(*access)?;
        let (anchor, id) = (handle.anchor(), handle.info().id);
        if !is_ours(handle) {
            return Err(invalid(format!("{id} belongs to another session than the pin set")));
        }
        if members.iter().any(|member| member.anchor.id() == id) {
            return Err(invalid(format!("{id} is named twice")));
        }
        members.push(Member { anchor, parts: anchor.parts(None)?, access: *access });
    }
    check_count(members.iter().map(|member| member.parts.len()).sum())?;
    let Some(session) = members.first().map(|member| member.anchor.session()) else {
        return Ok(PinnedSet(Vec::new()));
    };
    if !members.iter().enumerate().all(|(at, member)| member.pin(&members[..at])) {
        let wanted: Vec<_> =
            members.iter().flat_map(|member| member.anchor.targets(&member.parts, member.access)).collect();
        session.pin_waiting(&wanted, deadline())?;
        members.iter().for_each(|member| member.anchor.refresh_slots(member.parts.clone()));
    }
    let guards =
        members.into_iter().map(|member| Pinned::from_pins(member.anchor, member.parts, member.access));
    Ok(PinnedSet(guards.collect()))
}

impl Member<'_> {
    /// Pins this member at once, or unpins those before it.
    fn pin(&self, before: &[Member<'_>]) -> bool {
        let pinned = self.anchor.pin(&self.parts, self.access).is_ok();
        if !pinned {
            before.iter().for_each(|member| member.anchor.unpin(&member.parts));
        }
        pinned
    }
}
