//! The suite that every driver must pass.
//!
//! A driver's tests give a [`Harness`], which opens the driver and starts other processes, and list the cases with
//! [`contract_tests!`](crate::contract_tests): one `#[test]` each. What a driver can't show (a real card has no
//! scheduled faults) it says in its [`Facts`]; a case that needs it answers [`Verdict::NotApplicable`], and the
//! driver's tests decide whether that may be.
//!
//! A process that is just being started holds, between its fork and its exec, all that its parent does. So a case
//! that wants memory back looks for it until a deadline, or first waits until nothing is starting.

mod bench;
pub mod capacity;
pub mod digest;
pub mod faults;
pub mod lifetime;
pub mod memory;
pub mod submissions;

use std::sync::{Arc, mpsc::Receiver};

use vramd_types::Bytes;

use self::bench::Bench;
use crate::{Completion, Driver, Handle, sim::Fault};

/// One machine with devices of its own. What is opened again on the same machine has the same devices.
pub trait Harness {
    fn facts(&self) -> Facts;

    /// `faults` are empty unless the facts say that they can be scheduled.
    fn open(&self, faults: Vec<Fault>) -> (Arc<dyn Driver>, Receiver<Completion>);

    /// Starts another process.
    fn importer(&self) -> Box<dyn Importer>;

    /// Returns when every process that was being started has started.
    fn quiet(&self);
}

/// What the machine and its driver can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Memory is charged to the byte, and nobody else uses the devices.
    pub exact_capacity: bool,
    pub several_devices: bool,
    pub scheduled_faults: bool,
}

/// Another process, which holds at most one extent. Dropping it ends the process.
pub trait Importer {
    /// Gives it the handle; `size` is the extent's.
    fn import(&mut self, handle: &Handle, size: Bytes);

    /// Maps what was imported, with the access that it chooses.
    fn map(&mut self, access: Access);

    /// Lets go of the descriptor; what is mapped stays mapped.
    fn close(&mut self);

    fn unmap(&mut self);

    /// Through the mapping.
    fn read(&mut self, offset: u64, length: usize) -> Vec<u8>;

    /// Through the mapping. `false` where its access forbids it, and then nothing was written.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> bool;

    /// By SIGKILL; returns when it is gone.
    fn kill(&mut self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// How a case ended that did not panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    Passed,
    NotApplicable(&'static str),
}

/// One `#[test]` for every case. `$harness` makes a new machine, `$judge` takes the [`Verdict`].
#[macro_export]
macro_rules! contract_tests {
    ($harness:expr, $judge:expr) => {
        $crate::contract_tests! { @cases $harness, $judge;
            memory::fresh_memory_is_zero,
            memory::used_memory_is_zero_when_it_is_made_again,
            memory::importers_see_each_others_bytes,
            memory::an_importer_chooses_its_access,
            memory::a_mapping_outlives_its_descriptor,
            lifetime::what_nobody_holds_is_returned_at_once,
            lifetime::a_mapping_elsewhere_keeps_memory,
            lifetime::a_descriptor_elsewhere_keeps_memory,
            lifetime::a_handle_kept_by_the_caller_keeps_memory,
            lifetime::the_last_of_several_holders_frees,
            lifetime::a_killed_holder_frees,
            lifetime::memory_outlives_its_driver,
            capacity::out_of_memory_is_an_answer,
            capacity::the_whole_capacity_can_be_used_and_comes_back,
            capacity::what_others_hold_is_not_free,
            capacity::what_an_earlier_driver_left_is_not_free,
            capacity::devices_are_separate,
            digest::a_digest_is_of_the_bytes,
            digest::a_digest_can_be_of_a_part,
            digest::a_digest_joins_extents,
            digest::a_digest_of_what_is_not_there_fails,
            submissions::nonsense_is_answered,
            submissions::each_is_answered_once,
            submissions::what_was_submitted_is_done_though_the_driver_is_dropped,
            faults::memory_runs_out_on_schedule,
            faults::a_driver_fails_on_schedule,
            faults::who_is_delayed_holds_up_nobody,
            faults::a_delay_passes,
        }
    };
    (@cases $harness:expr, $judge:expr; $($module:ident::$case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                $judge($crate::contract::$module::$case(&$harness));
            }
        )*
    };
}
