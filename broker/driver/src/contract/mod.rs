//! The suite that every driver must pass.
//!
//! A driver's tests implement a [`Harness`], which opens the driver and starts other processes. They list the
//! cases with [`contract_tests!`](crate::contract_tests): one `#[test]` each. [`Facts`] say what a driver
//! cannot show; a real card, for example, has no scheduled faults. A case that needs it answers
//! [`Verdict::NotApplicable`], and the driver's tests decide whether that is permitted.
//!
//! Between its fork and its exec a starting process holds all descriptors and mappings of its parent. So a case
//! that wants memory back polls until a deadline, or first waits until no process is starting.

mod bench;
pub mod capacity;
pub mod copies;
pub mod digest;
pub mod directory;
pub mod disk;
pub mod faults;
pub mod files;
pub mod fixed;
mod folder;
pub mod free_pinned;
pub mod host;
pub mod lifetime;
pub mod memory;
pub mod other_programs;
pub mod submissions;

use std::{
    path::PathBuf,
    sync::{Arc, mpsc::Receiver},
};

use vramd_types::{Bytes, DeviceIndex};

use self::bench::Bench;
use crate::{Completion, DiskConfig, Driver, DriverError, Export, sim::Fault};

/// One machine with devices of its own. Drivers opened on the same machine have the same devices.
pub trait Harness {
    fn facts(&self) -> Facts;

    /// `faults` are empty unless the facts say that they can be scheduled.
    fn open(&self, faults: Vec<Fault>) -> (Arc<dyn Driver>, Receiver<Completion>);

    /// The same, with extents on disk and ranges of files. Without a directory, only ranges of files.
    fn open_with_disk(
        &self,
        disk: Option<DiskConfig>,
        faults: Vec<Fault>,
    ) -> Result<(Arc<dyn Driver>, Receiver<Completion>), DriverError>;

    /// A folder on a file system with direct IO. Each case makes a folder of its own there.
    fn directory(&self) -> PathBuf;

    /// Starts another process.
    fn importer(&self) -> Box<dyn Importer>;

    /// Returns once every process that was starting has started.
    fn quiet(&self);
}

/// The abilities of the machine and its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Memory is charged to the byte, and no other program uses the devices.
    pub exact_capacity: bool,
    pub several_devices: bool,
    pub scheduled_faults: bool,
    /// Importers can allocate memory behind the driver's back.
    pub other_programs: bool,
}

/// Another process, which holds at most one extent. Dropping it ends the process.
pub trait Importer {
    /// Passes the export to the process; device and size are the extent's.
    fn import(&mut self, export: &Export, device: DeviceIndex, size: Bytes);

    /// Maps the imported extent, with the access that the process chooses.
    fn map(&mut self, access: Access);

    /// Closes the descriptor; a mapping stays.
    fn close(&mut self);

    fn unmap(&mut self);

    /// Reads through the mapping.
    fn read(&mut self, offset: u64, length: usize) -> Vec<u8>;

    /// Writes through the mapping. `false` if its access forbids it; then nothing was written.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> bool;

    /// Kills the process with SIGKILL, and returns when it is gone.
    fn kill(&mut self);

    fn pid(&self) -> u32;

    /// Allocates memory of the first device behind the driver's back, until the process ends. `false` if there
    /// is not as much. Only called if the facts permit it.
    fn allocate(&mut self, size: Bytes) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// The outcome of a case that did not panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    Passed,
    NotApplicable(&'static str),
}

/// The name of a case, and its function.
pub type Case = (&'static str, fn(&dyn Harness) -> Verdict);

/// All cases, for programs that run the suite without a test harness.
pub fn cases() -> &'static [Case] {
    crate::contract_tests! { @all @list }
}

/// One `#[test]` for every case. `$harness` makes a new machine, `$judge` takes the [`Verdict`].
#[macro_export]
macro_rules! contract_tests {
    ($harness:expr, $judge:expr) => {
        $crate::contract_tests! { @all @tests $harness, $judge }
    };
    (@all $($what:tt)*) => {
        $crate::contract_tests! { $($what)*;
            memory::fresh_memory_is_zero,
            memory::reused_memory_is_zero,
            memory::importers_see_each_others_bytes,
            memory::an_importer_chooses_its_access,
            memory::a_mapping_outlives_its_descriptor,
            lifetime::memory_without_holders_is_returned_at_once,
            lifetime::a_mapping_elsewhere_keeps_memory,
            lifetime::a_descriptor_elsewhere_keeps_memory,
            lifetime::an_export_held_by_the_caller_keeps_memory,
            lifetime::the_last_of_several_holders_frees,
            lifetime::a_killed_holder_frees,
            lifetime::memory_outlives_its_driver,
            capacity::out_of_memory_is_an_answer,
            capacity::the_whole_capacity_can_be_used_and_is_returned,
            capacity::memory_held_by_others_is_not_free,
            capacity::memory_of_an_earlier_driver_is_not_free,
            capacity::devices_are_separate,
            host::host_memory_is_zero_and_can_be_shared,
            host::reused_host_memory_is_zero,
            host::a_mapping_of_host_memory_outlives_its_release,
            host::running_out_of_host_memory_is_an_answer,
            host::invalid_host_submissions_are_refused,
            free_pinned::free_memory_is_reused_and_zeroed_on_request,
            free_pinned::memory_exported_to_another_process_is_not_reused,
            free_pinned::memory_pinned_with_use_is_kept_and_grows_ahead,
            free_pinned::free_and_used_memory_stay_within_the_node_size,
            free_pinned::another_size_has_free_memory_unpinned,
            free_pinned::other_sizes_become_pieces_once_a_piece_is_missing,
            free_pinned::creates_are_served_while_other_sizes_become_pieces,
            free_pinned::free_pieces_stay_within_their_maximum,
            free_pinned::pin_ahead_is_accepted_once_for_each_known_node,
            free_pinned::the_end_does_not_wait_for_memory_ahead,
            copies::bytes_arrive_in_every_direction,
            copies::bytes_arrive_on_another_device,
            copies::only_the_first_bytes_are_copied,
            copies::both_directions_at_once_do_not_mix,
            copies::an_exchange_is_a_copy_out_and_then_one_in,
            copies::copies_of_a_direction_are_done_in_order,
            copies::a_demand_copy_goes_first,
            copies::a_cancelled_copy_is_reported_once_and_harms_no_other,
            copies::an_impossible_copy_is_refused,
            copies::copies_go_on_beside_other_submissions,
            copies::a_copy_keeps_its_extents_alive,
            copies::copies_are_done_though_the_driver_is_dropped,
            disk::bytes_go_to_disk_and_back_every_way,
            disk::bytes_go_to_disk_from_another_device,
            disk::only_the_first_bytes_are_written_and_read,
            disk::unwritten_pieces_cannot_be_read,
            disk::a_digest_covers_extents_on_disk,
            disk::a_damaged_extent_is_reported_and_no_other,
            disk::a_truncated_extent_file_is_reported,
            disk::copies_from_disk_and_to_disk_are_done_in_order,
            disk::a_demand_copy_of_the_disk_goes_first,
            disk::copies_both_ways_at_once_do_not_mix,
            disk::a_cancelled_copy_of_the_disk_harms_no_other,
            disk::a_copy_keeps_its_disk_extents_alive,
            disk::copies_of_the_disk_are_done_though_the_driver_is_dropped,
            disk::invalid_disk_submissions_are_refused,
            files::a_range_of_a_file_is_read_at_any_offset,
            files::bytes_beyond_the_end_of_a_file_are_zeros,
            files::a_changed_file_is_reported_and_its_first_content_counts,
            files::a_truncated_file_is_reported_and_a_renamed_one_is_read,
            files::nothing_is_ever_written_to_a_file,
            files::files_need_no_directory,
            files::invalid_file_submissions_are_refused,
            directory::files_are_named_preallocated_and_deleted,
            directory::the_disk_capacity_is_observed_and_returned,
            directory::only_files_of_an_earlier_daemon_are_deleted,
            directory::a_directory_serves_one_driver,
            directory::an_unusable_directory_is_refused,
            directory::extents_on_disk_need_a_directory,
            directory::the_engine_is_reported,
            digest::a_digest_is_of_the_bytes,
            digest::a_digest_can_be_of_a_part,
            digest::a_digest_joins_extents,
            digest::a_digest_of_missing_bytes_fails,
            submissions::invalid_submissions_are_refused,
            submissions::each_submission_is_answered_once,
            submissions::submissions_are_done_though_the_driver_is_dropped,
            fixed::a_legacy_handle_shares_memory,
            fixed::reused_fixed_memory_is_zero,
            fixed::fixed_memory_can_be_digested,
            other_programs::memory_of_other_programs_is_unbrokered,
            other_programs::clients_contexts_are_counted_apart,
            faults::memory_runs_out_on_schedule,
            faults::a_driver_fails_on_schedule,
            faults::a_delayed_submission_holds_up_no_other,
            faults::a_delay_passes,
            faults::host_memory_runs_out_on_schedule,
            faults::copies_have_scheduled_faults,
            faults::a_late_copy_is_overtaken,
            faults::the_disk_is_full_on_schedule,
            faults::copies_to_disk_have_scheduled_faults,
            faults::copies_from_disk_have_scheduled_faults,
            faults::the_disk_fails_in_the_middle_of_a_copy_on_schedule,
        }
    };
    (@list; $($module:ident::$case:ident,)*) => {
        &[$((concat!(stringify!($module), "::", stringify!($case)), $crate::contract::$module::$case),)*]
    };
    (@tests $harness:expr, $judge:expr; $($module:ident::$case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                $judge($crate::contract::$module::$case(&$harness));
            }
        )*
    };
}
