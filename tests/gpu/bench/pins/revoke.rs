//! 64 parts of 256 MiB, revoked by an operator and mapped again by a pin, beside bare driver calls that do the same.

use std::{os::fd::AsFd as _, thread, time::Duration, time::Instant};

use anyhow::{Context as _, Result, ensure};
use vramd_client::{Access, AllocationRequest, Bytes, Client, RawPart, admin::AdminClient};
use vramd_proto::v1::{RevocationOutcome, RevokeMappingsRequest, revoke_mappings_request::Target};
use vramd_tests::Daemon;

use crate::{
    bench::{hand_off::check_parts, measure::Measure},
    cuda::{Extent, Gpu},
};

const COUNT: usize = 64;
const PART: usize = 256 << 20;
const TARGET: f64 = 1.5;
/// The rest between rounds. The daemon receives `Mapped` after the client has gone on, and cannot evict the parts before.
const SETTLE: Duration = Duration::from_millis(20);

pub(super) fn run(daemon: &Daemon, gpu: &Gpu, pairs: usize) -> Result<Measure> {
    let request =
        || AllocationRequest::new(Bytes::new((COUNT * PART) as u64)).part_size(Bytes::new(PART as u64));
    let admin = AdminClient::new(&daemon.sockets())?;
    let client = Client::builder().socket_dir(daemon.sockets()).connect()?;
    let mut memory = client.allocate(request())?;
    ensure!(memory.info().parts.len() == COUNT, "{} parts", memory.info().parts.len());
    memory.unpin()?;
    let id = memory.id().get();
    let ours = || {
        thread::sleep(SETTLE);
        let target = Some(Target::AllocationId(id));
        let request = RevokeMappingsRequest { target, ..Default::default() };
        let started = Instant::now();
        let answer = admin.revoke_mappings(request)?;
        let revoked = started.elapsed();
        let pinned = memory.pin(Access::Write)?;
        let took = started.elapsed();
        let all = answer.parts.iter().filter(|part| part.outcome() == RevocationOutcome::Revoked).count();
        ensure!(all == COUNT, "{all} parts were revoked: {:?}", answer.parts);
        check_parts(gpu, pinned.as_device_ptr(), COUNT, PART)?;
        Ok((took, vec![("revoke", revoked), ("pin", took.saturating_sub(revoked))]))
    };

    // Parts of the same daemon, as many and with their own descriptors.
    let raw = Client::builder().socket_dir(daemon.sockets()).connect_raw()?;
    let handed = raw.allocate(request())?;
    let import = |part: &RawPart| -> Result<Extent> {
        let fd = part.fd.as_ref().context("a part without a descriptor")?;
        gpu.import(fd.as_fd(), usize::try_from(part.size.get())?)
    };
    let import_all = || handed.parts().iter().map(import).collect::<Result<Vec<_>>>();
    let mut span = gpu.map(&import_all()?, true)?;
    let bare = || {
        let started = Instant::now();
        span.unmap()?;
        let extents = import_all()?;
        gpu.map_at(&mut span, &extents, true)?;
        drop(extents);
        let took = started.elapsed();
        check_parts(gpu, span.address(), COUNT, PART)?;
        Ok(took)
    };
    let measure = Measure::take(TARGET, pairs, ours, bare)?;
    drop(span);
    handed.free()?;
    memory.free()?;
    Ok(measure)
}
