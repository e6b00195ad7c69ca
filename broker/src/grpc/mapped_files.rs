//! Files that clients map, so that a device reads them in place: which access a client has, and how often it had none.

use std::sync::Arc;

use broker_core::Refusal;
use broker_platform::{
    FileAccess, NotInPlace, file_access, is_in_place_by_default, readings::DeviceReadings,
};
use vramd_proto::v1;
use vramd_types::{Bytes, FallBack};

use super::{
    caller::Caller,
    file_loading::{Loading, NotOpened},
};
use crate::{fall_backs::FallBacks, node_report::NodeReport, telemetry::Telemetry};

/// The devices by which files are judged, and the counts of copies.
#[derive(Clone, Debug)]
pub(super) struct MappedFiles {
    devices: Arc<[DeviceReadings]>,
    fall_backs: FallBacks,
    loading: Loading,
    telemetry: Telemetry,
}

impl MappedFiles {
    pub(super) fn new(report: &NodeReport, loading: Loading, telemetry: Telemetry) -> Self {
        let (devices, fall_backs) = (report.devices().into(), report.fall_backs().clone());
        Self { devices, fall_backs, loading, telemetry }
    }

    /// Tells how a device reads the file behind a descriptor of the caller. The device comes first: without its access no
    /// file is opened.
    pub(super) async fn check(
        &self,
        caller: &Caller,
        fd: u32,
        uuid: &str,
    ) -> Result<v1::CheckFileResponse, Refusal> {
        // A device without readings is of an unknown platform.
        let unknown = DeviceReadings::default();
        let device = self.devices.iter().find(|device| device.uuid == uuid).unwrap_or(&unknown);
        let mut answer = v1::CheckFileResponse {
            device: uuid.to_owned(),
            in_place_by_default: is_in_place_by_default(device),
            ..Default::default()
        };
        let access = file_access(device);
        if let FileAccess::Copy(why) = access {
            refer_to_copy(&mut answer, reason_of(why), access.to_string());
            return Ok(answer);
        }
        match self.loading.open(caller, fd, Bytes::ZERO, Bytes::ZERO).await {
            Ok(_) => {
                let access = match access {
                    FileAccess::Registered => v1::FileAccess::Registered,
                    FileAccess::Direct | FileAccess::Copy(_) => v1::FileAccess::Direct,
                };
                answer.set_access(access);
            }
            Err(why @ NotOpened::Unchecked { .. }) => {
                refer_to_copy(&mut answer, FallBack::FileUnchecked, Refusal::from(why).to_string());
            }
            Err(NotOpened::Refused(refusal @ Refusal::FileMutable { .. })) => {
                refer_to_copy(&mut answer, FallBack::FileMutable, refusal.to_string());
            }
            Err(NotOpened::Refused(refusal)) => return Err(refusal),
        }
        Ok(answer)
    }

    /// Counts a copy that a client reports.
    pub(super) fn count(&self, reason: FallBack, copied: Bytes) {
        self.fall_backs.count(reason, copied);
        self.telemetry.count_fall_back(reason);
    }
}

fn refer_to_copy(answer: &mut v1::CheckFileResponse, reason: FallBack, problem: String) {
    answer.set_access(v1::FileAccess::Copy);
    answer.reason = reason.number();
    answer.problem = problem;
}

fn reason_of(why: NotInPlace) -> FallBack {
    match why {
        NotInPlace::SeparateTiers => FallBack::SeparateTiers,
        NotInPlace::RegisterUnsupported => FallBack::RegisterUnsupported,
    }
}

/// The reason in a message. One that this daemon does not know is refused.
pub(super) fn of_message(number: i32) -> Result<FallBack, Refusal> {
    FallBack::of_number(number).ok_or(Refusal::RequestInvalid { field: "reason", problem: "no such reason" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_number_in_messages() {
        for reason in FallBack::ALL {
            let message = v1::FallBackReason::try_from(reason.number()).unwrap();
            let name = message.as_str_name().strip_prefix("FALL_BACK_REASON_").unwrap().to_lowercase();
            assert_eq!(name, reason.name());
            assert_eq!(of_message(reason.number()), Ok(reason));
        }
        let next = i32::try_from(FallBack::ALL.len()).unwrap() + 1;
        assert!(v1::FallBackReason::try_from(next).is_err(), "each number of messages is a reason");
        for number in [0, -1, next] {
            assert!(of_message(number).is_err());
        }
    }
}
