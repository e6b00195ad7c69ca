//! Scenarios: devices, limits, tenants with their scripts, and rates of faults, all drawn from a seed.

mod advice;
mod classes;
mod crowds;
mod disks;
mod evictions;
mod fault;
mod fences;
mod files;
mod gang;
mod insistence;
mod lanes;
mod lull;
mod managed;
mod node;
mod policies;
mod prefetches;
mod returning;
mod script;
mod sequences;
mod strolls;
mod turns;
mod working_sets;
mod write_backs;

pub use advice::{Advising, Overruling, Retaining};
pub use classes::Classes;
pub(crate) use classes::some_weight;
pub use crowds::Crowds;
pub use disks::Disks;
pub use evictions::Evictions;
pub use fault::{Fault, Faults};
pub use fences::Fences;
pub use files::Files;
pub use gang::{GANG_PID, Gang};
pub use insistence::Insistence;
pub use lanes::Lanes;
pub use lull::Lull;
pub use managed::ManagedOrdering;
pub(crate) use node::pressure;
pub use policies::Policies;
pub use prefetches::Prefetching;
pub use returning::Returning;
pub use script::Script;
pub use sequences::Sequencing;
pub(crate) use strolls::STROLLERS;
pub use strolls::Strolls;
pub(crate) use working_sets::TURNERS;
pub use working_sets::WorkingSets;
pub use write_backs::WriteBacks;

use std::collections::BTreeSet;

use broker_core::{Bug, Config, StoredQuotas, Tier};

use crate::dice::Dice;

/// A run: the seed, and what is left out of its world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub events: u64,
    pub bug: Option<Bug>,
    pub without: BTreeSet<Fault>,
    /// Seats whose processes do nothing; may include [`OPERATORS`].
    pub idle: BTreeSet<usize>,
    /// Acts to leave out, by number.
    pub skip: BTreeSet<u64>,
}

/// The seat of the operators.
pub const OPERATORS: usize = 100;

impl Plan {
    pub fn new(seed: u64, events: u64) -> Self {
        Self {
            seed,
            events,
            bug: None,
            without: BTreeSet::new(),
            idle: BTreeSet::new(),
            skip: BTreeSet::new(),
        }
    }
}

/// A seat, at which client processes sit one after the other.
#[derive(Clone, Debug)]
pub struct Seat {
    pub tenant: &'static str,
    pub script: Script,
    /// UUIDs that its processes see; `None` means all.
    pub devices: Option<Vec<String>>,
    /// Its processes use pins.
    pub pins: bool,
    /// Its processes ask to be sent the pressure of devices.
    pub hears_pressure: bool,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub config: Config,
    pub stored: StoredQuotas,
    pub seats: Vec<Seat>,
    /// The tenants of the seats.
    pub tenants: Vec<&'static str>,
    pub faults: Faults,
    /// Mean microseconds between two acts of one process.
    pub think_micros: u64,
    /// Mean microseconds between two harvests.
    pub harvest_micros: u64,
    /// Lanes that copies go by, if any.
    pub lanes: Option<Lanes>,
    /// Files that are loaded, if any.
    pub files: Option<Files>,
    /// Advice that owners give, if any.
    pub advising: Option<Advising>,
    pub retaining: Option<Retaining>,
    pub overruling: Option<Overruling>,
    /// Owners that evict their memory, if any.
    pub evictions: Option<Evictions>,
    /// Bad disks, if any.
    pub disks: Option<Disks>,
    /// Write-backs of parts whose backing is clean already, if any.
    pub write_backs: Option<WriteBacks>,
    /// A time in which no actor begins anything, if any.
    pub lull: Option<Lull>,
    /// Fences that join revocations under way, if any.
    pub fences: Option<Fences>,
    /// Requests that are repeated after as many others as the daemon remembers, if any.
    pub insistence: Option<Insistence>,
    /// Clients that wait in long lines, if any.
    pub crowds: Option<Crowds>,
    /// Owners without pins that attach their memory again, if any.
    pub returning: Option<Returning>,
    /// Sessions of one process that are silent together, if any.
    pub gang: Option<Gang>,
    /// Changes of the eviction policy, if any.
    pub policies: Option<Policies>,
    /// Parts that clients ask for ahead of their use, if they do.
    pub prefetching: Option<Prefetching>,
    /// Orders that clients declare, if they do.
    pub sequencing: Option<Sequencing>,
    /// Turns of working sets, if any.
    pub working_sets: Option<WorkingSets>,
    /// Orders of pins that the daemon can learn, if any.
    pub strolls: Option<Strolls>,
    /// Managed memory that is ordered to and fro, if any.
    pub managed: Option<ManagedOrdering>,
    /// Unequal tenants, if any.
    pub classes: Option<Classes>,
}

pub const TENANTS: [&str; 5] = ["ada", "bea", "cyd", "dot", "eve"];

impl Scenario {
    pub fn of(plan: &Plan) -> Self {
        let mut dice = Dice::new(plan.seed, 0);
        let mut config = node::config(&mut dice);
        let mut stored = node::stored(&mut dice, &config);
        let tenants = TENANTS[..usize::try_from(dice.between(2, 5)).unwrap_or(2)].to_vec();
        let uuids: Vec<_> = config.devices.iter().map(|device| device.uuid.clone()).collect();
        let mut seats: Vec<_> = (0..dice.between(3, 9))
            .map(|seat| {
                let some = dice.chance(150).then(|| vec![uuids[dice.index(uuids.len())].clone()]);
                Seat {
                    tenant: dice.one(&tenants),
                    script: dice.one(&Script::ALL),
                    devices: some,
                    pins: dice.chance(800),
                    hears_pressure: seat % 2 == 0,
                }
            })
            .collect();
        let mut faults = Faults::draw(&mut dice, &plan.without);
        let think_micros = dice.one(&[300, 1_000, 4_000]);
        let harvest_micros = dice.one(&[1_000, 10_000, 100_000]);
        config.check_clean_backings = dice.chance(150);
        config.pressure = node::pressure(&mut dice);
        turns::draw_into(&mut config, plan.seed);
        let lanes = Lanes::draw(plan.seed);
        let think_micros = lanes.map_or(think_micros, |lanes| lanes.think_micros);
        if let Some(lanes) = &lanes {
            lanes.apply_to(&mut config);
        }
        let files = Files::draw(plan.seed);
        if let Some(files) = &files {
            files.apply_to(&mut config, &mut faults);
            let is_there = |tier: Tier| match tier {
                Tier::Device => true,
                Tier::Host => config.devices.iter().any(|device| !device.host.is_zero()),
                Tier::Disk => config.devices.iter().any(|device| !device.disk.is_zero()),
            };
            stored.quotas.retain(|quota| is_there(quota.tier));
        }
        let advising = Advising::draw(plan.seed);
        if let Some(advising) = &advising {
            advising.apply_to(&mut config);
        }
        let disks = Disks::draw(plan.seed);
        let fences = Fences::draw(plan.seed);
        let insistence = Insistence::draw(plan.seed);
        stored.requests = insistence.as_ref().map(Insistence::stored).unwrap_or_default();
        let crowds = Crowds::draw(plan.seed);
        if let Some(crowds) = &crowds {
            crowds.apply_to(&mut config, &mut seats, &mut faults);
        }
        let harvest_micros = if crowds.is_some() { 10_000 } else { harvest_micros };
        let returning = Returning::draw(plan.seed);
        if let Some(returning) = &returning {
            returning.apply_to(&mut config, &mut seats);
        }
        let gang = Gang::draw(plan.seed);
        if let Some(gang) = &gang {
            gang.apply_to(&mut config, &mut seats);
        }
        let policies = Policies::draw(&mut config, plan.seed);
        let classes = Classes::draw(&mut config, &mut stored, plan.seed);
        if let Some(classes) = &classes {
            classes.apply_to(&mut config, &mut seats, &tenants);
        }
        let strolls = Strolls::draw(plan.seed);
        if let Some(strolls) = strolls.filter(|_| crowds.is_none() && classes.is_none() && lanes.is_none()) {
            strolls.apply_to(&mut config, &mut seats);
        }
        let overruling = Overruling::draw(&mut config, &mut stored, plan.seed);
        let is_contended = classes.is_some_and(|classes| classes.is_contended);
        let prefetching = Prefetching::draw(&mut config, plan.seed, is_contended);
        let has_others = crowds.is_some() || lanes.is_some();
        let working_sets = WorkingSets::draw(&mut config, plan.seed).filter(|_| !has_others);
        if let Some(working_sets) = working_sets {
            working_sets.apply_to(&mut config, &mut seats);
        }
        Self {
            config,
            stored,
            seats,
            tenants,
            faults,
            think_micros,
            harvest_micros,
            lanes,
            files,
            advising,
            retaining: Retaining::draw(plan.seed),
            overruling,
            evictions: Evictions::draw(plan.seed),
            disks,
            write_backs: WriteBacks::draw(plan.seed),
            lull: Lull::draw(plan.seed),
            fences,
            insistence,
            crowds,
            returning,
            gang,
            policies,
            prefetching,
            sequencing: Sequencing::draw(plan.seed),
            working_sets,
            strolls,
            managed: ManagedOrdering::draw(plan.seed),
            classes,
        }
    }
}
