//! Charges without memory: for memory that this process allocates by itself, as managed memory is charged.

use std::time::Duration;

use vramd_proto::v1;
use vramd_types::{AllocationId, Bytes, Reason};

use crate::{
    cuda::ManagedRange,
    error::{Error, Result},
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
    device: v1::Device,
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
        let device = device_of(session, device)?.clone();
        let spec = v1::AllocationSpec {
            size_bytes: size.get(),
            device: Some(device.uuid.clone()),
            kind: v1::AllocationKind::Managed.into(),
            lifetime: v1::Lifetime::Session.into(),
            ..Default::default()
        };
        let id = run_ready(charge(CallStyle::Blocking, session, spec, wait))?.id;
        Ok(Self { session: session.clone(), id, size, device, is_kept: false })
    }

    pub fn id(&self) -> AllocationId {
        self.id
    }

    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Lets the daemon's orders move the memory that is charged: managed memory (`cuMemAllocManaged`) of that address and
    /// size, on the device of the charge. Before the program frees it, it calls [`Self::end_orders`]. Without this call
    /// each order fails, and changes nothing.
    pub fn take_orders(&self, address: u64, size: usize) -> Result<()> {
        check_process(&self.session)?;
        let context = match self.device.simulated {
            true => None,
            false => {
                let failed = |problem| {
                    let facts: [(&str, &dyn ToString); 2] =
                        [("device", &self.device.uuid), ("problem", &problem)];
                    Error::refused(Reason::DriverFailed, &facts)
                };
                Some(self.session.table().context_of_device(self.device.index).map_err(failed)?)
            }
        };
        self.session.table().managed.add(self.id, context, ManagedRange { address, size });
        Ok(())
    }

    /// Lets no order move the memory any longer. Returns once none does.
    pub fn end_orders(&self) {
        if self.session.is_own_process() {
            self.session.table().managed.remove(self.id);
        }
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
        self.end_orders();
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
