//! Charges without memory: for memory that this process allocates by itself, as managed memory is charged.

use std::time::Duration;

use vramd_proto::v1;
use vramd_types::{AllocationId, Bytes};

use crate::{
    error::Result,
    handles::{managed::device_of, operations::charge},
    process::fork::ProcessBound,
    session::{
        Session,
        call_style::{CallStyle, run_ready},
        check_process, free,
    },
};

/// Bytes of a device that the daemon charges to the client's tenant, for memory that the process allocates by itself.
/// Dropping it ends the charge, so the process frees the memory first.
#[derive(Debug)]
pub struct Charge {
    session: ProcessBound<Session>,
    id: AllocationId,
    size: Bytes,
    /// Whether it lasts as long as the session.
    is_kept: bool,
}

impl Charge {
    pub(crate) fn take(
        session: &ProcessBound<Session>,
        size: Bytes,
        device: Option<&str>,
        wait: Duration,
    ) -> Result<Self> {
        check_process(session)?;
        let spec = v1::AllocationSpec {
            size_bytes: size.get(),
            device: Some(device_of(session, device)?.uuid.clone()),
            kind: v1::AllocationKind::Managed.into(),
            lifetime: v1::Lifetime::Session.into(),
            ..Default::default()
        };
        let id = run_ready(charge(CallStyle::Blocking, session, spec, wait))?.id;
        Ok(Self { session: session.clone(), id, size, is_kept: false })
    }

    pub fn id(&self) -> AllocationId {
        self.id
    }

    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Keeps the charge until the session ends, for memory that could not be freed.
    pub fn keep(mut self) {
        self.is_kept = true;
    }

    /// Ends the charge, and waits for the daemon's answer.
    pub(crate) fn end(mut self) -> Result<()> {
        self.is_kept = true;
        let deadline = self.session.deadline();
        run_ready(free(CallStyle::Blocking, &self.session, self.id, deadline)).map(|_| ())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.is_kept || !self.session.is_own_process() {
            return;
        }
        let (session, id) = (self.session.clone(), self.id);
        self.session.releases().run(move || {
            // Otherwise the session has ended, and its charges with it.
            let _ = run_ready(free(CallStyle::Blocking, &session, id, session.deadline()));
        });
    }
}
