//! Extents: the daemon reserves their bytes and orders them from the driver, for a new allocation or for a part
//! that moves. `allocation/created.rs` takes the answer, which settles
//! the reservation or cancels it.

use vramd_types::{Bytes, ExtentId};

use crate::{
    broker::Broker,
    command::Command,
    event::{Kind, PartRef, Tier},
    handler::allocation::load_file::FilePiece,
    ledger::{Ledger, Place, Reservation},
    pool::{Extent, ExtentError, ExtentState},
    tenancy::TenantId,
};

/// An extent to create, and the part that it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentOrder {
    pub(crate) place: Place,
    pub(crate) size: Bytes,
    pub(crate) part: PartRef,
    pub(crate) kind: Kind,
    pub(crate) zeroed: bool,
}

impl Broker {
    /// Reserves the bytes of one part and orders an extent for it.
    pub(crate) fn order_extent(
        &mut self,
        tenant: TenantId,
        order: ExtentOrder,
    ) -> Result<ExtentId, ExtentError> {
        let ExtentOrder { place, size, .. } = order;
        planted!(self, WrongTenantCharged => tenant = self.payer_if(place.tier == Tier::Device, tenant));
        planted!(self, HostChargedToAnother => tenant = self.payer_if(place.tier != Tier::Device, tenant));
        planted!(self, HostChargeForgotten => size = self.charge_outside_host(place, size));
        let reserved = self.ledger.reserve(tenant, place, size);
        let reservation =
            reserved.map_err(|shortage| ExtentError::Shortage { place, shortage, requested: size })?;
        self.order_from_reservation(reservation, order)
    }

    /// Orders an extent in bytes that are reserved.
    pub(crate) fn order_from_reservation(
        &mut self,
        reservation: Reservation,
        order: ExtentOrder,
    ) -> Result<ExtentId, ExtentError> {
        let ExtentOrder { place, size, part, kind, zeroed } = order;
        let extent = match self.next_extent_id() {
            Ok(extent) => extent,
            Err(exhausted) => {
                self.ledger.cancel(reservation);
                return Err(exhausted);
            }
        };
        let made = Extent::new(place, size, part, ExtentState::Creating(reservation));
        self.pool.insert(extent, Extent { unwritten: place.tier == Tier::Disk, ..made });
        let Place { device, tier } = place;
        self.push_command(Command::CreateExtent { extent, device, tier, size, kind, zeroed });
        Ok(extent)
    }

    /// The next id of an extent.
    pub(crate) fn next_extent_id(&mut self) -> Result<ExtentId, ExtentError> {
        self.pool.ids.next_raw().map(ExtentId::from_raw).ok_or(ExtentError::IdsExhausted)
    }

    /// Orders the extent of a part as a piece of a file.
    pub(crate) fn order_in_file(
        &mut self,
        tenant: TenantId,
        part: PartRef,
        place: Place,
        piece: FilePiece<'_>,
    ) -> Result<ExtentId, ExtentError> {
        let extent = self.next_extent_id()?;
        let FilePiece { file, at, bytes, size } = piece;
        let reservation = Ledger::uncharged(tenant, place);
        planted!(self, FileCharged => reservation = self.charge_file(reservation, size));
        let opened = Extent::new(place, size, part, ExtentState::Creating(reservation));
        self.pool.insert(extent, Extent { in_file: true, ..opened });
        planted!(self, PiecesFromTheStart => at = Bytes::ZERO);
        let offset = file.offset.saturating_add(at);
        self.push_command(Command::OpenExtent { extent, file: file.file, offset, bytes, size });
        Ok(extent)
    }
}
