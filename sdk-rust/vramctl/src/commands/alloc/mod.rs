//! `vramctl alloc …`: the verbs. `show` renders allocations, each other module runs one verb on their parts.

mod advise;
mod free;
mod operator_hold;
mod part_ranges;
pub(crate) mod relocate;
mod revoke;
mod show;

use std::str::FromStr;

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::json;
use vramd_client::{AllocationId, admin::AdminClient};
use vramd_proto::v1;

pub(crate) use self::show::{rows, state_name, tiers, to_json};
use self::{advise::Advise, part_ranges::Parts, revoke::Revoke};
use crate::output::{Output, failure::Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the allocations of all tenants.
    List(List),
    /// Show one allocation with its parts and the sessions that map them.
    Show {
        /// Id like a-1099511627777, or `tenant/name`.
        target: Target,
    },
    /// Free an allocation.
    ///
    /// The daemon asks the owner to unmap it. No session can attach it any longer.
    Free {
        /// Id like a-1099511627777, or `tenant/name`.
        target: Target,
    },
    /// Unmap parts in the processes that map them.
    ///
    /// The owner keeps the memory: the next pin maps it again.
    Revoke(Revoke),
    /// Move unpinned parts away from their device, or between host and disk.
    ///
    /// The next pin fetches them.
    Evict(Evict),
    /// Move parts to their device, if it has room.
    BringIn(Parts),
    /// Copy unpinned parts to their backing while they stay mapped.
    ///
    /// A part that is not written afterwards leaves its device without a copy.
    WriteBack(Parts),
    /// Keep parts on their device until `unhold`, even if a waiter needs the room.
    ///
    /// A part in another tier stays there until its next pin.
    Hold(Parts),
    /// Let go of parts that an operator holds.
    Unhold(Parts),
    /// Advise which parts leave their device first, over what their owner advises.
    ///
    /// For the parts that are named, the owner's advice has no effect until `--clear`, whatever the owner advises later.
    Advise(Advise),
}

#[derive(Debug, Args)]
pub(crate) struct Evict {
    #[command(flatten)]
    parts: Parts,
    /// Tier to move to.
    #[arg(long, value_enum, default_value_t = Below::Host)]
    to: Below,
}

/// A tier below a device.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Below {
    Host,
    Disk,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// List this tenant alone.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    tenant: Option<String>,
}

/// An id like `a-1099511627777`, or `tenant/name`.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Id(AllocationId),
    Name(String),
}

impl Below {
    const fn tier(self) -> v1::Tier {
        match self {
            Self::Host => v1::Tier::Host,
            Self::Disk => v1::Tier::Disk,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Name(text.to_owned()));
        }
        text.parse()
            .map(Self::Id)
            .map_err(|error| format!("{error}, and a name needs its tenant: `tenant/{text}`"))
    }
}

pub(crate) fn run(verb: Verb, admin: &AdminClient, output: &Output) -> Result<(), Failure> {
    match verb {
        Verb::List(list) => {
            let allocations = admin.allocations(list.tenant.as_deref())?;
            let fields = json!({ "allocations": allocations.iter().map(to_json).collect::<Vec<_>>() });
            output.show(|| rows(&allocations), fields)
        }
        Verb::Show { target } => show::run(target, admin, output),
        Verb::Free { target } => free::run(target, admin, output),
        Verb::Revoke(revoke) => revoke::run(revoke, admin, output),
        Verb::Evict(evict) => relocate::run(evict.parts, evict.to.tier(), admin, output),
        Verb::WriteBack(parts) => relocate::write_back(parts, admin, output),
        Verb::Hold(parts) => operator_hold::run(parts, true, admin, output),
        Verb::Unhold(parts) => operator_hold::run(parts, false, admin, output),
        Verb::Advise(advise) => advise::run(advise, admin, output),
        Verb::BringIn(parts) => relocate::run(parts, v1::Tier::Device, admin, output),
    }
}
